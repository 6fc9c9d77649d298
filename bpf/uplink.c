// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Uplinks and wires. Ingress: overlay and cable packets are checked, then switched (gateway) or translated back and handed
 * to the kernel's vxlan receiver behind pelago0 (edge), which settles GSO and checksum state that the stack must be
 * able to trust. Egress: the guard against overlay packets that are not ours.
 */
#include "deliver.h"

/* A gateway with a packet for an address of its own cluster: finds the node. */
static __always_inline int switch_in(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				     const struct arrival *a)
{
	struct global *g = bpf_map_lookup_elem(&globals, &p->daddr);
	struct target to = {}, other = {};
	__u32 node = 0;

	if (!g)
		return finish(skb, a->hook, VERDICT_DROP_NOT_OWN);
	if (g->kind == GLOBAL_EGRESS) {
		struct block_key key = { .address = p->daddr, .block = bpf_ntohs(p->dport) >> BLOCK_BITS };
		struct block *b = bpf_map_lookup_elem(&blocks, &key);

		if (!b)
			return bounce(skb, s, p, a, VERDICT_DROP_UNKNOWN_BLOCK);
		node = b->node;
	} else if (g->kind == GLOBAL_POD) {
		node = g->node;
	} else if (a->node == s->node || to_node(s, a->node, &to)) {
		node = a->node; /* sticky, and still a node */
	} else {
		struct service_key key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &key);

		if (!service)
			return finish(skb, a->hook, VERDICT_DROP_NO_SERVICE);
		node = pick_node(&key, service, service_hash(service, p, p->saddr),
				 (a->flags & OVERLAY_BOUNCED) ? a->peer_node : 0);
		if (!node)
			return finish(skb, a->hook, VERDICT_DROP_NO_BACKEND);
	}
	if (node == s->node)
		return deliver(skb, s, p, a);
	if (!to_node(s, node, &to))
		return finish(skb, a->hook, VERDICT_DROP_UNKNOWN_NODE);
	/* A node that has fallen silent towards this gateway may still be reached by another one. */
	if (rank_of(path_to(to.hop.address), now_ns()) == RANK_BAD && to_node(s, sibling(s, p, a, 0, 1), &other))
		return switch_to(skb, s, a, &other, a->node, a->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH,
				 VERDICT_BOUNCED);
	return switch_to(skb, s, a, &to, a->node, a->flags & ~OVERLAY_SWITCH, VERDICT_SWITCHED);
}

/*
 * A gateway with a packet of its own cluster for a remote one. If it reaches none of that cluster's gateways, another
 * gateway of this cluster may.
 */
static __always_inline int switch_out(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				      const struct arrival *a, __u16 cluster)
{
	struct target to = {}, other = {};
	enum reach reach;

	/* The sender is a node of ours, but its packet must also come from an address of ours. */
	if (!bpf_map_lookup_elem(&globals, &p->saddr))
		return finish(skb, a->hook, VERDICT_DROP_SPOOFED_SOURCE);
	reach = to_cluster(s, cluster, flow_hash(p), &to);
	if (reach != REACH_GOOD && to_node(s, sibling(s, p, a, cluster, reach == REACH_DOUBTFUL), &other))
		return switch_to(skb, s, a, &other, a->node, a->flags | OVERLAY_BOUNCED, VERDICT_BOUNCED);
	if (reach == REACH_NONE)
		return finish(skb, a->hook, VERDICT_DROP_NO_GATEWAY);
	return switch_to(skb, s, a, &to, a->node, a->flags, VERDICT_SWITCHED);
}

static __always_inline int has_token(const struct node_settings *s, const struct arrival *a, __u32 token)
{
	if (a->from_cable)
		return token == s->cable_token || (s->cable_token_old && token == s->cable_token_old);
	return token == s->overlay_token || (s->overlay_token_old && token == s->overlay_token_old);
}

