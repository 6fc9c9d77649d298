// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * The edge. Egress of pelago0: packets that the node's stack routes to a remote prefix are
 * translated, get a gateway and the overlay header, and leave by the uplink. Ingress of pelago0:
 * the check of what enters the stack.
 */
#include "edge.h"
#include "answer.h"
#include "bypass.h"
#include "deliver.h"
#include "mapping.h"
#include "selftest.h"

/*
 * Reports whether a packet of a known flow comes from the device of the flow's local side: a forged
 * source must not affect a connection of another pod. The flow follows its source to another
 * device, as where a bridge was recreated. ICMP errors may come from the node itself, too, and
 * those of a host outside the cluster from a router on the way to it.
 */
static __always_inline int flow_may_send(struct flow *f, const struct packet *p, const struct flow_key *key,
					 __u32 ingress)
{
	const struct source *src;

	if (p->saddr == key->saddr) {
		if (comes_from(f->device, ingress))
			return 1;
		src = source_lookup(key->saddr);
		if (!src || !comes_from(device_of(src), ingress))
			return 0;
		f->device = device_of(src);
		return 1;
	}
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	if (src && (src->flags & SOURCE_HOST) && comes_from(DEVICE_NONE, ingress))
		return 1;
	src = source_lookup(key->saddr);
	return src && (src->flags & SOURCE_EXTERNAL) && comes_from(f->device, ingress);
}

/*
 * How a packet leaves the edge: translated to t, for a cluster and, once known, one of its
 * nodes.
 */
struct translation {
	struct tuple t;
	__u16 node;
	__u16 cluster;
	struct flow_key key;
	struct flow *f; /* none: the flow is yet to be opened */
};

/*
 * Translates by an existing flow. Not inlined, since edge_out has no stack left on kernels before
 * 6.8.
 */
static __noinline enum verdict use_flow_out(struct __sk_buff *skb, const struct node_settings *s,
					    const struct packet *p, struct translation *to, __u64 now)
{
	struct flow *f = to->f;

	if (!f || !flow_may_send(f, p, &to->key, skb->ingress_ifindex))
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if (flow_to_own_vip(&to->key, f, s->cluster))
		return VERDICT_DROP_NO_FLOW; /* the pod's device translates it no more */
	flow_use_out(&to->key, f, p, s, now, &to->t, &to->node, &to->cluster);
	if (f->passed == PASSED_PENDING) {
		struct flow_key other_key;

		flow_key_other(&other_key, &to->key, f);
		passed_record(skb, p, f, flow_find(&other_key));
	}
	return VERDICT_CONTINUE;
}

/* Finds or opens the flow of a packet and fills the translation. */
static __always_inline enum verdict translate_out(struct __sk_buff *skb, const struct node_settings *s,
						  struct packet *p, struct translation *to, __u64 now)
{
	__u32 ingress = skb->ingress_ifindex;
	const struct source *src;
	enum verdict v;

	if (p->fragment == LATER_FRAGMENT) {
		v = fragment_load(p);
		if (v != VERDICT_CONTINUE)
			return v;
	}
	flow_key_of(&to->key, p, DIRECTION_OUT);
	to->f = flow_find(&to->key);
	if (to->f && vip_chooses_again(&to->key, to->f, p, VIP_HAIRPIN) && flow_may_send(to->f, p, &to->key, ingress) &&
	    flow_evict(&to->key))
		to->f = 0;
	if (to->f)
		return use_flow_out(skb, s, p, to, now);
	/*
	 * Only a pod on its own device, the node itself, or a host outside the cluster on its
	 * device may open flows.
	 */
	src = source_lookup(p->saddr);
	if (!src || !comes_from(device_of(src), ingress))
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if (!packet_opens_flow(p) && !mapping_error(p, src))
		return VERDICT_DROP_NO_FLOW;
	if (p->proto == PROTO_SCTP && !src->own_ip)
		return VERDICT_DROP_PROTOCOL;
	if (mapping_applies(p, src)) {
		v = mapping_out(p, &to->key, src, &to->t);
		if (v != VERDICT_CONTINUE)
			return v;
	}
	v = flow_destination(p, &to->t, &to->cluster);
	if (v != VERDICT_CONTINUE || p->error)
		return v;
	return flow_open_client(p, &to->key, src, to->cluster, &to->t);
}

/* Reports whether a dropped packet of a local source may be answered by edge_answer(). */
static __always_inline int edge_answers(enum verdict v)
{
	return v == VERDICT_DROP_NO_FLOW || v == VERDICT_DROP_PORTS_EXHAUSTED || verdict_refuses(v);
}

/*
 * Turns a dropped packet of a local source into its answer. A TCP segment without a flow, for
 * example after the flow table was lost, gets a reset; a packet to a ClusterSetIP without a ready
 * backend, or without that port, a reset or a port unreachable; one whose flow gets no port an
 * ICMP error, unless it is TCP: the sender would give up, though its next SYN may find a port (RFC
 * 5508 REQ-8). All but the first have a common rate limit. Returns 0 if it is answered.
 */
