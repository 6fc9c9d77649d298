/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The edge on its way in: from the overlay or, on a gateway, the cable to a pod of this node. */
#pragma once
#include "admit.h"
#include "flow.h"
#include "nat.h"

#define TCP_FLAGS_WORD 12

/*
 * Answers a TCP segment for which no flow exists with a reset (RFC 9293 3.10.7.1), so that the sender does not wait for
 * its timers. Addresses and ports change places, which leaves every checksum as it is; the payload stays on, which a
 * reset may have. Segments that carry no ACK, and GSO packets, are only dropped: the sender tries again.
 */
static __always_inline int reset(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				 const struct arrival *a, struct course *c)
{
	__u32 check = p->l4 + __builtin_offsetof(struct tcp, check);
	__be32 addresses[2] = { p->daddr, p->saddr }, seq, ack, none = 0;
	__be16 ports[2] = { p->dport, p->sport }, old, new;
	const struct route *route;

	if (p->proto != PROTO_TCP || p->fragment || p->error || (p->tcp_flags & TCP_RST) || !(p->tcp_flags & TCP_ACK) ||
	    skb->gso_segs > 1)
		return finish(skb, a->hook, VERDICT_DROP_NO_FLOW);
	route = route_of(p->saddr);
	if (!route || find_exit(s, route->cluster, flow_hash(p), &c->to) != VERDICT_SENT)
		return finish(skb, a->hook, VERDICT_DROP_NO_FLOW);
	if (bpf_skb_load_bytes(skb, p->l4 + 4, &seq, 4) || bpf_skb_load_bytes(skb, p->l4 + 8, &ack, 4) ||
	    bpf_skb_load_bytes(skb, p->l4 + TCP_FLAGS_WORD, &old, 2))
		return finish(skb, a->hook, VERDICT_DROP_INTERNAL);
	new = (old & bpf_htons(0xf000)) | bpf_htons(TCP_RST);
	if (bpf_skb_store_bytes(skb, p->l3 + IPV4_SADDR, addresses, sizeof(addresses), 0) ||
	    bpf_skb_store_bytes(skb, p->l4, ports, sizeof(ports), 0) || bpf_l4_csum_replace(skb, check, seq, ack, 4) ||
	    bpf_l4_csum_replace(skb, check, ack, none, 4) || bpf_l4_csum_replace(skb, check, old, new, 2) ||
	    bpf_skb_store_bytes(skb, p->l4 + 4, &ack, 4, 0) || bpf_skb_store_bytes(skb, p->l4 + 8, &none, 4, 0) ||
	    bpf_skb_store_bytes(skb, p->l4 + TCP_FLAGS_WORD, &new, 2, 0))
		return finish(skb, a->hook, VERDICT_DROP_INTERNAL);
	c->node = 0;
	c->flags = 0;
	return switch_to(skb, s, a, c, VERDICT_DROP_NO_FLOW);
}

#define SHOWN_PORT_TRIES 16

/* The device of the pod, or node, with that address. */
static __always_inline __u32 device_at(__be32 address)
{
	const struct source *local = bpf_map_lookup_elem(&sources, &address);

	return local ? device_of(local) : DEVICE_ANY;
}

/*
 * Opens the flow of a remote client to a pod of this node. Two flows may come to show the pod one tuple (two VIPs on
 * one pod port, one client port): the later one is shown under another source port.
 */
