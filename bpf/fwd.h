/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Forwarding of a packet that came in by an uplink or a wire: the decision, and sending from tc. */
#pragma once
#include "ctx.h"
#include "encap.h"
#include "flow.h"
#include "probe.h"

/* Metadata of a received packet besides its inner tuple. */
struct rx {
	__u16 node; /* index in the header */
	__u8 flags; /* enum overlay_flag */
	__u8 type;  /* enum packet_type */
	__u16 from_cable;
	__u16 peer_node;    /* index of the sender */
	__u16 peer_cluster; /* from_cable: of the sender's cluster */
	enum hook hook;	    /* where it came in */
	__u32 client;	    /* encap_read_client(), set before the packet is forwarded or delivered */
	__u64 now;
};

static __always_inline __u32 rx_slot(const struct rx *rx)
{
	return path_slot(rx->peer_cluster, rx->peer_node);
}

/* A forwarding decision: where the packet goes, and node and flags of its overlay header. */
struct fwd {
	struct encap to;
	__u16 node;
	__u8 flags;
};

static __always_inline int fwd_send(struct __sk_buff *skb, const struct node_settings *s, const struct rx *rx,
				    const struct fwd *fwd, enum verdict good)
{
	enum verdict v = encap_turn(skb, rx->hook, &fwd->to, fwd->node, fwd->flags);

	if (v != VERDICT_CONTINUE)
		return finish(skb, rx->hook, v);
	if (!encap_fits(skb, rx->hook, &fwd->to, 0))
		return finish(skb, rx->hook, VERDICT_DROP_TOO_BIG);
	count_verdict(skb, rx->hook, good);
	path_take(skb, s, &fwd->to, rx->now);
	return encap_send(skb, s, &fwd->to);
}

/*
 * The gateway of this cluster that a packet may be bounced to, once; 0 if none. cluster: the remote
 * one that it is for, 0 for a node of this cluster. only_good: refuse one that is no better than
 * this gateway.
 */
static __always_inline __u32 fwd_sibling(const struct node_settings *s, const struct packet *p, const struct rx *rx,
					 __u32 cluster, int only_good)
{
	__u32 pick = (rx->flags & OVERLAY_BOUNCED) ?
			     0 :
			     lb_pick_gateway(gateway_hash(s, flow_hash(p)), cluster, s->node, rx->now);

	return only_good && (pick & PICK_DOUBTFUL) ? 0 : pick & 0xffff;
}

/* Bounces a packet for this cluster to another of its gateways, which looks up the node. */
static __always_inline enum verdict fwd_bounce(const struct node_settings *s, const struct packet *p,
					       const struct rx *rx, enum verdict otherwise, struct fwd *fwd)
{
	if (!encap_to_node(s, fwd_sibling(s, p, rx, 0, 0), &fwd->to))
		return otherwise;
	fwd->node = 0;
	fwd->flags = rx->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH;
	return VERDICT_BOUNCED;
}

/*
 * Reports whether a packet for whose flow no node is known may go to any: it may open the flow.
 * Fragments of a datagram stay together.
 */
static __always_inline int fwd_may_open(const struct packet *p)
{
	return packet_opens_flow(p) || (p->fragment == LATER_FRAGMENT && p->proto != PROTO_TCP);
}

/*
 * Decision of a gateway for a packet to an address of its own cluster: look up the node. A flow
 * stays with the node in its header. If that is dead, and no other gateway may still reach it, a
 * flow that is not TCP moves to another node that serves it: its client would not notice the death
 * and not open another.
 */
static __always_inline enum verdict fwd_in(const struct node_settings *s, const struct packet *p, const struct rx *rx,
					   struct fwd *fwd)
{
	struct global *g = bpf_map_lookup_elem(&globals2, &p->daddr);
	__u32 node = 0, except = (rx->flags & OVERLAY_BOUNCED) ? rx->peer_node : 0, rank;
	int picked = 0, sticky = 0;

	if (!g && !external_routed(p->daddr))
		return VERDICT_DROP_NOT_OWN;
	if (g && g->kind == GLOBAL_EGRESS) {
		struct block_key key = { .address = p->daddr, .block = bpf_ntohs(p->dport) >> BLOCK_BITS };
		struct block *b = bpf_map_lookup_elem(&blocks, &key);

		if (!b)
			return fwd_bounce(s, p, rx, VERDICT_DROP_UNKNOWN_BLOCK, fwd);
		node = b->node;
	} else if (g && g->kind == GLOBAL_POD) {
		node = g->node;
	} else if (rx->node == s->node || encap_to_node(s, rx->node, &fwd->to)) {
		node = rx->node; /* still a node */
		sticky = 1;
	} else if (!g || g->kind == GLOBAL_EXTERNAL) {
		node = s->node;
	} else {
		struct service_key key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &key);