static __noinline int edge_make_answer(struct __sk_buff *skb, const struct packet *p, enum verdict v)
{
	__u32 zero = 0;
	__u64 *full;

	if (!p)
		return -1;
	if (v == VERDICT_DROP_NO_FLOW)
		return !tcp_is_answered(skb, p) || !(p->tcp_flags & TCP_ACK) || tcp_make_reset(skb, p);
	full = bpf_map_lookup_elem(&answers, &zero);
	if (!full || !is_answered(skb, p, v) || !bucket_take(full, now_ns(), answer_interval, answer_burst))
		return -1;
	return make_answer(skb, p, v);
}

/* Drops a packet of a local source. Its answer comes back on pelago0: edge_in accepts the mark. */
static __noinline int edge_answer(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				  enum verdict v)
{
	if (edge_make_answer(skb, p, v))
		return finish(skb, HOOK_EDGE_OUT, v);
	if (bpf_skb_store_bytes(skb, 0, pelago_mac, sizeof(pelago_mac), 0))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	skb->mark = s->cookie;
	count_verdict(skb, HOOK_EDGE_OUT, v);
	return bpf_redirect(s->edge, BPF_F_INGRESS);
}

/* Consumes the datagram of a self-test. Returns 0 for other packets. */
static __always_inline int selftest_end(struct __sk_buff *skb, const struct packet *p)
{
	struct selftest *t = selftest_of(skb, p);

	if (!t)
		return 0;
	t->ingress = skb->ingress_ifindex;
	t->source = p->saddr;
	t->edge = 1;
	return 1;
}

SEC("tc")
int edge_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct translation to = {};
	struct packet p = {};
	__u64 now = now_ns();
	enum verdict v;

	if (!s || !s->ready)
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_NOT_READY);
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_PROTOCOL);
	if (skb->mark == s->probe_mark || skb->mark == probe_clone_mark(s))
		return skb->gso_size ? gso_probe_send(skb, s) : probe_send(skb, s);
	v = parse_skb(skb, ETH_LEN, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (selftest_end(skb, &p)) {
		count_verdict(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
		return ACTION_DROP;
	}
	v = translate_out(skb, s, &p, &to, now);
	if (edge_answers(v))
		return edge_answer(skb, s, &p, v);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (p.fragment == FIRST_FRAGMENT)
		fragment_store(&p);
	return edge_send(skb, s, HOOK_EDGE_OUT, &p, &to.t, to.node, to.cluster, now);
}

/*
 * Forwards or delivers what a pod of this gateway sends to a global IP of this cluster. edge_send()
 * has encapsulated and marked it, so that it is treated as such a packet of any other node.
 */
static __always_inline int hairpin(struct __sk_buff *skb, const struct node_settings *s)
{
	struct rx rx = { .hook = HOOK_HAIRPIN, .peer_node = s->node, .now = now_ns() };
	struct overlay_header *h = ctx_at(skb, HOOK_HAIRPIN, OVERLAY_AT, sizeof(*h));

	if (!h)
		return finish(skb, HOOK_HAIRPIN, VERDICT_DROP_MALFORMED);
	rx.node = overlay_get_node(h);
	rx.flags = h->version_flags & 0x0f;
	skb->mark = 0;
	bpf_skb_change_type(skb, PACKET_HOST); /* for the vxlan receiver: the outer frame has no MAC addresses */
	return rx_packet(skb, s, &rx);
}

/*
 * Accepts only what uplink_in or wire_in verified: decapsulated packets by their mark
 * (deliver_direct() in deliver.h), those from the vxlan receiver by VNI and priority (hand_over()).
 * Pods and host sockets can reach the receiver's UDP socket without passing an uplink, and packets
 * from the network can over a device without our program. The VNI alone proves nothing: a pod can
 * try all 24 bits.
 */
SEC("tc")
int edge_in(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct bpf_tunnel_key key = {};
	struct eth *eth;

	/* The cookie is 0 until the first tables are loaded. */
	if (s && s->cookie && skb->mark == s->cookie) {
		skb->mark = 0; /* not for netfilter and routing */
		return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
	}
	if (s && s->cookie && skb->mark == s->probe_mark)
		return hairpin(skb, s);
	if (!s || !s->cookie || bpf_skb_get_tunnel_key(skb, &key, sizeof(key), 0) ||
	    key.tunnel_id != (s->cookie & 0xffffff))
		return finish(skb, HOOK_EDGE_IN, VERDICT_DROP_UNVERIFIED);
	if (skb->priority != s->probe_mark)
		return finish(skb, HOOK_EDGE_IN, VERDICT_DROP_INJECTED);
	skb->priority = 0;
	eth = ctx_at(skb, HOOK_EDGE_IN, 0, sizeof(*eth) + sizeof(struct ipv4));
	if (eth && eth->src[1] == GSO_PROBE) {
		struct large_probe *large = large_probe_to(bpf_htonl(key.remote_ipv4));

		if (large)
			large->gso_passed++;
		count_verdict(skb, HOOK_EDGE_IN, VERDICT_PROBE);
		return ACTION_DROP;
	}
	if (eth && eth->src[1] == BYPASS_ALLOWED) {
		__be32 pod = ((struct ipv4 *)(eth + 1))->daddr;
		struct endpoint *to = bpf_map_lookup_elem(&endpoints, &pod);

		if (to && to->ifindex)
			return deliver_to_pod(skb, HOOK_EDGE_IN, to);
	}
	return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
}
