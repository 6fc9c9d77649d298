/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Sending a packet on that came in by an uplink or a wire. */
#pragma once
#include "count.h"
#include "path.h"
#include "probe.h"

/* What is known of a packet that came in besides its inner tuple. */
struct arrival {
	__u16 node; /* index in the header */
	__u8 flags; /* enum overlay_flag */
	__u8 from_cable;
	__u16 peer_node; /* index of the sender */
	enum hook hook;	 /* where it came in */
};

#define OVERLAY_AT (ETH_LEN + sizeof(struct ipv4) + sizeof(struct udp))

static __always_inline int switch_to(struct __sk_buff *skb, const struct node_settings *s, const struct arrival *a,
				     const struct target *to, __u16 node, __u8 flags, enum verdict good)
{
	enum verdict v = turn_outer(skb, to, node, flags);

	if (v != VERDICT_SWITCHED)
		return finish(skb, a->hook, v);
	if (!fits(skb, to, 0))
		return finish(skb, a->hook, VERDICT_DROP_TOO_BIG);
	count(skb, a->hook, good);
	take_path(skb, s, to);
	return send_to(skb, s, to);
}

/*
 * Whether the packet may be passed to another gateway of this cluster: once only. cluster: the remote one that it is for,
 * 0 if it is for a node of this cluster. only_good: not to one that is no better off. Returns the gateway's index or 0.
 */
static __always_inline __u32 sibling(const struct node_settings *s, const struct packet *p, const struct arrival *a,
				     __u32 cluster, int only_good)
{
	__u32 pick = (a->flags & OVERLAY_BOUNCED) ? 0 : pick_gateway(flow_hash(p), cluster, s->node);

	return only_good && (pick & PICK_DOUBTFUL) ? 0 : pick & 0xffff;
}

/* Passes a packet for this cluster once to another of its gateways, which is to find the node. */
static __always_inline int bounce(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				  const struct arrival *a, enum verdict otherwise)
{
	struct target to = {};

	if (!to_node(s, sibling(s, p, a, 0, 0), &to))
		return finish(skb, a->hook, otherwise);
	return switch_to(skb, s, a, &to, 0, a->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH, VERDICT_BOUNCED);
}
