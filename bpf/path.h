/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Where an edge sends a packet for a remote cluster. */
#pragma once
#include "lb.h"
#include "overlay.h"

/* A node of this cluster. 0: there is no such node. */
static __always_inline int to_node(const struct node_settings *s, __u32 index, struct target *to)
{
	struct node *n = index ? bpf_map_lookup_elem(&nodes, &index) : 0;

	if (!n || !n->present)
		return 0;
	to->hop = n->hop;
	to->port = bpf_htons(OVERLAY_PORT);
	to->token = s->overlay_token;
	return 1;
}

/* A gateway of a remote cluster. 0: there is none. */
static __always_inline int to_cluster(const struct node_settings *s, __u32 index, __u32 hash, struct target *to)
{
	struct cluster *c = bpf_map_lookup_elem(&clusters, &index);
	const struct remote_gateway *r = c ? pick_remote(c, hash) : 0;

	if (!r)
		return 0;
	to->hop = r->hop;
	to->port = r->port;
	to->token = s->cable_token;
	return 1;
}

/*
 * A gateway of this cluster, or the far end of the cable if this node is the gateway that was picked: a gateway's own
 * pods follow the same pick as everybody's. VERDICT_SENT: found.
 */
static __always_inline enum verdict find_exit(const struct node_settings *s, __u16 cluster, __u32 hash,
					      struct target *to)
{
	__u32 zero = 0, gateway;
	struct gateway_set *g = bpf_map_lookup_elem(&gateways, &zero);

	gateway = g ? pick_gateway(g, hash, 0) : 0;
	if (!gateway)
		return VERDICT_DROP_NO_GATEWAY;
	if (s->gateway && gateway == s->node)
		return to_cluster(s, cluster, hash, to) ? VERDICT_SENT : VERDICT_DROP_NO_GATEWAY;
	return to_node(s, gateway, to) ? VERDICT_SENT : VERDICT_DROP_UNKNOWN_NODE;
}
