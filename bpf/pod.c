// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * A pod's own device, the node's end of its veth pair, where the node's datapath is hybrid or fast. Ingress: packets of
 * known flows, in fast mode new ones too, go into the overlay from here; everything else takes the stack and, if it is for
 * another cluster, edge_out. Egress: what the stack has let pass to the pod.
 */
#include "edge.h"
#include "bypass.h"

/* Reports whether a packet fits into every wire. One that does not gets its answer from the stack. */
static __always_inline int fits_wires(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p)
{
	return s->mss && segment_len(skb, HOOK_POD_OUT, p) <= s->mss + sizeof(struct ipv4) + sizeof(struct tcp);
}

/* Finds the flow of a packet, in fast mode opens it, as far as it may bypass the stack. Returns 0 if it may not. */
static __always_inline int bypass_out(const struct packet *p, enum datapath datapath, const struct node_settings *s,
				      struct tuple *t, __u16 *node, __u16 *cluster)
{
	const struct source *src;
	const struct route *route;
	struct flow_key key;
	struct flow *f;

	flow_key_of(&key, p, DIRECTION_OUT);
	f = flow_find(&key);
	if (f) {
		__u64 now = now_ns();

		if (datapath == DATAPATH_HYBRID && !passed_fresh(f, now))
			return 0;
		flow_use_out(&key, f, p, s, now, t, node, cluster);
		return 1;
	}
	if (datapath != DATAPATH_FAST || !packet_opens_flow(p))
		return 0;
	route = route_lookup(p->daddr);
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	if (!route || !src)
		return 0;
	*node = 0;
	*cluster = route->cluster;
	return flow_open_client(p, &key, src, route->cluster, t) == VERDICT_CONTINUE;
}

SEC("tc")
int pod_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	__u16 node = 0, cluster = 0;
	struct packet p = {};
	struct endpoint *pod;
	struct tuple t = {};
	struct ipv4 *ip;

	if (!s || !s->ready || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	if (parse_skb(skb, ETH_LEN, &p) != VERDICT_CONTINUE)
		return ACTION_NEXT;
	pod = bpf_map_lookup_elem(&endpoints, &p.saddr);
	ip = ctx_at(skb, HOOK_POD_OUT, ETH_LEN, sizeof(*ip));
	if (!pod || pod->ifindex != skb->ifindex || pod->datapath == DATAPATH_STRICT || !ip ||
	    !may_bypass(&p, ip, pod->datapath) || !fits_wires(skb, s, &p) ||
	    !bypass_out(&p, pod->datapath, s, &t, &node, &cluster))
		return ACTION_NEXT;
	ip = ctx_at(skb, HOOK_POD_OUT, ETH_LEN, sizeof(*ip));
	if (!ip)
		return finish(skb, HOOK_POD_OUT, VERDICT_DROP_INTERNAL);
	ttl_decrement(ip);
	return edge_send(skb, s, HOOK_POD_OUT, &p, &t, node, cluster);
}

/* Records for hybrid mode that the stack has let a packet of a flow pass to the pod. */
SEC("tc")
int pod_in(struct __sk_buff *skb)
{
	struct flow_key out_key, in_key;
	struct flow *out, *in;
	struct packet p = {};

	if (skb->protocol != bpf_htons(ETH_P_IP) || parse_skb(skb, ETH_LEN, &p) != VERDICT_CONTINUE || p.error ||
	    p.fragment)
		return ACTION_NEXT;
	out_key = (struct flow_key){
		.saddr = p.daddr,
		.daddr = p.saddr,
		.sport = p.dport,
		.dport = p.sport,
		.proto = p.proto,
		.direction = DIRECTION_OUT,
	};
	out = flow_find(&out_key);
	if (!out)
		return ACTION_NEXT;
	flow_key_other(&in_key, &out_key, out);
	in = flow_find(&in_key);
	if (in && in->passed == PASSED_PENDING)
		passed_record(skb, &p, in, out);
	return ACTION_NEXT;
}