/* A packet to one of our ports. Peer, version and token come before anything else. */
static __always_inline int take(struct __sk_buff *skb, const struct node_settings *s, struct arrival *a,
				__be32 outer_source)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &outer_source);
	struct overlay_header h;
	struct packet p = {};
	struct route *route;
	enum verdict v;

	if (!peer || peer->kind != (a->from_cable ? PEER_GATEWAY : PEER_NODE))
		return finish(skb, a->hook, VERDICT_DROP_UNKNOWN_PEER);
	if (bpf_skb_load_bytes(skb, OVERLAY_AT, &h, sizeof(h)))
		return finish(skb, a->hook, VERDICT_DROP_MALFORMED);
	if (h.vxlan_flags != OVERLAY_VNI_FLAG || h.version_flags >> 4 != OVERLAY_VERSION)
		return finish(skb, a->hook, VERDICT_DROP_BAD_VERSION);
	if (!has_token(s, a, header_token(&h)))
		return finish(skb, a->hook, VERDICT_DROP_BAD_TOKEN);
	/* A gateway that would reflect probes without complete tables would draw packets that it cannot switch. */
	if (!s->ready)
		return finish(skb, a->hook, VERDICT_DROP_NOT_READY);
	if (h.type == PACKET_PROBE)
		return reflect(skb, s, a->hook, h.version_flags);
	if (h.type == PACKET_PROBE_REPLY)
		return probe_answer(skb, a->hook, outer_source, a->from_cable ? peer->cluster : 0, h.version_flags);
	if (h.type != PACKET_FORWARD)
		return finish(skb, a->hook, VERDICT_DROP_BAD_TYPE);
	a->node = header_node(&h);
	a->flags = h.version_flags & 0x0f;
	a->peer_node = peer->node;
	v = parse_ipv4(skb, OUTER_LEN, &p);
	if (v != VERDICT_SENT)
		return finish(skb, a->hook, v);
	if (p.fragment) {
		__be16 ports[2];

		if (!(a->flags & OVERLAY_FRAGMENT) ||
		    bpf_skb_load_bytes(skb, OUTER_LEN - sizeof(struct eth) + 8, ports, sizeof(ports)))
			return finish(skb, a->hook, VERDICT_DROP_FRAGMENT);
		p.sport = ports[0];
		p.dport = ports[1];
	}
	if (a->from_cable) {
		struct prefix source = { .length = 32, .address = p.saddr };

		if (!s->gateway)
			return finish(skb, a->hook, VERDICT_DROP_NOT_GATEWAY);
		route = bpf_map_lookup_elem(&routes, &source);
		if (!route || route->cluster != peer->cluster)
			return finish(skb, a->hook, VERDICT_DROP_SPOOFED_SOURCE);
		return switch_in(skb, s, &p, a);
	}
	if (s->gateway) {
		struct prefix destination = { .length = 32, .address = p.daddr };

		if (a->flags & OVERLAY_SWITCH)
			return switch_in(skb, s, &p, a);
		route = bpf_map_lookup_elem(&routes, &destination);
		if (route)
			return switch_out(skb, s, &p, a, route->cluster);
	}
	return deliver(skb, s, &p, a);
}

/* The outer headers of a packet whose Ethernet header, or the place of one, is at offset 0; 0 if it is not for us. */
static __always_inline struct ipv4 *outer_of(struct __sk_buff *skb, __be32 own)
{
	struct ipv4 *ip = packet_at(skb, ETH_LEN, sizeof(*ip) + sizeof(struct udp));

	if (!ip || ip->version_ihl != 0x45 || ip->proto != PROTO_UDP || ip->daddr != own ||
	    (ip->frag & bpf_htons(IP_MF | IP_OFFSET)))
		return 0;
	return ip;
}

SEC("tc")
int uplink_in(struct __sk_buff *skb)
{
	struct arrival a = { .hook = HOOK_UPLINK_IN };
	struct node_settings *s = get_settings();
	struct ipv4 *ip;
	struct udp *udp;

	/* A promiscuous uplink shows frames for other hosts as well. */
	if (!s || skb->protocol != bpf_htons(ETH_P_IP) || skb->pkt_type != PACKET_HOST)
		return ACTION_NEXT;
	ip = outer_of(skb, s->address);
	if (!ip)
		return ACTION_NEXT;
	udp = (void *)(ip + 1);
	if (udp->dest != bpf_htons(OVERLAY_PORT)) {
		if (!s->cable_port || udp->dest != s->cable_port)
			return ACTION_NEXT;
		a.from_cable = 1;
	}
	return take(skb, s, &a, ip->saddr);
}

/*
 * The device of an encrypted wire. Packets have no Ethernet header there; they get the place of one, so that everything
 * behind finds the same offsets. Nothing but cable packets comes by a wire.
 */
SEC("tc")
int wire_in(struct __sk_buff *skb)
{
	struct arrival a = { .hook = HOOK_WIRE_IN, .from_cable = 1 };
	struct node_settings *s = get_settings();
	struct ipv4 *ip;
	struct udp *udp;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_INTERNAL);
	ip = outer_of(skb, s->cable_address);
	if (!ip)
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	udp = (void *)(ip + 1);
	if (udp->dest != bpf_htons(OVERLAY_PORT))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	return take(skb, s, &a, ip->saddr);
}

/*
 * The guard: an overlay or cable packet leaves this node only if one of our programs, or the daemon's prober, marked it.
 * Without it any pod could send to a node's overlay port, and CNI masquerading would lend it the node's address.
 */
SEC("tc")
int uplink_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct ipv4 *ip;
	struct udp *udp;
	__be32 to;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	if (skb->mark == s->cookie) {
		skb->mark = 0; /* nobody else is to see it */
		return ACTION_NEXT;
	}
	ip = packet_at(skb, ETH_LEN, sizeof(*ip) + sizeof(*udp));
	if (!ip || ip->proto != PROTO_UDP || (ip->frag & bpf_htons(IP_OFFSET)))
		return ACTION_NEXT;
	/* With IP options the ports lie elsewhere; no receiver of ours takes such packets. */
	if (ip->version_ihl != 0x45)
		return ACTION_NEXT;
	udp = (void *)(ip + 1);
	if (udp->dest != bpf_htons(OVERLAY_PORT) && (!s->cable_port || udp->dest != s->cable_port))
		return ACTION_NEXT;
	to = ip->daddr;
	if (!bpf_map_lookup_elem(&peers, &to))
		return ACTION_NEXT;
	return finish(skb, HOOK_UPLINK_OUT, VERDICT_DROP_INJECTED);
}

/* The guard of a wire: nothing goes in that our programs have not sent there. */
SEC("tc")
int wire_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();

	if (!s || skb->mark != s->cookie)
		return finish(skb, HOOK_WIRE_OUT, VERDICT_DROP_INJECTED);
	skb->mark = 0;
	return ACTION_NEXT;
}
