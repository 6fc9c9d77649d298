/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a local source into the overlay: opening a flow, translating and sending a packet. */
#pragma once
#include "ctx.h"
#include "encap.h"
#include "flow.h"
#include "lb.h"
#include "nat.h"
#include "probe.h"
#include "vip.h"

static __always_inline struct fragment_key fragment_key_of(const struct packet *p)
{
	return (struct fragment_key){ .saddr = p->saddr, .slot = bpf_ntohs(p->id) % FRAGMENT_SLOTS };
}

/* Gives a later fragment the ports of its first one. */
static __always_inline enum verdict fragment_load(struct packet *p)
{
	struct fragment_key key = fragment_key_of(p);
	struct fragment *known = bpf_map_lookup_elem(&fragments2, &key);

	if (!known || known->daddr != p->daddr || known->id != p->id || known->proto != p->proto)
		return VERDICT_DROP_FRAGMENT;
	p->sport = known->sport;
	p->dport = known->dport;
	return VERDICT_CONTINUE;
}

/*
 * Stores the ports of a first fragment for the later ones. Only after the source check: a forged
 * fragment would overwrite or evict the entry of another pod.
 */
static __always_inline void fragment_store(const struct packet *p)
{
	struct fragment_key key = fragment_key_of(p);
	struct fragment value = {
		.daddr = p->daddr, .id = p->id, .proto = p->proto, .sport = p->sport, .dport = p->dport
	};

	bpf_map_update_elem(&fragments2, &key, &value, BPF_ANY);
}

/*
 * At 90 % of the ports in use one flow in a million finds none within this many tries, at 98 % one
 * in thirteen: the daemon requests more blocks long before (README, Decisions).
 */
#define CLAIM_TRIES 128
#define PRESSURE_AFTER 16

/*
 * Primes larger than MAX_BLOCKS: a step by any of them visits every port of n blocks once. Each
 * flow draws one; with a single step, runs of ports in use would grow into clusters.
 */
static const __u16 strides[16] = {
	7919, 7927, 7933, 7937, 7949, 7951, 7963, 7993, 8009, 8011, 8017, 8039, 8053, 8059, 8069, 8081,
};

/*
 * The ports of each block that a source may use, its first ones: 15/16 of them if it has more flows
 * than an eighth of the node's ports of its egress IP, 7/8 with more than half of them. The rest is
 * for sources with fewer flows, so no source takes all ports towards a destination (RFC 6888
 * REQ-4). Mappings have a limit of their own (mapping_find()).
 */
#define BLOCK_PORTS (1 << BLOCK_BITS)

static __always_inline __u32 block_ports(const struct egress *e, __s64 flows)
{
	__s64 ports = (__s64)e->count << BLOCK_BITS;
	/* 0 or 1 without a branch, after which the verifier would explore the rest once per constant */
	__u32 medium = (__u64)(ports - flows * 8) >> 63, heavy = (__u64)(ports - flows * 2) >> 63;

	return BLOCK_PORTS - BLOCK_PORTS / 16 * (medium + heavy);
}

/*
 * Takes the address by value: in flow_open_client() the verifier rejects a pointer into an
 * argument.
 */
static __always_inline struct egress *egress_of(__be32 address)
{
	return bpf_map_lookup_elem(&egresses, &address);
}

/* Reports whether a port, in host order, is in one of the blocks: binary search. */
__noinline int egress_has(const struct egress *e, __u32 port)
{
	__u32 at = 0, first = port >> BLOCK_BITS << BLOCK_BITS;

	if (!e || !e->count)
		return 0;
	for (__u32 step = 128; step; step /= 2) {
		__u32 n = at + step;

		asm volatile("" : "+r"(n)); /* keeps the comparison with the bound */
		if (n < MAX_BLOCKS && n < e->count && e->first[n] <= first)
			at = n;
	}
	return at < MAX_BLOCKS && e->first[at] == first;
}
_Static_assert(MAX_BLOCKS <= 256, "the search finds 256 blocks");