__noinline enum verdict open_server_flow(const struct packet *p, const struct flow_key *of, const struct backend *b,
					 __u16 cluster, struct tuple *t)
{
	struct flow_key key, answer_key;
	struct flow f, *winner;
	__u64 now = now_ns();
	int err = -1;

	if (!p || !of || !b || !t)
		return VERDICT_DROP_INTERNAL;
	key = *of;
	make_answer(&f, &key, FLOW_SERVER, cluster, device_at(b->address), now);
	t->saddr = p->saddr;
	t->daddr = b->address;
	t->sport = p->sport;
	t->dport = b->port;
	key_of_answer(&answer_key, &key, t);
	for (int i = 0; i < SHOWN_PORT_TRIES; i++) {
		if (i) {
			t->sport = bpf_htons(1024 + mix(flow_hash(p), i) % (65536 - 1024));
			answer_key.dport = t->sport;
		}
		err = claim(&answer_key, &f, now, 1);
		if (err != -EEXIST)
			break;
	}
	if (err)
		return err == -EEXIST ? VERDICT_DROP_TUPLE_CLASH : VERDICT_DROP_FLOWS_FULL;
	make_primary(&f, t);
	if (!insert(&key, &f, now)) {
		take_slot(&key, now);
		return VERDICT_DELIVERED;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = find_flow(&key);
	if (!winner)
		return VERDICT_DROP_FLOWS_FULL;
	t->daddr = winner->daddr;
	t->sport = winner->sport;
	t->dport = winner->dport;
	return VERDICT_DELIVERED;
}

/* The index of the far node, told by an answer: kept where the next request looks for it. */
static __always_inline void learn_node(const struct flow_key *key, struct flow *f, __u16 node)
{
	struct flow_key primary_key;
	struct flow *primary;

	if (!node || f->role != FLOW_CLIENT || f->node == node)
		return;
	f->node = node;
	key_of_other(&primary_key, key, f);
	primary = find_flow(&primary_key);
	if (primary)
		primary->node = node;
}

/* What hand_over() writes in place of the overlay header and the inner Ethernet header. */
struct handed_over {
	struct overlay_header overlay;
	struct eth eth;
};
ASSERT_SIZE(struct handed_over, 22);

/*
 * Hands a translated packet to the kernel's vxlan receiver, with the proof for edge_in: the cookie's low 24 bits as VNI,
 * and all of it as skb->priority. The kernel clears that field when a packet leaves a pod by a veth pair, does not touch
 * it on the way to a local socket and through the receiver, and no CNI uses it there. (skb->mark is no such place:
 * kube-proxy and Calico match and clear bits of it on the way, and policy routing selects by it.) The source MAC address
 * keeps GRO behind the receiver from merging a packet without the proof with one that has it.
 */
static __always_inline int hand_over(struct __sk_buff *skb, const struct node_settings *s, const struct arrival *a)
{
	__be16 port = bpf_htons(OVERLAY_PORT);
	struct handed_over h = {};

	h.overlay.vxlan_flags = OVERLAY_VNI_FLAG;
	h.overlay.type = s->cookie >> 16;
	h.overlay.node[0] = s->cookie >> 8;
	h.overlay.node[1] = s->cookie;
	__builtin_memcpy(h.eth.dst, pelago_mac, sizeof(h.eth.dst));
	h.eth.src[0] = 0x02;
	__builtin_memcpy(&h.eth.src[2], &s->probe_mark, sizeof(s->probe_mark));
	h.eth.proto = bpf_htons(ETH_P_IP);
	if (bpf_skb_store_bytes(skb, OVERLAY_AT, &h, sizeof(h), BPF_F_RECOMPUTE_CSUM))
		return finish(skb, a->hook, VERDICT_DROP_INTERNAL);
	if (a->from_cable &&
	    bpf_skb_store_bytes(skb, ETH_LEN + sizeof(struct ipv4) + 2, &port, 2, BPF_F_RECOMPUTE_CSUM))
		return finish(skb, a->hook, VERDICT_DROP_INTERNAL);
	skb->priority = s->cookie;
	return finish(skb, a->hook, VERDICT_DELIVERED);
}

/*
 * A new flow for a service that has no ready backend here, because this node's view and the picking gateway's differ or
 * a sticky index is out of date: it goes once to another node. A gateway picks that itself.
 */
static __always_inline int pass_on(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				   const struct arrival *a, const struct service_key *key,
				   const struct service *service, struct course *c)
{
	enum verdict v = VERDICT_BOUNCED;
	__u32 node;

	if (!s->gateway) {
		v = bounce(s, p, a, VERDICT_DROP_NO_BACKEND, c);
		return v == VERDICT_BOUNCED ? switch_to(skb, s, a, c, v) : finish(skb, a->hook, v);
	}
	node = (a->flags & OVERLAY_BOUNCED) ? 0 : pick_node(key, service, service_hash(service, p, p->saddr), s->node);
	if (!to_node(s, node, &c->to))
		return finish(skb, a->hook, VERDICT_DROP_NO_BACKEND);
	c->node = 0;
	c->flags = (a->flags & ~OVERLAY_SWITCH) | OVERLAY_BOUNCED;
	return switch_to(skb, s, a, c, v);
}

/* The edge on its way in. What it passes on or answers goes by *c. */
static __always_inline int deliver(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				   const struct arrival *a, struct course *c)
{
	struct flow *f, *other = 0;
	struct backend pod = {};
	struct tuple t = {};
	struct flow_key key;
	const struct route *route;
	struct global *g;
	enum verdict v;

	key_of(&key, p, DIRECTION_IN);
	f = find_flow(&key);
	/* A new connection on the tuple of one that is over: the backend of then may no longer be one. */
	if (f && f->role == FLOW_SERVER && reopens(&key, f, p, &other) && remove_flow(&key, f))
		f = 0;
	if (f) {
		touch(f, p, now_ns());
		learn_node(&key, f, a->node);
		t.saddr = f->saddr;
		t.daddr = f->daddr;
		t.sport = f->sport;
		t.dport = f->dport;
		goto translated;
	}
	g = bpf_map_lookup_elem(&globals, &p->daddr);
	if (!g)
		return finish(skb, a->hook, VERDICT_DROP_NOT_OWN);
	if (!opens_flow(p))
		return reset(skb, s, p, a, c);
	route = route_of(p->saddr);
	if (!route)
		return finish(skb, a->hook, VERDICT_DROP_SPOOFED_SOURCE);
	if (g->kind == GLOBAL_POD) {
		if (!g->pod)
			return finish(skb, a->hook, VERDICT_DROP_NO_BACKEND);
		pod.address = g->pod;
		pod.port = p->dport;
	} else if (g->kind == GLOBAL_SERVICE) {
		struct service_key service_key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &service_key);
		const struct backend *b;

		if (!service)
			return finish(skb, a->hook, VERDICT_DROP_NO_SERVICE);
		b = pick_backend(&service_key, service, service_hash(service, p, p->saddr));
		if (!b)
			return pass_on(skb, s, p, a, &service_key, service, c);
		pod = *b;
	} else {
		return finish(skb, a->hook, VERDICT_DROP_NO_FLOW);
	}
	v = open_server_flow(p, &key, &pod, route->cluster, &t);
	if (v != VERDICT_DELIVERED)
		return finish(skb, a->hook, v);
translated:
	if (rewrite(skb, p, &t, DIRECTION_IN))
		return finish(skb, a->hook, VERDICT_DROP_INTERNAL);
	return hand_over(skb, s, a);
}
