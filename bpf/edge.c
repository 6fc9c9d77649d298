// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * The edge. Egress of pelago0: packets that the node's stack routes to a remote prefix are translated, get a gateway
 * and the overlay header, and leave by the uplink. Ingress of pelago0: the check of what enters the stack.
 */
#include "edge.h"
#include "bypass.h"

/*
 * Reports whether a packet of a known flow comes from the device of the flow's local side: a forged source must not
 * affect a connection of another pod. ICMP errors may come from the node itself, too, and those of a host beside the
 * cluster from a router on the way to it.
 */
static __always_inline int flow_may_send(const struct flow *f, const struct packet *p, const struct flow_key *key,
					 __u32 ingress)
{
	const struct source *src;

	if (p->saddr == key->saddr)
		return comes_from(f->device, ingress);
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	if (src && (src->flags & SOURCE_HOST) && comes_from(DEVICE_NONE, ingress))
		return 1;
	src = source_lookup(key->saddr);
	return src && (src->flags & SOURCE_EXTERNAL) && comes_from(f->device, ingress);
}

/* Finds or opens the flow of a packet and fills the tuple t, the far node and the cluster. */
static __always_inline enum verdict translate_out(struct __sk_buff *skb, const struct node_settings *s,
						  struct packet *p, struct tuple *t, __u16 *node, __u16 *cluster)
{
	struct flow *f;
	__u32 ingress = skb->ingress_ifindex;
	const struct source *src;
	struct flow_key key;
	enum verdict v;

	if (p->fragment == LATER_FRAGMENT) {
		v = fragment_load(p);
		if (v != VERDICT_CONTINUE)
			return v;
	}
	flow_key_of(&key, p, DIRECTION_OUT);
	f = flow_find(&key);
	if (f && vip_chooses_again(&key, f, p) && flow_may_send(f, p, &key, ingress) && flow_evict(&key))
		f = 0;
	if (f) {
		__u64 now = now_ns();

		if (!flow_may_send(f, p, &key, ingress))
			return VERDICT_DROP_UNKNOWN_SOURCE;
		if (f->cluster == s->cluster)
			return VERDICT_DROP_NO_FLOW; /* the pod's device translates it no more */
		flow_use_out(&key, f, p, s, now, t, node, cluster);
		if (f->passed == PASSED_PENDING) {
			struct flow_key other_key;

			flow_key_other(&other_key, &key, f);
			passed_record(skb, p, f, flow_find(&other_key));
		}
		return VERDICT_CONTINUE;
	}
	/* Only a pod on its own device, the node itself, or a host beside the cluster on its device may open flows. */
	src = source_lookup(p->saddr);
	if (!src || !comes_from(device_of(src), ingress))
		return VERDICT_DROP_UNKNOWN_SOURCE;
	if (!packet_opens_flow(p))
		return VERDICT_DROP_NO_FLOW;
	v = flow_destination(p, t, cluster);
	if (v != VERDICT_CONTINUE)
		return v;
	*node = 0;
	return flow_open_client(p, &key, src, *cluster, t);
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
	struct packet p = {};
	struct tuple t = {};
	enum verdict v;

	if (!s || !s->ready)
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_NOT_READY);
	if (skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_PROTOCOL);
	if (skb->mark == s->probe_mark || skb->mark == probe_clone_mark(s))
		return probe_send(skb, s);
	v = parse_skb(skb, ETH_LEN, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	v = translate_out(skb, s, &p, &t, &node, &cluster);
	if (v == VERDICT_DROP_NO_FLOW)
		return edge_reset(skb, s, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_EDGE_OUT, v);
	if (p.fragment == FIRST_FRAGMENT)
		fragment_store(&p);
	return edge_send(skb, s, HOOK_EDGE_OUT, &p, &t, node, cluster);
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
	struct eth *eth;

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
	eth = ctx_at(skb, HOOK_EDGE_IN, 0, sizeof(*eth) + sizeof(struct ipv4));
	if (eth && eth->src[1] == BYPASS_ALLOWED) {
		__be32 pod = ((struct ipv4 *)(eth + 1))->daddr;
		struct endpoint *to = bpf_map_lookup_elem(&endpoints, &pod);

		if (to && to->ifindex)
			return deliver_to_pod(skb, HOOK_EDGE_IN, to);
	}
	return finish(skb, HOOK_EDGE_IN, VERDICT_DELIVERED);
}