		if (!service)
			return VERDICT_DROP_NO_SERVICE;
		node = lb_pick_node(&key, service, service_hash(service, p, rx->client), except);
		if (!node)
			return VERDICT_DROP_NO_BACKEND;
		picked = 1;
	}
	if (node == s->node)
		return VERDICT_DELIVERED;
	if (!encap_to_node(s, node, &fwd->to))
		return VERDICT_DROP_UNKNOWN_NODE;
	fwd->node = rx->node;
	fwd->flags = rx->flags & ~OVERLAY_SWITCH;
	rank = path_rank_to(fwd->to.slot, fwd->to.hop.address, rx->now);
	if (rank >= RANK_GONE && picked && fwd_may_open(p) && path_dead(fwd->to.hop.address, rx->now)) {
		node = lb_pick_live_node(p, rx->client, except, rx->now);
		if (node == s->node)
			return VERDICT_DELIVERED;
		if (encap_to_node(s, node, &fwd->to))
			rank = path_rank_to(fwd->to.slot, fwd->to.hop.address, rx->now);
	}
	/* Another gateway may still reach a node that does not answer this one. */
	if (rank >= RANK_BAD && encap_to_node(s, fwd_sibling(s, p, rx, 0, 1), &fwd->to)) {
		fwd->flags = rx->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH;
		return VERDICT_BOUNCED;
	}
	if (rank >= RANK_GONE && sticky && p->proto != PROTO_TCP && fwd_may_open(p) &&
	    path_dead(fwd->to.hop.address, rx->now)) {
		/* The gateway that has bounced the packet may serve it: it has looked for this node. */
		node = g && g->kind == GLOBAL_SERVICE ? lb_pick_live_node(p, rx->client, 0, rx->now) : s->node;
		if (node == s->node)
			return VERDICT_DELIVERED;
		if (encap_to_node(s, node, &fwd->to))
			fwd->node = 0;
	}
	return VERDICT_SWITCHED;
}

/*
 * Decision of a gateway for a packet of its own cluster to a remote one. If it reaches none of that
 * cluster's gateways, another gateway of this cluster may.
 */
static __always_inline enum verdict fwd_out(const struct node_settings *s, const struct packet *p, const struct rx *rx,
					    __u16 cluster, struct fwd *fwd)
{
	enum reach reach;

	/* The sender is a node of this cluster; the inner source must be of this cluster too. */
	if (!bpf_map_lookup_elem(&globals2, &p->saddr) && !external_routed(p->saddr))
		return VERDICT_DROP_SPOOFED_SOURCE;
	fwd->node = rx->node;
	fwd->flags = rx->flags;
	reach = encap_to_cluster(s, cluster, flow_hash(p), rx->now, &fwd->to);
	if (reach != REACH_GOOD &&
	    encap_to_node(s, fwd_sibling(s, p, rx, cluster, reach == REACH_DOUBTFUL), &fwd->to)) {
		fwd->flags |= OVERLAY_BOUNCED;
		return VERDICT_BOUNCED;
	}
	return reach == REACH_NONE ? VERDICT_DROP_NO_GATEWAY : VERDICT_SWITCHED;
}

/*
 * Decides what happens to a validated packet. VERDICT_SWITCHED, VERDICT_BOUNCED: sent to *fwd.
 * VERDICT_DELIVERED: this node is the edge. Otherwise it is dropped.
 */
static __always_inline enum verdict fwd_decide(const struct node_settings *s, const struct packet *p,
					       const struct rx *rx, struct fwd *fwd)
{
	const struct route *route;

	if (rx->from_cable) {
		if (!s->gateway)
			return VERDICT_DROP_NOT_GATEWAY;
		/*
		 * An ICMP error belongs to the flow of the packet that it quotes: the edge sends it
		 * from the address that packet went to. Otherwise a cluster could disrupt another
		 * one's flows (RFC 5927).
		 */
		route = route_lookup(p->saddr);
		if (!route || route->cluster != rx->peer_cluster || (p->error && p->quoted_peer != p->saddr))
			return VERDICT_DROP_SPOOFED_SOURCE;
		return fwd_in(s, p, rx, fwd);
	}
	if (!s->gateway)
		return VERDICT_DELIVERED;
	if (rx->flags & OVERLAY_SWITCH) {
		/*
		 * A bounced packet may come from a remote cluster; any other is hairpinned by a
		 * node of this one.
		 */
		if ((rx->flags & OVERLAY_BOUNCED) ? !route_lookup(p->saddr) :
						    !bpf_map_lookup_elem(&globals2, &p->saddr))
			return VERDICT_DROP_SPOOFED_SOURCE;
		return fwd_in(s, p, rx, fwd);
	}
	route = route_lookup(p->daddr);
	return route && route->cluster != s->cluster ? fwd_out(s, p, rx, route->cluster, fwd) : VERDICT_DELIVERED;
}
