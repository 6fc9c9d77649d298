// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * XDP on a gateway's uplinks: drops invalid packets to our ports, reflects probes and does the
 * common case of switching, all before the kernel allocates a socket buffer. Anything else passes
 * unchanged to uplink_in, which is complete.
 */
#include "rx.h"
#include "wg_guard.h"

static __always_inline const struct uplink *get_uplink(__u32 ifindex)
{
	return bpf_map_lookup_elem(&uplinks, &ifindex);
}

/*
 * Resolves the MAC addresses towards a neighbour. Returns 0 if the neighbour is unknown to the
 * kernel, the route leads out by another device, or the device cannot send from XDP.
 */
static __always_inline int resolve(struct xdp_md *xdp, __be32 from, __be32 to, __u32 ifindex,
				   struct bpf_fib_lookup *way)
{
	way->family = AF_INET;
	way->l4_protocol = PROTO_UDP;
	way->ipv4_src = from;
	way->ipv4_dst = to;
	way->ifindex = ifindex;
	/* Only devices with our program are known to accept frames; others drop them. */
	if (ifindex != xdp->ingress_ifindex && !get_uplink(ifindex))
		return 0;
	return bpf_fib_lookup(xdp, way, sizeof(*way), BPF_FIB_LOOKUP_OUTPUT) == BPF_FIB_LKUP_RET_SUCCESS &&
	       way->ifindex == ifindex;
}

/* Sends a frame that is complete but for its MAC addresses. */
static __always_inline int send_frame(struct xdp_md *xdp, const struct bpf_fib_lookup *way, enum verdict good)
{
	struct eth *eth = xdp_at(xdp, 0, sizeof(*eth));

	if (!eth)
		return finish(xdp, HOOK_UPLINK_XDP, VERDICT_DROP_INTERNAL);
	__builtin_memcpy(eth->dst, way->dmac, sizeof(eth->dst));
	__builtin_memcpy(eth->src, way->smac, sizeof(eth->src));
	count_verdict(xdp, HOOK_UPLINK_XDP, good);
	return way->ifindex == xdp->ingress_ifindex ? XDP_TX : bpf_redirect(way->ifindex, 0);
}

/*
 * Reflects a probe over the route of packets to its sender, so that a reply proves that this route
 * works.
 */
static __always_inline int reflect_frame(struct xdp_md *xdp, const struct node_settings *s, const struct rx *rx,
					 __be32 own, __be32 peer)
{
	struct bpf_fib_lookup way = {};
	enum verdict v;

	if (!resolve(xdp, own, peer, xdp->ingress_ifindex, &way))
		return XDP_PASS;
	v = probe_reflect(xdp, HOOK_UPLINK_XDP, s, rx->flags);
	path_line_load(rx_slot(rx), peer, rx->now);
	return v == VERDICT_CONTINUE ? send_frame(xdp, &way, VERDICT_PROBE) : finish(xdp, HOOK_UPLINK_XDP, v);
}

/*
 * Switches a packet in the simple case: no fragment, the path good, and no probe to be sent with
 * the packet, which only tc can do.
 */
static __always_inline int switch_frame(struct xdp_md *xdp, const struct node_settings *s, struct rx *rx)
{
	struct bpf_fib_lookup way = {};
	struct packet p = {};
	struct fwd fwd = {};
	struct path_line *l;

	rx->client = encap_read_client(xdp, HOOK_UPLINK_XDP);
	if (parse_xdp(xdp, OUTER_LEN, &p) != VERDICT_CONTINUE || p.fragment ||
	    fwd_decide(s, &p, rx, &fwd) != VERDICT_SWITCHED || fwd.to.wire)
		return XDP_PASS;
	l = path_line_lookup(fwd.to.slot);
	if (!l || (!path_line_fresh(l, fwd.to.hop.address, rx->now) &&
		   !path_line_load(fwd.to.slot, fwd.to.hop.address, rx->now)))
		return XDP_PASS;
	if (path_line_rank(l, rx->now) != RANK_GOOD || rx->now >= path_clone_at(l, xdp->data_end - xdp->data) ||
	    !encap_fits(xdp, HOOK_UPLINK_XDP, &fwd.to, 0) ||
	    !resolve(xdp, fwd.to.source, fwd.to.hop.next, fwd.to.hop.ifindex, &way) ||
	    encap_turn(xdp, HOOK_UPLINK_XDP, &fwd.to, fwd.node, fwd.flags) != VERDICT_CONTINUE)
		return XDP_PASS;
	path_use(l, fwd.to.hop.address, rx->now);
	return send_frame(xdp, &way, VERDICT_SWITCHED);
}

SEC("xdp")
int uplink_xdp(struct xdp_md *xdp)
{
	struct rx rx = { .hook = HOOK_UPLINK_XDP };
	struct node_settings *s = get_settings();
	const struct uplink *uplink;
	struct outer_udp o = {};
	struct eth *eth;
	enum verdict v;

	eth = xdp_at(xdp, 0, sizeof(*eth));
	if (!s || !eth || eth->proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	/* A promiscuous uplink receives frames for other hosts, too. */
	uplink = get_uplink(xdp->ingress_ifindex);
	if (!uplink || !same_mac(eth->dst, uplink->mac))
		return XDP_PASS;
	if (!rx_read_outer(xdp, HOOK_UPLINK_XDP, ETH_LEN, &o) || o.daddr != s->address)
		return XDP_PASS;
	if (!rx_own_port(s, o.dest))
		return wg_guard(xdp, HOOK_UPLINK_XDP, &o);
	if (!o.plain)
		return finish(xdp, HOOK_UPLINK_XDP, VERDICT_DROP_INJECTED);
	rx.from_cable = o.dest != bpf_htons(OVERLAY_PORT);
	v = rx_validate(xdp, s, o.saddr, &rx);
	if (v != VERDICT_CONTINUE)
		return finish(xdp, HOOK_UPLINK_XDP, v);
	if (rx.type == PACKET_PROBE)
		return reflect_frame(xdp, s, &rx, o.daddr, o.saddr);
	if (rx.type == PACKET_FORWARD)
		return switch_frame(xdp, s, &rx);
	return XDP_PASS;
}
