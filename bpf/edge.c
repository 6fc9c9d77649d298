// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * The edge on its way out: egress of pelago0. What the node's stack routes to a remote prefix gets its source
 * translated, a gateway picked, the overlay header pushed, and leaves by the uplink. And the check on the way in:
 * ingress of pelago0.
 */
#include "count.h"
#include "flow.h"
#include "lb.h"
#include "nat.h"
#include "overlay.h"

#define CLAIM_TRIES 48
#define PRESSURE_AFTER 16
#define PORT_STRIDE 7919 /* prime and larger than MAX_BLOCKS: visits every port of n * 256 once */

/*
 * Inserts the answer entry of a flow, which is the claim to its outside tuple. An entry in the way that has run out
 * is removed first. 0: claimed.
 */
static __always_inline int claim(const struct flow_key *answer_key, const struct flow *answer, __u64 now, int pressure)
{
	if (!bpf_map_update_elem(&flows, answer_key, answer, BPF_NOEXIST))
		return 0;
	if (!reclaim(answer_key, now, pressure))
		return -1;
	return bpf_map_update_elem(&flows, answer_key, answer, BPF_NOEXIST) ? -1 : 0;
}

/*
 * Opens the flow of a local source. The answer entry is claimed first, then the primary. Two CPUs with packets of one
 * new flow may both claim an answer: the loser of the primary removes its own and takes the winner's translation.
 */
