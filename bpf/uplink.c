// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Uplinks and wires. Ingress: overlay and cable packets are validated, then switched (gateway) or
 * translated, decapsulated and received on pelago0 (edge). Egress: drops packets to our ports that
 * our programs did not send. Uplinks without an Ethernet header (TUN, WireGuard, PPP) have programs
 * of their own; behind the parsing of the outer headers, these give such packets room for one, so
 * that all offsets are the same.
 */
#include "rx.h"
#include "deliver.h"
#include "selftest.h"
#include "wg_guard.h"

/* Handles a packet to one of our ports. */
static __always_inline int rx_overlay(struct __sk_buff *skb, const struct node_settings *s, struct rx *rx, __be32 from)
{
	enum verdict v = rx_validate(skb, s, from, rx);

	if (v != VERDICT_CONTINUE)
		return finish(skb, rx->hook, v);
	if (rx->type == PACKET_PROBE) {
		if (skb->mark == s->probe_mark)
			return gso_probe_hand_over(skb, s, rx, from);
		v = probe_reflect(skb, rx->hook, s, rx->flags);
		path_line_load(rx_slot(rx), from, rx->now);
		return v == VERDICT_CONTINUE ? probe_send_back(skb, rx->hook, s) : finish(skb, rx->hook, v);
	}
	if (rx->type == PACKET_PROBE_REPLY) {
		int action = probe_take_reply(skb, rx->hook, from, rx->peer_cluster, rx->flags);

		path_line_load(rx_slot(rx), from, rx->now);
		return action;
	}
	if (rx->type != PACKET_FORWARD)
		return finish(skb, rx->hook, VERDICT_DROP_BAD_TYPE);
	return rx_packet(skb, s, rx);
}

/* Ingress of an uplink whose packets have their IPv4 header at offset l3. */
static __always_inline int uplink_receive(struct __sk_buff *skb, __u32 l3)
{
	struct rx rx = { .hook = HOOK_UPLINK_IN };
	struct node_settings *s = get_settings();
	struct outer_udp o = {};

	if (!s)
		return ACTION_NEXT;
	/* Promiscuous uplinks receive frames for other hosts. A GSO probe has no MAC addresses. */
	if (l3 &&
	    (skb->protocol != bpf_htons(ETH_P_IP) || (skb->pkt_type != PACKET_HOST && skb->mark != s->probe_mark)))
		return ACTION_NEXT;
	if (!rx_read_outer(skb, HOOK_UPLINK_IN, l3, &o) || o.daddr != s->address)
		return ACTION_NEXT;
	if (!rx_own_port(s, o.dest))
		return wg_guard(skb, HOOK_UPLINK_IN, &o);
	if (!o.plain)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INJECTED);
	if (!l3 && bpf_skb_change_head(skb, ETH_LEN, 0))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	rx.from_cable = o.dest != bpf_htons(OVERLAY_PORT);
	return rx_overlay(skb, s, &rx, o.saddr);
}

SEC("tc")
int uplink_in(struct __sk_buff *skb)
{
	return uplink_receive(skb, ETH_LEN);
}

SEC("tc")
int uplink_l3_in(struct __sk_buff *skb)
{
	return uplink_receive(skb, 0);
}

/*
 * Ingress of an encrypted wire's device, which carries cable packets only. They have no Ethernet
 * header; room for one is added, so that all offsets are those of an uplink.
 */
SEC("tc")
int wire_in(struct __sk_buff *skb)
{
	struct rx rx = { .hook = HOOK_WIRE_IN, .from_cable = 1 };
	struct node_settings *s = get_settings();
	struct outer_udp o = {};

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_INTERNAL);
	if (!rx_read_outer(skb, HOOK_WIRE_IN, ETH_LEN, &o) || !o.plain || o.daddr != s->cable_address ||
	    o.dest != bpf_htons(OVERLAY_PORT))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	return rx_overlay(skb, s, &rx, o.saddr);
}

/*
 * Lets an overlay or cable packet leave only with the mark of our programs, which probes get in
 * edge_out, and no datagram of a self-test. Otherwise a pod could send to a node's overlay port
 * under the node's address, which CNI masquerading gives it. Later fragments have no port and pass:
 * our packets are never fragmented, and no receiver delivers a datagram without its first fragment.
 */
static __always_inline int uplink_guard(struct __sk_buff *skb, __u32 l3)
{
	struct node_settings *s = get_settings();
	struct outer_udp o = {};
	struct selftest *test;

	if (!s || (l3 && skb->protocol != bpf_htons(ETH_P_IP)))
		return ACTION_NEXT;
	if (s->cookie && skb->mark == s->cookie) {
		skb->mark = 0; /* not for later programs */
		return ACTION_NEXT;
	}
	if (!rx_read_outer(skb, HOOK_UPLINK_OUT, l3, &o))
		return ACTION_NEXT;
	test = selftest_at(skb, o.l4, o.dest);
	if (test) {
		test->uplink = skb->ifindex;
		count_verdict(skb, HOOK_UPLINK_OUT, VERDICT_PROBE);
		return ACTION_DROP;
	}
	if (!rx_own_port(s, o.dest) || !bpf_map_lookup_elem(&peers, &o.daddr))
		return ACTION_NEXT;
	return finish(skb, HOOK_UPLINK_OUT, VERDICT_DROP_INJECTED);
}

SEC("tc")
int uplink_out(struct __sk_buff *skb)
{
	return uplink_guard(skb, ETH_LEN);
}

SEC("tc")
int uplink_l3_out(struct __sk_buff *skb)
{
	return uplink_guard(skb, 0);
}

/* Lets only packets of our programs into a wire. */
SEC("tc")
int wire_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();

	if (!s || !s->cookie || skb->mark != s->cookie)
		return finish(skb, HOOK_WIRE_OUT, VERDICT_DROP_INJECTED);
	skb->mark = 0;
	return ACTION_NEXT;
}
