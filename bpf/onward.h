/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Passing on a packet that came in by an uplink or a wire: where it goes, and how tc sends it there. */
#pragma once
#include "count.h"
#include "path.h"
#include "probe.h"

/* What is known of a packet that came in besides its inner tuple. */
struct arrival {
	__u16 node; /* index in the header */
	__u8 flags; /* enum overlay_flag */
	__u8 type;  /* enum packet_type */
	__u16 from_cable;
	__u16 peer_node;    /* index of the sender */
	__u16 peer_cluster; /* from_cable: of the sender's cluster */
	enum hook hook;	    /* where it came in */
};

/* Where a packet goes, and what its header is to say there. */
struct course {
	struct target to;
	__u16 node;
	__u8 flags;
};

static __always_inline int switch_to(struct __sk_buff *skb, const struct node_settings *s, const struct arrival *a,
				     const struct course *c, enum verdict good)
{
	enum verdict v = turn_outer(skb, a->hook, &c->to, c->node, c->flags);

	if (v != VERDICT_SWITCHED)
		return finish(skb, a->hook, v);
	if (!fits(skb, a->hook, &c->to, 0))
		return finish(skb, a->hook, VERDICT_DROP_TOO_BIG);
	count(skb, a->hook, good);
	take_path(skb, s, &c->to);
	return send_to(skb, s, &c->to);
}

/*
 * Whether the packet may be passed to another gateway of this cluster: once only. cluster: the remote one that it is for,
 * 0 if it is for a node of this cluster. only_good: not to one that is no better off. Returns the gateway's index or 0.
 */
static __always_inline __u32 sibling(const struct node_settings *s, const struct packet *p, const struct arrival *a,
				     __u32 cluster, int only_good)
{
	__u32 pick = (a->flags & OVERLAY_BOUNCED) ? 0 : pick_gateway(gateway_hash(s, flow_hash(p)), cluster, s->node);

	return only_good && (pick & PICK_DOUBTFUL) ? 0 : pick & 0xffff;
}

/* Passes a packet for this cluster once to another of its gateways, which is to find the node. */
static __always_inline enum verdict bounce(const struct node_settings *s, const struct packet *p,
					   const struct arrival *a, enum verdict otherwise, struct course *c)
{
	if (!to_node(s, sibling(s, p, a, 0, 0), &c->to))
		return otherwise;
	c->node = 0;
	c->flags = a->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH;
	return VERDICT_BOUNCED;
}

/* A gateway with a packet for an address of its own cluster: finds the node. */
static __always_inline enum verdict course_in(const struct node_settings *s, const struct packet *p,
					      const struct arrival *a, struct course *c)
{
	struct global *g = bpf_map_lookup_elem(&globals, &p->daddr);
	__u32 node = 0;

	if (!g)
		return VERDICT_DROP_NOT_OWN;
	if (g->kind == GLOBAL_EGRESS) {
		struct block_key key = { .address = p->daddr, .block = bpf_ntohs(p->dport) >> BLOCK_BITS };
		struct block *b = bpf_map_lookup_elem(&blocks, &key);

		if (!b)
			return bounce(s, p, a, VERDICT_DROP_UNKNOWN_BLOCK, c);
		node = b->node;
	} else if (g->kind == GLOBAL_POD) {
		node = g->node;
	} else if (a->node == s->node || to_node(s, a->node, &c->to)) {
		node = a->node; /* sticky, and still a node */
	} else {
		struct service_key key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &key);

		if (!service)
			return VERDICT_DROP_NO_SERVICE;
		node = pick_node(&key, service, service_hash(service, p, p->saddr),
				 (a->flags & OVERLAY_BOUNCED) ? a->peer_node : 0);
		if (!node)
			return VERDICT_DROP_NO_BACKEND;
	}
	if (node == s->node)
		return VERDICT_DELIVERED;
	if (!to_node(s, node, &c->to))
		return VERDICT_DROP_UNKNOWN_NODE;
	c->node = a->node;
	c->flags = a->flags & ~OVERLAY_SWITCH;
	/* A node that has fallen silent towards this gateway may still be reached by another one. */
	if (rank_of(path_to(c->to.hop.address), now_ns()) < RANK_BAD || !to_node(s, sibling(s, p, a, 0, 1), &c->to))
		return VERDICT_SWITCHED;
	c->flags = a->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH;
	return VERDICT_BOUNCED;
}

/*
 * A gateway with a packet of its own cluster for a remote one. If it reaches none of that cluster's gateways, another
 * gateway of this cluster may.
 */
static __always_inline enum verdict course_out(const struct node_settings *s, const struct packet *p,
					       const struct arrival *a, __u16 cluster, struct course *c)
{
	enum reach reach;

	/* The sender is a node of ours, but its packet must also come from an address of ours. */
	if (!bpf_map_lookup_elem(&globals, &p->saddr))
		return VERDICT_DROP_SPOOFED_SOURCE;
	c->node = a->node;
	c->flags = a->flags;
	reach = to_cluster(s, cluster, flow_hash(p), &c->to);
	if (reach != REACH_GOOD && to_node(s, sibling(s, p, a, cluster, reach == REACH_DOUBTFUL), &c->to)) {
		c->flags |= OVERLAY_BOUNCED;
		return VERDICT_BOUNCED;
	}
	return reach == REACH_NONE ? VERDICT_DROP_NO_GATEWAY : VERDICT_SWITCHED;
}

/*
 * Where a packet that was admitted goes. VERDICT_SWITCHED, VERDICT_BOUNCED: to *c; VERDICT_DELIVERED: this node is the
 * edge; else it is dropped.
 */
static __always_inline enum verdict find_course(const struct node_settings *s, const struct packet *p,
						const struct arrival *a, struct course *c)
{
	const struct route *route;

	if (a->from_cable) {
		if (!s->gateway)
			return VERDICT_DROP_NOT_GATEWAY;
		route = route_of(p->saddr);
		if (!route || route->cluster != a->peer_cluster)
			return VERDICT_DROP_SPOOFED_SOURCE;
		return course_in(s, p, a, c);
	}
	if (!s->gateway)
		return VERDICT_DELIVERED;
	if (a->flags & OVERLAY_SWITCH)
		return course_in(s, p, a, c);
	route = route_of(p->daddr);
	return route ? course_out(s, p, a, route->cluster, c) : VERDICT_DELIVERED;
}
