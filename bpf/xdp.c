// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * XDP on a gateway's uplinks: drops what is not ours at our ports, sends probes back, and does the common case of
 * switching, each before the kernel has made a socket buffer. Whatever is not simple goes on untouched to uplink_in, which
 * knows everything; so this program may leave out what it likes.
 */
#include "admit.h"
#include "guard.h"

static __always_inline const struct uplink *get_uplink(__u32 ifindex)
{
	return bpf_map_lookup_elem(&uplinks, &ifindex);
}

/*
 * The MAC addresses of the way to a neighbour by a device. 0: the kernel has to find them first, would take another
 * device, or cannot send there from XDP.
 */
static __always_inline int resolve(struct xdp_md *xdp, __be32 from, __be32 to, __u32 ifindex,
				   struct bpf_fib_lookup *way)
{
	way->family = AF_INET;
	way->l4_protocol = PROTO_UDP;
	way->ipv4_src = from;
	way->ipv4_dst = to;
	way->ifindex = ifindex;
	/* A frame to a device that does not take any is lost; those with our program do. */
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
	count(xdp, HOOK_UPLINK_XDP, good);
	return way->ifindex == xdp->ingress_ifindex ? XDP_TX : bpf_redirect(way->ifindex, 0);
}

/* A probe goes back by the way that packets to its sender take, so that its answer speaks for them too. */
static __always_inline int reflect_frame(struct xdp_md *xdp, const struct node_settings *s, const struct arrival *a,
					 __be32 own, __be32 peer)
{
	struct bpf_fib_lookup way = {};
	enum verdict v;

	if (!resolve(xdp, own, peer, xdp->ingress_ifindex, &way))
		return XDP_PASS;
	v = reflect(xdp, HOOK_UPLINK_XDP, s, a->flags);
	return v == VERDICT_PROBE ? send_frame(xdp, &way, v) : finish(xdp, HOOK_UPLINK_XDP, v);
}

/*
 * Switches a packet if that is all there is to do: no fragment, the path good and no probe overdue on it, which only tc can
 * send beside the packet.
 */
static __always_inline int switch_frame(struct xdp_md *xdp, const struct node_settings *s, const struct arrival *a)
{
	struct bpf_fib_lookup way = {};
	struct packet p = {};
	struct course c = {};
	struct path *path;
	__u64 now;

	if (parse_frame(xdp, OUTER_LEN, &p) != VERDICT_SENT || p.fragment ||
	    find_course(s, &p, a, &c) != VERDICT_SWITCHED || c.to.wire)
		return XDP_PASS;
	path = path_to(c.to.hop.address);
	now = now_ns();
	if (rank_of(path, now) != RANK_GOOD || (path && overdue(path, now)) || !fits(xdp, HOOK_UPLINK_XDP, &c.to, 0) ||
	    !resolve(xdp, c.to.source, c.to.hop.next, c.to.hop.ifindex, &way) ||
	    turn_outer(xdp, HOOK_UPLINK_XDP, &c.to, c.node, c.flags) != VERDICT_SWITCHED)
		return XDP_PASS;
	if (path)
		use_path(path, now);
	return send_frame(xdp, &way, VERDICT_SWITCHED);
}

SEC("xdp")
int uplink_xdp(struct xdp_md *xdp)
{
	struct arrival a = { .hook = HOOK_UPLINK_XDP };
	struct node_settings *s = get_settings();
	const struct uplink *uplink;
	struct outer_udp o = {};
	struct eth *eth;
	enum verdict v;

	eth = xdp_at(xdp, 0, sizeof(*eth));
	if (!s || !eth || eth->proto != bpf_htons(ETH_P_IP))
		return XDP_PASS;
	/* A promiscuous uplink shows frames for other hosts as well. */
	uplink = get_uplink(xdp->ingress_ifindex);
	if (!uplink || !same_mac(eth->dst, uplink->mac))
		return XDP_PASS;
	if (!read_outer(xdp, HOOK_UPLINK_XDP, &o) || o.daddr != s->address)
		return XDP_PASS;
	if (!own_port(s, o.dest))
		return guard(xdp, HOOK_UPLINK_XDP, &o);
	if (!o.plain)
		return finish(xdp, HOOK_UPLINK_XDP, VERDICT_DROP_INJECTED);
	a.from_cable = o.dest != bpf_htons(OVERLAY_PORT);
	v = admit(xdp, s, o.saddr, &a);
	if (v != VERDICT_SENT)
		return finish(xdp, HOOK_UPLINK_XDP, v);
	if (a.type == PACKET_PROBE)
		return reflect_frame(xdp, s, &a, o.daddr, o.saddr);
	if (a.type == PACKET_FORWARD)
		return switch_frame(xdp, s, &a);
	return XDP_PASS;
}
