// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * The edge. Egress of pelago0: packets that the node's stack routes to a remote prefix are translated, get a gateway
 * and the overlay header, and leave by the uplink. Ingress of pelago0: the check of what enters the stack.
 */
#include "ctx.h"
#include "flow.h"
#include "lb.h"
#include "nat.h"
#include "encap.h"
#include "probe.h"

/*
 * At 90 % of the ports in use one flow in a million finds none within this many tries, at 98 % one in thirteen: the
 * daemon asks for more blocks long before (README, Decisions).
 */
#define CLAIM_TRIES 128
#define PRESSURE_AFTER 16

/*
 * Primes larger than MAX_BLOCKS: a step by any of them visits every port of n blocks once. Each flow draws one; with
 * a single step, runs of ports in use would grow into clusters.
 */
static const __u16 strides[16] = {
	7919, 7927, 7933, 7937, 7949, 7951, 7963, 7993, 8009, 8011, 8017, 8039, 8053, 8059, 8069, 8081,
};

/* By value: the verifier of flow_open_client() accepts no pointer into its arguments. */
static __always_inline struct egress *egress_of(__be32 address)
{
	return bpf_map_lookup_elem(&egresses, &address);
}

/*
 * Opens the flow of a local source: claims the answer entry, then inserts the primary one. CPUs with packets of one
 * new flow may both claim an answer: the one that loses the primary removes its own and takes the winner's
 * translation.
 */