/*
 * Opens the flow of a local source to the destination in t, which becomes the tuple after
 * translation: claims the answer entry, then inserts the primary one. Two CPUs with packets of the
 * same new flow may both claim an answer entry: the one that fails to insert the primary entry
 * removes its answer entry and uses the winner's translation. A source already in t is that of a
 * mapping. With the key of a mapping, it opens the mapping.
 */
__noinline enum verdict flow_open_client(const struct packet *p, const struct flow_key *of, const struct source *src,
					 __u16 cluster, struct tuple *t)
{
	struct flow_key answer_key __attribute__((aligned(8))); /* before, a struct usage_scratch */
	struct flow_key key;
	struct flow f, *winner;
	struct egress *e = 0;
	__u64 now = now_ns();
	__u32 size, ports, start, stride, i;
	__s64 count;
	int err = -1;

	if (!p || !of || !src || !t)
		return VERDICT_DROP_INTERNAL;
	key = *of;
	flow_make_answer(&f, &key, FLOW_CLIENT, cluster, device_of(src), now);
	f.tcp = external_mark(src);
	count = usage_count(&key, usage_of_client(&key, f.tcp), (void *)&answer_key);
	if (!usage_permits(usage_of_client(&key, f.tcp), count, now, (void *)&answer_key))
		return VERDICT_DROP_QUOTA;
	if (t->saddr) {
		f.tcp |= FLOW_MAPPED;
	} else if (src->own_ip) {
		t->saddr = src->own_ip;
		t->sport = p->sport;
	}
	if (t->saddr) {
		flow_key_answer(&answer_key, &key, t);
		err = flow_claim(&answer_key, &f, now, 1);
		if (err)
			return flow_failed(err, VERDICT_DROP_TUPLE_CLASH);
	} else {
		t->saddr = src->egress_ip;
		if (src->egress_ip)
			e = egress_of(src->egress_ip);
		if (!e || !e->count)
			return VERDICT_DROP_NO_EGRESS;
		size = block_ports(e, key.direction & DIRECTION_MAPPING ? 0 : count);
		ports = e->count << BLOCK_BITS;
		start = hash_mix(flow_hash(p), bpf_get_prandom_u32()); /* hard to guess (RFC 6056) */
		stride = strides[start >> 28];
		t->sport = 0;
		flow_key_answer(&answer_key, &key, t);
		/* The port that the client has chosen first: easier to follow in captures. */
		if ((bpf_ntohs(p->sport) & (BLOCK_PORTS - 1)) < size && egress_has(e, bpf_ntohs(p->sport))) {
			t->sport = p->sport;
			answer_key.dport = p->sport;
			err = flow_claim(&answer_key, &f, now, 0);
		}
		for (i = 0; err && i < CLAIM_TRIES; i++) {
			__u32 n = (start % ports + i * stride) % ports;
			__u32 block = n >> BLOCK_BITS;

			if (block >= MAX_BLOCKS)
				return VERDICT_DROP_INTERNAL;
			/* Scaled, so that several n give one port: a division takes more verifier states. */
			t->sport = bpf_htons(e->first[block] + ((n & (BLOCK_PORTS - 1)) * size >> BLOCK_BITS));
			answer_key.dport = t->sport;
			err = flow_claim(&answer_key, &f, now, i >= PRESSURE_AFTER);
			if (err != -EEXIST)
				break;
		}
		if (err)
			return flow_failed(err, VERDICT_DROP_PORTS_EXHAUSTED);
	}
	flow_make_primary(&f, t);
	err = flow_claim(&key, &f, now, 0);
	if (!err) {
		usage_add(&key, usage_of_client(&key, f.tcp), 1, (void *)&answer_key);
		flow_take_slot(&key, now);
		return VERDICT_CONTINUE;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = flow_find(&key);
	if (!winner)
		return flow_failed(err, VERDICT_DROP_TUPLE_CLASH);
	t->saddr = winner->saddr;
	t->daddr = winner->daddr;
	t->sport = winner->sport;
	return VERDICT_CONTINUE;
}

/* Reports whether an address is one of the node itself. */
static __always_inline int source_is_host(const struct packet *p)
{
	const struct source *src = bpf_map_lookup_elem(&sources, &p->saddr);

	return src && (src->flags & SOURCE_HOST);
}

/* Where a packet that opens a flow goes: the destination in t, and the remote cluster. */
static __always_inline enum verdict flow_destination(const struct packet *p, struct tuple *t, __u16 *cluster)
{
	const struct route *route;

	t->daddr = p->daddr;
	t->dport = p->dport;
	if (is_vip(p->daddr)) {
		struct vip_target to = {};
		enum verdict v = host_netns && source_is_host(p) ? vip_pick(p, 0, &to) : VERDICT_DROP_NO_BACKEND;

		/* This cluster's share of what the node itself sends has left by a socket (socket.c). */
		if (v == VERDICT_DROP_NO_BACKEND)
			v = vip_pick(p, VIP_HAIRPIN, &to);
		t->daddr = to.address;
		*cluster = to.cluster;
		return v;
	}
	route = route_lookup(p->daddr);
	if (!route)
		return VERDICT_DROP_NO_ROUTE;
	*cluster = route->cluster;
	return VERDICT_CONTINUE;
}

/*
 * Refreshes the flow of a packet and fills the tuple t, the far node and the cluster. f: the entry
 * of key.
 */
static __always_inline void flow_use_out(const struct flow_key *key, struct flow *f, const struct packet *p,
					 const struct node_settings *s, __u64 now, struct tuple *t, __u16 *node,
					 __u16 *cluster)
{
	struct flow *other = 0;

	if (flow_reopens(key, f, p, &other)) {
		/*
		 * The flow starts over with the same translation; the far gateway picks a node
		 * again.
		 */
		f->tcp &= FLOW_EXTERNAL; /* until its removal, which subtracts it from its counter */
		f->seen = now;
		f->node = 0;
		f->passed = 0;
		if (other) {
			other->tcp &= FLOW_EXTERNAL;
			other->node = 0;
			other->passed = 0;
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
}

/*
 * Translates a packet to t and sends it into the overlay. node: of the header; cluster: the remote
 * one, or this one's for its own global IPs (hairpin, RFC 4787 REQ-9): a gateway of this cluster
 * then finds the node.
 */
static __always_inline int edge_send(struct __sk_buff *skb, const struct node_settings *s, enum hook hook,
				     struct packet *p, const struct tuple *t, __u16 node, __u16 cluster, __u64 now)
{
	__u32 client = encap_client(p->saddr), hash;
	struct encap to = {};
	enum verdict v;

	if (rewrite(skb, p, t, DIRECTION_OUT))
		return finish(skb, hook, VERDICT_DROP_INTERNAL);
	if (s->mss && (p->tcp_flags & TCP_SYN) && clamp_mss(skb, p->l4, s->mss))
		return finish(skb, hook, VERDICT_DROP_INTERNAL);
	p->saddr = t->saddr;
	p->daddr = t->daddr;
	p->sport = t->sport;
	p->dport = t->dport;
	hash = flow_hash(p);
	v = encap_find_exit(s, cluster, hash, now, &to);
	if (v != VERDICT_CONTINUE)
		return finish(skb, hook, v);
	if ((!skb->gso_size && skb->len - ETH_LEN + ENCAP_LEN > IPV4_MAX) || !encap_fits(skb, hook, &to, ENCAP_LEN))
		return finish(skb, hook, VERDICT_DROP_TOO_BIG);
	if (encap_push(skb, p, &to, node,
		       (p->fragment ? OVERLAY_FRAGMENT : 0) | (cluster == s->cluster ? OVERLAY_SWITCH : 0), hash,
		       client))
		return finish(skb, hook, VERDICT_DROP_INTERNAL);
	count_verdict(skb, hook, VERDICT_SENT);
	path_take(skb, s, &to, now);
	return hook == HOOK_EDGE_OUT ? encap_send_from_stack(skb, s, &to) : encap_send(skb, s, &to);
}
