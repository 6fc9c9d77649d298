/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Picking: a gateway of this cluster, a gateway of another, the node of a service, a backend on this node. */
#pragma once
#include "live.h"
#include "maps.h"
#include "parse.h"

/*
 * Rendezvous hash (highest random weight): when a gateway goes, only its own flows move. Flows keep no state at
 * gateways, so moving one costs nothing. The pick of the hash is taken if it is good, else the best of all.
 */
#define PICK_DOUBTFUL 0x10000 /* with what pick_gateway() and pick_remote() return: none is good, this one as any */

/* A hash for all flows, by which they pick the same gateway of a cluster from wherever they come. */
#define ONE_FOR_ALL 0

/* The hash by which a flow picks gateways. */
static __always_inline __u32 gateway_hash(const struct node_settings *s, __u32 hash)
{
	return s->single ? ONE_FOR_ALL : hash;
}

/*
 * How good the path to an address is. This and gateway_rank() are functions of their own for the verifier: inlined, the two
 * picks were 230,000 of the 270,000 instructions that it looked at in wire_in (Linux 6.18).
 */
__noinline __u32 rank_to(__be32 address, __u64 now)
{
	return rank_of(path_to(address), now);
}

/*
 * How good a gateway of this cluster, self being this node, is for packets to a remote cluster. cluster 0: for a node of
 * this cluster.
 */
__noinline __u32 gateway_rank(__u32 self, __u32 node, __u32 cluster, __u64 now)
{
	const struct node_settings *s;
	const struct standing *own;
	const struct path *p;
	__u32 zero = 0, rank;
	struct node *n;

	if (node == self) {
		own = bpf_map_lookup_elem(&standings, &zero);
		s = bpf_map_lookup_elem(&settings, &zero);
		if (s && s->leaving)
			return RANK_GONE;
		return own && has_bit(own->unreachable, cluster) ? RANK_BAD : RANK_GOOD;
	}
	n = bpf_map_lookup_elem(&nodes, &node);
	if (!n || !n->present)
		return RANK_NONE;
	p = path_to(n->hop.address);
	rank = rank_of(p, now);
	if (rank < RANK_BAD && p && has_bit(p->unreachable, cluster))
		return RANK_BAD;
	return rank;
}

/* A gateway of this cluster by node index, 0 if there is none, and perhaps PICK_DOUBTFUL. except: not that one. */
__noinline __u32 pick_gateway(__u32 hash, __u32 cluster, __u32 except)
{
	__u32 best = 0, weight, pick = 0, rank = RANK_NONE, zero = 0;
	struct node_settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct gateway_set *g = bpf_map_lookup_elem(&gateways, &zero);
	__u64 now = now_ns();

	if (!s || !g)
		return 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= g->count)
			break;
		weight = mix(hash, g->nodes[i]) | 1;
		if (g->nodes[i] != except && weight > best) {
			best = weight;
			pick = g->nodes[i];
		}
	}
	if (!pick || gateway_rank(s->node, pick, cluster, now) == RANK_GOOD)
		return pick;
	best = 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		__u32 r;

		if (i >= g->count)
			break;
		if (g->nodes[i] == except)
			continue;
		r = gateway_rank(s->node, g->nodes[i], cluster, now);
		weight = mix(hash, g->nodes[i]) | 1;
		if (r < rank || (r == rank && weight > best)) {
			rank = r;
			best = weight;
			pick = g->nodes[i];
		}
	}
	return rank < RANK_BAD ? pick : pick | PICK_DOUBTFUL;
}

/* Another seed than for the own gateways, else both sides' choices would be tied to each other. */
static __always_inline __u32 remote_weight(__u32 hash, const struct remote_gateway *r)
{
	return mix(hash == ONE_FOR_ALL ? hash : hash ^ 0x5bd1e995, r->node) | 1;
}

/* The place of a gateway among those of a remote cluster, plus 1, 0 if there is none, and perhaps PICK_DOUBTFUL. */
__noinline __u32 pick_remote(__u32 cluster, __u32 hash)
{
	struct cluster *c = bpf_map_lookup_elem(&clusters, &cluster);
	__u32 best = 0, weight, pick = 0, rank = RANK_NONE;
	__u64 now = now_ns();

	if (!c)
		return 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= c->count)
			break;
		weight = remote_weight(hash, &c->gateways[i]);
		if (weight > best) {
			best = weight;
			pick = i + 1;
		}
	}
	if (!pick || pick > MAX_GATEWAYS || rank_to(c->gateways[pick - 1].hop.address, now) == RANK_GOOD)
		return pick;
	best = 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		__u32 r;

		if (i >= c->count)
			break;
		r = rank_to(c->gateways[i].hop.address, now);
		weight = remote_weight(hash, &c->gateways[i]);
		if (r < rank || (r == rank && weight > best)) {
			rank = r;
			best = weight;
			pick = i + 1;
		}
	}
	return rank < RANK_BAD ? pick : pick | PICK_DOUBTFUL;
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