__noinline enum verdict flow_open_client(const struct packet *p, const struct flow_key *of, const struct source *src,
					 __u16 cluster, struct tuple *t)
{
	struct flow_key answer_key __attribute__((aligned(8))); /* before, a struct usage_scratch */
	struct flow_key key;
	struct flow f, *winner;
	struct egress *e = 0;
	__u64 now = now_ns();
	__u32 ports, start, stride, i;
	int err = -1;

	if (!p || !of || !src || !t)
		return VERDICT_DROP_INTERNAL;
	key = *of;
	if (usage_exceeded(&key, FLOW_CLIENT, cluster, (void *)&answer_key))
		return VERDICT_DROP_QUOTA;
	flow_make_answer(&f, &key, FLOW_CLIENT, cluster, device_of(src), now);
	t->daddr = p->daddr;
	t->dport = p->dport;
	if (src->own_ip) {
		t->saddr = src->own_ip;
		t->sport = p->sport;
		flow_key_answer(&answer_key, &key, t);
		err = flow_claim(&answer_key, &f, now, 1);
		if (err)
			return err == -EEXIST ? VERDICT_DROP_TUPLE_CLASH : VERDICT_DROP_FLOWS_FULL;
	} else {
		t->saddr = src->egress_ip;
		if (src->egress_ip)
			e = egress_of(src->egress_ip);
		if (!e || !e->count)
			return VERDICT_DROP_NO_EGRESS;
		ports = e->count << BLOCK_BITS;
		start = hash_mix(flow_hash(p), bpf_get_prandom_u32()); /* hard to guess (RFC 6056) */
		stride = strides[start >> 28];
		t->sport = 0;
		flow_key_answer(&answer_key, &key, t);
		for (i = 0; i < CLAIM_TRIES; i++) {
			__u32 n = (start % ports + i * stride) % ports;
			__u32 block = n >> BLOCK_BITS;

			if (block >= MAX_BLOCKS)
				return VERDICT_DROP_INTERNAL;
			t->sport = bpf_htons(e->first[block] + (n & ((1 << BLOCK_BITS) - 1)));
			answer_key.dport = t->sport;
			err = flow_claim(&answer_key, &f, now, i >= PRESSURE_AFTER);
			if (err != -EEXIST)
				break;
		}
		if (err)
			return err == -EEXIST ? VERDICT_DROP_PORTS_EXHAUSTED : VERDICT_DROP_FLOWS_FULL;
	}
	flow_make_primary(&f, t);
	if (!flow_insert(&key, &f, now)) {
		usage_add(&key, FLOW_CLIENT, cluster, 1, (void *)&answer_key);
		flow_take_slot(&key, now);
		return VERDICT_CONTINUE;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = flow_find(&key);
	if (!winner)
		return VERDICT_DROP_FLOWS_FULL;
	t->saddr = winner->saddr;
	t->sport = winner->sport;
	return VERDICT_CONTINUE;
}

static __always_inline struct fragment_key fragment_key_of(const struct packet *p)
{
	return (struct fragment_key){ .saddr = p->saddr, .daddr = p->daddr, .id = p->id, .proto = p->proto };
}

/* Gives a later fragment the ports of its first one. */
static __always_inline enum verdict fragment_load(struct packet *p)
{
	struct fragment_key key = fragment_key_of(p);
	struct fragment *known = bpf_map_lookup_elem(&fragments, &key);

	if (!known)
		return VERDICT_DROP_FRAGMENT;
	p->sport = known->sport;
	p->dport = known->dport;
	return VERDICT_CONTINUE;
}

/*
 * Stores the ports of a first fragment for the later ones. Only after the source check: a forged fragment would
 * overwrite or evict the entry of another pod.
 */
static __always_inline void fragment_store(const struct packet *p)
{
	struct fragment_key key = fragment_key_of(p);
	struct fragment value = { .sport = p->sport, .dport = p->dport };

	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/*
 * Reports whether a packet of a known flow comes from the device of the flow's local side: a forged source must not
 * affect a connection of another pod. ICMP errors may come from the node itself, too.
 */
static __always_inline int flow_may_send(const struct flow *f, const struct packet *p, const struct flow_key *key,
					 __u32 ingress)
{
	const struct source *src;

	if (p->saddr == key->saddr)
		return comes_from(f->device, ingress);
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	return src && (src->flags & SOURCE_HOST) && comes_from(DEVICE_NONE, ingress);
}

/* Finds or opens the flow of a packet and fills the tuple t, the far node and the cluster. */
static __always_inline enum verdict translate_out(const struct node_settings *s, __u32 ingress, struct packet *p,
						  struct tuple *t, __u16 *node, __u16 *cluster)
{
	struct flow *f, *other = 0;
	const struct source *src;
	struct flow_key key;
	const struct route *route;

	if (p->fragment == LATER_FRAGMENT) {
		enum verdict v = fragment_load(p);

		if (v != VERDICT_CONTINUE)
			return v;
	}
	flow_key_of(&key, p, DIRECTION_OUT);
	f = flow_find(&key);
	if (f) {
		__u64 now = now_ns();

		if (!flow_may_send(f, p, &key, ingress))
			return VERDICT_DROP_UNKNOWN_SOURCE;
		if (flow_reopens(&key, f, p, &other)) {
			/* The flow starts over with the same translation; the far gateway picks a node again. */
			f->tcp = 0;
			f->seen = now;
			f->node = 0;
			if (other) {
				other->tcp = 0;
				other->node = 0;
			}
		}
		flow_touch(f, p, now);
		t->saddr = f->saddr;
		t->daddr = f->daddr;
		t->sport = f->sport;
		t->dport = f->dport;
		/* An answer carries this node's index; a request carries the index learnt from answers. */
		*node = f->role == FLOW_SERVER ? s->node : f->node;
		*cluster = f->cluster;
		return VERDICT_CONTINUE;
	}
	route = route_lookup(p->daddr);
	if (!route)
		return VERDICT_DROP_NO_ROUTE;
	/* Only a pod on its own device, or the node itself, may open flows. */
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	if (!src || !comes_from(device_of(src), ingress))
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if (!packet_opens_flow(p))
		return VERDICT_DROP_NO_FLOW;
	*node = 0;
	*cluster = route->cluster;
	return flow_open_client(p, &key, src, route->cluster, t);
}

/*
 * Answers a TCP segment of a local source without a flow, for example after the flow table was lost: a reset comes back
 * on pelago0. edge_in accepts it by its mark.
 */
static __always_inline int edge_reset(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p)
{
	if (!tcp_is_answered(skb, p))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_NO_FLOW);
	if (tcp_make_reset(skb, p) || bpf_skb_store_bytes(skb, 0, pelago_mac, sizeof(pelago_mac), 0))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	skb->mark = s->cookie;
	count_verdict(skb, HOOK_EDGE_OUT, VERDICT_DROP_NO_FLOW);
	return bpf_redirect(s->edge, BPF_F_INGRESS);
}

SEC("tc")
int edge_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	__u16 node = 0, cluster = 0;
	struct encap to = {};
	struct packet p = {};
	struct tuple t = {};
	enum verdict v;
	__u32 hash;

	if (!s || !s->ready)
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_NOT_READY);
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_PROTOCOL);
	if (skb->mark == s->probe_mark || skb->mark == probe_clone_mark(s))
		return probe_send(skb, s);
	v = parse_skb(skb, ETH_LEN, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	v = translate_out(s, skb->ingress_ifindex, &p, &t, &node, &cluster);
	if (v == VERDICT_DROP_NO_FLOW)
		return edge_reset(skb, s, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (p.fragment == FIRST_FRAGMENT)
		fragment_store(&p);
	if (rewrite(skb, &p, &t, DIRECTION_OUT))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	if (s->mss && (p.tcp_flags & TCP_SYN) && clamp_mss(skb, p.l4, s->mss))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	p.saddr = t.saddr;
	p.daddr = t.daddr;
	p.sport = t.sport;
	p.dport = t.dport;
	hash = flow_hash(&p);
	v = encap_find_exit(s, cluster, hash, &to);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (skb->len - ETH_LEN + ENCAP_LEN > IPV4_MAX || !encap_fits(skb, HOOK_EDGE_OUT, &to, ENCAP_LEN))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_TOO_BIG);
	if (encap_push(skb, &p, &to, node, p.fragment ? OVERLAY_FRAGMENT : 0, hash))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	count_verdict(skb, HOOK_EDGE_OUT, VERDICT_SENT);
	path_take(skb, s, &to);
	return encap_send_from_stack(skb, s, &to);
}

/*
 * Accepts only what uplink_in or wire_in verified: decapsulated packets by their mark (deliver_direct() in deliver.h),
 * those of the vxlan receiver by VNI and priority (hand_over()). A pod or a host socket reaches the receiver's UDP socket
 * without passing an uplink, a packet from the network by a device without our program. The VNI alone is no proof: a pod
 * can try all 24 bits.
 */
SEC("tc")
int edge_in(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct bpf_tunnel_key key = {};

	/* The cookie is 0 until the first tables are loaded. */
	if (s && s->cookie && skb->mark == s->cookie) {
		skb->mark = 0; /* not for netfilter and routing */
		return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
	}
	if (!s || !s->cookie || bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) ||
	    key.tunnel_id != (s->cookie & 0xffffff))
		return finish(skb, HOOK_EDGE_IN, VERDICT_DROP_UNVERIFIED);
	if (skb->priority != s->probe_mark)
		return finish(skb, HOOK_EDGE_IN, VERDICT_DROP_INJECTED);
	skb->priority = 0;
	return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
}
