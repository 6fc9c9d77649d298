/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Picking: a gateway of this cluster, a gateway of another, the node of a service, a backend on this node. */
#pragma once
#include "maps.h"
#include "parse.h"

/*
 * Rendezvous hash (highest random weight): when a gateway goes, only its own flows move. Flows keep no state at
 * gateways, so moving one costs nothing.
 */
static __always_inline __u32 pick_gateway(const struct gateway_set *g, __u32 hash, __u16 except)
{
	__u32 best = 0, weight, node = 0;

	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= g->count)
			break;
		if (g->nodes[i] == except)
			continue;
		weight = mix(hash, g->nodes[i]) | 1;
		if (weight > best) {
			best = weight;
			node = g->nodes[i];
		}
	}
	return node;
}

static __always_inline const struct remote_gateway *pick_remote(const struct cluster *c, __u32 hash)
{
	const struct remote_gateway *r = 0;
	__u32 best = 0, weight;

	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= c->count)
			break;
		/* Another seed than in pick_gateway, else both sides' choices would be tied to each other. */
		weight = mix(hash ^ 0x5bd1e995, c->gateways[i].node) | 1;
		if (weight > best) {
			best = weight;
			r = &c->gateways[i];
		}
	}
	return r;
}

/* A client with session affinity is one client whatever its ports (Kubernetes: ClientIP). */
static __always_inline __u32 service_hash(const struct service *s, const struct packet *p, __be32 client)
{
	if (s->affinity == AFFINITY_CLIENT_IP)
		return mix(client, p->daddr);
	return flow_hash(p);
}

/*
 * The node for a new flow to a service: its Maglev table, built over nodes weighted by ready backends. `except` is
 * the node that has just bounced the packet.
 */
static __always_inline __u32 pick_node(const struct service_key *key, const struct service *s, __u32 hash, __u16 except)
{
	void *table = bpf_map_lookup_elem(&tables, key);

	if (!table || !s->slots)
		return 0;
	for (int i = 0; i < 8; i++) {
		__u32 slot = (hash + i * 0x9e3779b1) % s->slots, *node = bpf_map_lookup_elem(table, &slot);

		if (node && *node && *node != except)
			return *node;
	}
	return 0;
}

static __always_inline const struct backend *pick_backend(const struct service_key *key, const struct service *s,
							  __u32 hash)
{
	struct backend_key k = { .service = *key };

	if (!s->backends)
		return 0;
	/* Rehashed: the node was picked from the same hash, whose low bits are no longer spread here. */
	k.index = mix(hash, 0x27d4eb2f) % s->backends;
	return bpf_map_lookup_elem(&backends, &k);
}