static __noinline enum verdict open_client_flow(const struct packet *p, const struct flow_key *key,
						const struct source *src, __u16 cluster, struct tuple *t)
{
	struct flow primary, answer, *winner;
	struct flow_key answer_key;
	struct egress *e = 0;
	__u64 now = now_ns();
	__u32 ports = 0, start, i;
	int err = -1;

	if (!p || !key || !src || !t)
		return VERDICT_DROP_INTERNAL;
	t->daddr = p->daddr;
	t->dport = p->dport;
	if (src->own_ip) {
		t->saddr = src->own_ip;
		t->sport = p->sport;
		make_flow(&primary, &answer, key, t, FLOW_CLIENT, cluster, p->saddr, now);
		key_of_other(&answer_key, key, &primary);
		if (claim(&answer_key, &answer, now, 1))
			return VERDICT_DROP_TUPLE_CLASH;
	} else {
		t->saddr = src->egress_ip;
		if (src->egress_ip)
			e = bpf_map_lookup_elem(&egresses, &src->egress_ip);
		if (!e || !e->count)
			return VERDICT_DROP_NO_EGRESS;
		ports = e->count << BLOCK_BITS;
		start = mix(flow_hash(p), bpf_get_prandom_u32()); /* hard to guess (RFC 6056) */
		t->sport = 0;
		make_flow(&primary, &answer, key, t, FLOW_CLIENT, cluster, p->saddr, now);
		key_of_other(&answer_key, key, &primary);
		for (i = 0; i < CLAIM_TRIES; i++) {
			__u32 n = (start % ports + i * PORT_STRIDE) % ports;
			__u32 block = n >> BLOCK_BITS;

			if (block >= MAX_BLOCKS)
				return VERDICT_DROP_INTERNAL;
			t->sport = bpf_htons(e->first[block] + (n & ((1 << BLOCK_BITS) - 1)));
			primary.sport = t->sport;
			answer_key.dport = t->sport;
			err = claim(&answer_key, &answer, now, i >= PRESSURE_AFTER);
			if (!err)
				break;
		}
		if (err)
			return VERDICT_DROP_PORTS_EXHAUSTED;
	}
	err = bpf_map_update_elem(&flows, key, &primary, BPF_NOEXIST);
	if (!err) {
		take_slot(key, now);
		return VERDICT_SENT;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = find_flow(key);
	if (!winner)
		return VERDICT_DROP_FLOWS_FULL;
	t->saddr = winner->saddr;
	t->sport = winner->sport;
	return VERDICT_SENT;
}

/* Ports of a fragmented datagram: the first fragment leaves them for the later ones. */
static __always_inline enum verdict fragment_ports(struct packet *p)
{
	struct fragment_key key = { .saddr = p->saddr, .daddr = p->daddr, .id = p->id, .proto = p->proto };
	struct fragment value = { .sport = p->sport, .dport = p->dport }, *known;

	if (p->fragment == FIRST_FRAGMENT) {
		bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
		return VERDICT_SENT;
	}
	known = bpf_map_lookup_elem(&fragments, &key);
	if (!known)
		return VERDICT_DROP_FRAGMENT;
	p->sport = known->sport;
	p->dport = known->dport;
	return VERDICT_SENT;
}

/* Finds or opens the flow of a packet and says what its tuple is to be. */
static __always_inline enum verdict translate_out(struct __sk_buff *skb, struct packet *p, struct tuple *t, __u16 *node,
						  __u16 *cluster)
{
	struct prefix prefix = { .length = 32, .address = p->daddr };
	__u32 ifindex = skb->ingress_ifindex;
	const struct source *src;
	struct flow_key key;
	struct route *route;
	struct flow *f;

	if (p->fragment) {
		enum verdict v = fragment_ports(p);

		if (v != VERDICT_SENT)
			return v;
	}
	key_of(&key, p, DIRECTION_OUT);
	f = find_flow(&key);
	if (f) {
		__u64 now = now_ns();

		if (f->primary)
			reopen(&key, f, p, now);
		touch(f, p, now);
		t->saddr = f->saddr;
		t->daddr = f->daddr;
		t->sport = f->sport;
		t->dport = f->dport;
		*node = f->node;
		*cluster = f->cluster;
		return VERDICT_SENT;
	}
	route = bpf_map_lookup_elem(&routes, &prefix);
	if (!route)
		return VERDICT_DROP_NO_ROUTE;
	/* Anybody on the node can forge a source; only a pod on its own device, or the node itself, opens flows. */
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	if (!src)
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if ((src->flags & SOURCE_HOST) ? ifindex != 0 : src->ifindex && src->ifindex != ifindex)
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if (!opens_flow(p))
		return VERDICT_DROP_NO_FLOW;
	*node = 0;
	*cluster = route->cluster;
	return open_client_flow(p, &key, src, route->cluster, t);
}

/* Where an edge sends a packet for a remote cluster: to a gateway, or onto the cable if it is the gateway picked. */
struct exit {
	struct hop hop;
	__be16 port;
	__u16 pad;
	__u32 token;
};

static __always_inline enum verdict find_exit(const struct node_settings *s, __u16 cluster, __u32 hash, struct exit *x)
{
	__u32 zero = 0, index, gateway;
	struct gateway_set *g = bpf_map_lookup_elem(&gateways, &zero);
	const struct remote_gateway *r;
	struct cluster *c;
	struct node *n;

	gateway = g ? pick_gateway(g, hash, 0) : 0;
	if (!gateway)
		return VERDICT_DROP_NO_GATEWAY;
	if (s->gateway && gateway == s->node) {
		index = cluster;
		c = bpf_map_lookup_elem(&clusters, &index);
		r = c ? pick_remote(c, hash) : 0;
		if (!r)
			return VERDICT_DROP_NO_GATEWAY;
		x->hop = r->hop;
		x->port = r->port;
		x->token = s->cable_token;
		return VERDICT_SENT;
	}
	n = bpf_map_lookup_elem(&nodes, &gateway);
	if (!n || !n->present)
		return VERDICT_DROP_UNKNOWN_NODE;
	x->hop = n->hop;
	x->port = bpf_htons(OVERLAY_PORT);
	x->token = s->overlay_token;
	return VERDICT_SENT;
}

SEC("tc")
int edge_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	__u16 node = 0, cluster = 0;
	struct packet p = {};
	struct tuple t = {};
	struct exit x = {};
	enum verdict v;
	__u32 hash;
	__u8 flags;

	if (!s || !s->ready)
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_NOT_READY);
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_PROTOCOL);
	v = parse_ipv4(skb, ETH_LEN, &p);
	if (v != VERDICT_SENT)
		return finish(skb, HOOK_EDGE_OUT, v);
	v = translate_out(skb, &p, &t, &node, &cluster);
	if (v != VERDICT_SENT)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (rewrite(skb, &p, &t))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	if (s->mss && (p.tcp_flags & TCP_SYN) && clamp_mss(skb, p.l4, s->mss))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	p.saddr = t.saddr;
	p.daddr = t.daddr;
	p.sport = t.sport;
	p.dport = t.dport;
	hash = flow_hash(&p);
	v = find_exit(s, cluster, hash, &x);
	if (v != VERDICT_SENT)
		return finish(skb, HOOK_EDGE_OUT, v);
	/* An answer tells the far edge which node holds the flow; a request repeats what it was told. */
	flags = p.fragment ? OVERLAY_FRAGMENT : 0;
	count(skb, HOOK_EDGE_OUT, VERDICT_SENT);
	if (push_outer(skb, s, &p, x.hop.address, x.port, x.token, node, flags, hash))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	return send_from_stack(skb, s, &x.hop);
}

/*
 * Nothing enters the stack through pelago0 that did not pass uplink_in, which writes this node's cookie into the VNI:
 * an overlay packet may reach the socket by a device without our program, or from a pod of this node.
 */
SEC("tc")
int edge_in(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct bpf_tunnel_key key = {};

	if (!s || bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) || key.tunnel_id != (s->cookie & 0xffffff))
		return finish(skb, HOOK_EDGE_IN, VERDICT_DROP_UNVERIFIED);
	return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
}
