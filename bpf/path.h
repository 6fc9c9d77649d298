/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* From a pick to the next hop: nodes, gateways, the far ends of cables. */
#pragma once
#include "lb.h"
#include "overlay.h"

/* The remote cluster that an address belongs to, or 0. */
static __always_inline const struct route *route_of(__be32 address)
{
	struct prefix prefix = { .length = 32, .address = address };

	return bpf_map_lookup_elem(&routes, &prefix);
}

/* A node of this cluster. 0: there is no such node, and *to stays as it is. */
static __always_inline int to_node(const struct node_settings *s, __u32 index, struct target *to)
{
	struct node *n = index ? bpf_map_lookup_elem(&nodes, &index) : 0;

	if (!n || !n->present)
		return 0;
	to->hop = n->hop;
	to->source = s->address;
	to->port = bpf_htons(OVERLAY_PORT);
	to->wire = 0;
	to->token = s->overlay_token;
	return 1;
}

/* The far end of a cable. 0: no tunnel leads there. */
static __always_inline int to_remote(const struct node_settings *s, const struct remote_gateway *r, __u32 hash,
				     struct target *to)
{
	to->hop = r->hop;
	to->source = s->cable_address;
	to->port = r->port;
	to->token = s->cable_token;
	to->wire = !r->hop.ifindex;
	if (!to->wire)
		return 1;
	if (!r->tunnels)
		return 0;
	to->hop.ifindex = r->tunnel[mix(hash, 0x68bc21eb) % r->tunnels % MAX_TUNNELS];
	return 1;
}

enum reach {
	REACH_NONE = 0, /* no gateway is known, or no tunnel leads to it */
	REACH_GOOD = 1,
	REACH_DOUBTFUL = 2, /* none of them answers; this one as any */
};

/* A gateway of a remote cluster. Tells the reflector whether the cluster is reached. */
static __always_inline enum reach to_cluster(const struct node_settings *s, __u32 index, __u32 hash, struct target *to)
{
	struct cluster *c = bpf_map_lookup_elem(&clusters, &index);
	__u32 pick = pick_remote(index, gateway_hash(s, hash)), place = (pick & 0xffff) - 1;
	enum reach reach = pick & PICK_DOUBTFUL ? REACH_DOUBTFUL : REACH_GOOD;

	if (!c || !pick || place >= MAX_GATEWAYS || !to_remote(s, &c->gateways[place], hash, to))
		reach = REACH_NONE;
	note_reach(index, reach == REACH_GOOD);
	return reach;
}

/*
 * A gateway of this cluster, or the far end of the cable if this node is the gateway that was picked: a gateway's own
 * pods follow the same pick as everybody's. VERDICT_SENT: found.
 */
static __always_inline enum verdict find_exit(const struct node_settings *s, __u16 cluster, __u32 hash,
					      struct target *to)
{
	__u32 gateway = pick_gateway(gateway_hash(s, hash), cluster, 0) & 0xffff;

	if (!gateway)
		return VERDICT_DROP_NO_GATEWAY;
	if (s->gateway && gateway == s->node)
		return to_cluster(s, cluster, hash, to) ? VERDICT_SENT : VERDICT_DROP_NO_GATEWAY;
	return to_node(s, gateway, to) ? VERDICT_SENT : VERDICT_DROP_UNKNOWN_NODE;
}
