// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Uplinks and wires. Ingress: overlay and cable packets are checked, then switched (gateway) or translated back and handed
 * to the kernel's vxlan receiver behind pelago0 (edge), which settles GSO and checksum state that the stack must be
 * able to trust. Egress: the guard against overlay packets that are not ours.
 */
#include "admit.h"
#include "deliver.h"
#include "guard.h"

/* A packet to one of our ports. */
static __always_inline int take(struct __sk_buff *skb, const struct node_settings *s, struct arrival *a, __be32 from)
{
	struct course c = {};
	struct packet p = {};
	enum verdict v;

	v = admit(skb, s, from, a);
	if (v != VERDICT_SENT)
		return finish(skb, a->hook, v);
	if (a->type == PACKET_PROBE) {
		v = reflect(skb, a->hook, s, a->flags);
		return v == VERDICT_PROBE ? send_back(skb, a->hook, s) : finish(skb, a->hook, v);
	}
	if (a->type == PACKET_PROBE_REPLY)
		return probe_answer(skb, a->hook, from, a->peer_cluster, a->flags);
	if (a->type != PACKET_FORWARD)
		return finish(skb, a->hook, VERDICT_DROP_BAD_TYPE);
	v = parse_ipv4(skb, OUTER_LEN, &p);
	if (v != VERDICT_SENT)
		return finish(skb, a->hook, v);
	if (p.fragment) {
		__be16 ports[2];

		if (!(a->flags & OVERLAY_FRAGMENT) ||
		    bpf_skb_load_bytes(skb, OUTER_LEN - sizeof(struct eth) + 8, ports, sizeof(ports)))
			return finish(skb, a->hook, VERDICT_DROP_FRAGMENT);
		p.sport = ports[0];
		p.dport = ports[1];
	}
	v = find_course(s, &p, a, &c);
	if (v == VERDICT_DELIVERED)
		return deliver(skb, s, &p, a, &c);
	if (v == VERDICT_SWITCHED || v == VERDICT_BOUNCED)
		return switch_to(skb, s, a, &c, v);
	return finish(skb, a->hook, v);
}

SEC("tc")
int uplink_in(struct __sk_buff *skb)
{
	struct arrival a = { .hook = HOOK_UPLINK_IN };
	struct node_settings *s = get_settings();
	struct outer_udp o = {};

	/* A promiscuous uplink shows frames for other hosts as well. */
	if (!s || skb->protocol != bpf_htons(ETH_P_IP) || skb->pkt_type != PACKET_HOST)
		return ACTION_NEXT;
	if (!read_outer(skb, HOOK_UPLINK_IN, &o) || o.daddr != s->address)
		return ACTION_NEXT;
	if (!own_port(s, o.dest))
		return guard(skb, HOOK_UPLINK_IN, &o);
	if (!o.plain)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INJECTED);
	a.from_cable = o.dest != bpf_htons(OVERLAY_PORT);
	return take(skb, s, &a, o.saddr);
}

/*
 * The device of an encrypted wire. Packets have no Ethernet header there; they get the place of one, so that everything
 * behind finds the same offsets. Nothing but cable packets comes by a wire.
 */
SEC("tc")
int wire_in(struct __sk_buff *skb)
{
	struct arrival a = { .hook = HOOK_WIRE_IN, .from_cable = 1 };
	struct node_settings *s = get_settings();
	struct outer_udp o = {};

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	if (bpf_skb_change_head(skb, ETH_LEN, 0))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_INTERNAL);
	if (!read_outer(skb, HOOK_WIRE_IN, &o) || !o.plain || o.daddr != s->cable_address ||
	    o.dest != bpf_htons(OVERLAY_PORT))
		return finish(skb, HOOK_WIRE_IN, VERDICT_DROP_PROTOCOL);
	return take(skb, s, &a, o.saddr);
}

/*
 * The guard: an overlay or cable packet leaves this node only if one of our programs, or the daemon's prober, marked it.
 * Without it any pod could send to a node's overlay port, and CNI masquerading would lend it the node's address. Later
 * fragments have no port and pass: ours are never fragmented, and a datagram without its first fragment is not delivered.
 */
SEC("tc")
int uplink_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct outer_udp o = {};

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	if (s->cookie && skb->mark == s->cookie) {
		skb->mark = 0; /* nobody else is to see it */
		return ACTION_NEXT;
	}
	if (!read_outer(skb, HOOK_UPLINK_OUT, &o) || !own_port(s, o.dest) || !bpf_map_lookup_elem(&peers, &o.daddr))
		return ACTION_NEXT;
	return finish(skb, HOOK_UPLINK_OUT, VERDICT_DROP_INJECTED);
}

/* The guard of a wire: nothing goes in that our programs have not sent there. */
SEC("tc")
int wire_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();

	if (!s || !s->cookie || skb->mark != s->cookie)
		return finish(skb, HOOK_WIRE_OUT, VERDICT_DROP_INJECTED);
	skb->mark = 0;
	return ACTION_NEXT;
}
