/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Selection of a local gateway, a remote gateway, the node of a service, a backend on this node. */
#pragma once
#include "health.h"
#include "maps.h"
#include "parse.h"

/* Flags in what the picks return. */
#define PICK_DOUBTFUL 0x10000 /* no gateway is good, this one is arbitrary */
#define PICK_LOSSY 0x20000    /* the best path loses packets */

/* The hash used for every flow with node_settings.single: all nodes then pick the same gateway. */
#define ONE_FOR_ALL 0

/* Seeds that make hashes of one flow for different choices independent. */
enum seed {
	SEED_REMOTE = 0x5bd1e995,
	SEED_BACKEND = 0x27d4eb2f,
	SEED_TUNNEL = 0x68bc21eb,
	SEED_CLIENT = 0x02e5be93,
};

enum slot_step {
	STEP_SLOT = 0x9e3779b1, /* between tries in a Maglev table: 2^32 / golden ratio */
};

/* Tries in a Maglev table. */
enum slot_tries {
	NODE_TRIES = 8,
	LIVE_TRIES = 64,       /* of a node with 19 of 20 slots, so many miss another one once in 27 times */
	STICKY_BACKENDS = 256, /* backends of a node among which a client of session affinity picks one */
};

/* The hash by which a flow picks gateways. */
static __always_inline __u32 gateway_hash(const struct node_settings *s, __u32 hash)
{
	return s->single ? ONE_FOR_ALL : hash;
}

/*
 * Rank of the path to an address. This and lb_gateway_rank() are global functions for the verifier:
 * inlined, the two picks were 230,000 of the 270,000 instructions that it walked in wire_in (Linux
 * 6.18).
 */
__noinline __u32 path_rank_to(__u32 slot, __be32 address, __u64 now)
{
	struct path_line *l = path_line_lookup(slot);

	return path_line_fresh(l, address, now) ? path_line_rank(l, now) : path_rank(path_lookup(address), now);
}

static __always_inline int is_lossy(const struct cluster_set *set, __u32 cluster)
{
	return set && has_bit(set->words, cluster);
}

/*
 * Rank of a gateway of this cluster for packets to a remote cluster; cluster 0: to a node of this
 * one. self: this node.
 */
__noinline __u32 lb_gateway_rank(__u32 self, __u32 node, __u32 cluster, __u64 now)
{
	const struct node_settings *s;
	const struct advertised *own;
	struct path_line *l;
	const struct path *p;
	__u32 key = 0, rank; /* one key for all maps, to save stack */
	struct node *n;

	if (node == self) {
		own = bpf_map_lookup_elem(&standings, &key);
		s = bpf_map_lookup_elem(&settings, &key);
		if (s && s->leaving)
			return RANK_GONE;
		if (own && has_bit(own->unreachable, cluster))
			return RANK_BAD;
		return is_lossy(bpf_map_lookup_elem(&own_losses, &key), cluster) ? RANK_LOSSY : RANK_GOOD;
	}
	key = node;
	n = bpf_map_lookup_elem(&nodes, &key);
	if (!n || !n->present)
		return RANK_NONE;
	key = path_slot(0, node);
	l = bpf_map_lookup_elem(&path_lines, &key);
	key = n->hop.address;
	if (path_line_fresh(l, key, now)) {
		rank = path_line_rank(l, now);
		if (rank >= RANK_BAD || !(l->doubtful >> (cluster % 64) & 1))
			return rank;
	}
	p = bpf_map_lookup_elem(&paths, &key);
	rank = path_rank(p, now);
	if (rank >= RANK_BAD || !p)
		return rank;
	if (has_bit(p->unreachable, cluster))
		return RANK_BAD;
	return rank < RANK_LOSSY && is_lossy(bpf_map_lookup_elem(&gateway_losses, &key), cluster) ? RANK_LOSSY : rank;
}

/*
 * Picks a gateway of this cluster other than `except`, by rendezvous hashing (highest random
 * weight): when a gateway goes, only its own flows move. Gateways keep no flow state, so moving one
 * costs nothing. The pick of the hash is taken if it is good, else the best of all. Returns its
 * node index, 0 if none exists, with PICK_DOUBTFUL.
 */
__noinline __u32 lb_pick_gateway(__u32 hash, __u32 cluster, __u32 except, __u64 now)
{
	__u32 best = 0, weight, pick = 0, rank = RANK_NONE, zero = 0;
	struct node_settings *s = bpf_map_lookup_elem(&settings, &zero);
	struct gateway_set *g = bpf_map_lookup_elem(&gateways, &zero);

	if (!s || !g)
		return 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= g->count)
			break;
		weight = hash_mix(hash, g->nodes[i]) | 1;
		if (g->nodes[i] != except && weight > best) {
			best = weight;
			pick = g->nodes[i];
		}
	}
	if (!pick || lb_gateway_rank(s->node, pick, cluster, now) == RANK_GOOD)
		return pick;
	best = 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		__u32 r;

		if (i >= g->count)
			break;
		if (g->nodes[i] == except)
			continue;
		r = lb_gateway_rank(s->node, g->nodes[i], cluster, now);
		weight = hash_mix(hash, g->nodes[i]) | 1;
		if (r < rank || (r == rank && weight > best)) {
			rank = r;
			best = weight;
			pick = g->nodes[i];
		}
	}
	return rank < RANK_BAD ? pick : pick | PICK_DOUBTFUL;
}

/* Another seed than for local gateways, else the choices of both sides would be correlated. */
static __always_inline __u32 remote_weight(__u32 hash, const struct remote_gateway *r)
{
	return hash_mix(hash == ONE_FOR_ALL ? hash : hash ^ SEED_REMOTE, r->node) | 1;
}

static __always_inline __u32 remote_rank(__u32 cluster, const struct remote_gateway *r, __u64 now)
{
	return path_rank_to(path_slot(cluster, r->node), r->hop.address, now);
}

/*
 * Picks a gateway of a remote cluster c. Returns its position plus 1, 0 if none exists, with
 * flags.
 */
__noinline __u32 lb_pick_remote(const struct cluster *c, __u32 cluster, __u32 hash, __u64 now)
{
	__u32 best = 0, weight, pick = 0, rank = RANK_NONE;

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
	if (!pick || pick > MAX_GATEWAYS || remote_rank(cluster, &c->gateways[pick - 1], now) == RANK_GOOD)
		return pick;
	best = 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		__u32 r;

		if (i >= c->count)
			break;
		r = remote_rank(cluster, &c->gateways[i], now);
		weight = remote_weight(hash, &c->gateways[i]);
		if (r < rank || (r == rank && weight > best)) {
			rank = r;
			best = weight;
			pick = i + 1;
		}
	}
	if (rank == RANK_LOSSY)
		return pick | PICK_LOSSY;
	return rank < RANK_BAD ? pick : pick | PICK_DOUBTFUL;
}

/*
 * With session affinity the ports of the client do not count. client: identifies the client among
 * those that share the source address; 0: unknown.
 */
static __always_inline __u32 service_hash(const struct service *s, const struct packet *p, __u32 client)
{
	if (s->affinity)
		return hash_mix(client ? hash_mix(p->saddr, client) : p->saddr, p->daddr);
	return flow_hash(p);
}

/*
 * The node in a slot of a Maglev table; 0: none. The loader writes blocks while they are read: the
 * kernel copies them by words, so a reader finds the old node of a slot or the new one.
 */
static __always_inline __u32 table_node(void *table, __u32 slot)
{
	__u32 block = slot / SLOT_BLOCK;
	const struct slot_block *b = bpf_map_lookup_elem(table, &block);

	return b ? b->nodes[slot % SLOT_BLOCK] : 0;
}

/*
 * The node for a new flow to a service, from its Maglev table, which weights nodes by ready
 * backends. `except`: the node that has bounced the packet.
 */
static __always_inline __u32 lb_pick_node(const struct service_key *key, const struct service *s, __u32 hash,
					  __u16 except)
{
	void *table = bpf_map_lookup_elem(&tables2, key);

	if (!table || !s->slots)
		return 0;
	for (int i = 0; i < NODE_TRIES; i++) {
		__u32 node = table_node(table, (hash + i * STEP_SLOT) % s->slots);

		if (node && node != except)
			return node;
	}
	return 0;
}

/*
 * Another node for a packet that opens a flow to a service, if the pick of lb_pick_node() is dead:
 * the next live one in the table. 0: none was found. The return of a node is noticed without
 * sending it packets, since nodes probe their gateways. A global function, to save the caller's
 * stack.
 */
__noinline __u32 lb_pick_live_node(const struct packet *p, __u32 client, __u32 except, __u64 now)
{
	struct service_key key = {};
	struct node_settings *settled;
	struct service *s;
	__u32 zero = 0, hash, dead = 0;
	void *table;

	if (!p)
		return 0;
	key.address = p->daddr;
	key.port = p->dport;
	key.proto = p->proto;
	settled = bpf_map_lookup_elem(&settings, &zero);
	s = bpf_map_lookup_elem(&services, &key);
	table = bpf_map_lookup_elem(&tables2, &key);
	if (!settled || !s || !s->slots || !table)
		return 0;
	hash = service_hash(s, p, client);
	for (int i = 0; i < LIVE_TRIES; i++) {
		__u32 index = table_node(table, (hash + i * STEP_SLOT) % s->slots);
		struct node *n;

		if (!index || index == except || index == dead)
			continue;
		if (index == settled->node)
			return index;
		n = bpf_map_lookup_elem(&nodes, &index);
		if (n && n->present && !path_dead(n->hop.address, now))
			return index;
		dead = index;
	}
	return 0;
}

/* A backend as one number. */
static __always_inline __u64 backend_number(const struct backend *b)
{
	return (__u64)b->address << 16 | b->port;
}

/*
 * The weight of a backend for a client of a service with session affinity, above its index plus 1
 * in the low 32 bits; 0: no backend has the index. former: backend_number() of the client's
 * previous one, which weighs most. A global function: inlined in the loop, the verifier of Linux
 * 6.18 exceeds its limit of a million instructions.
 */
__noinline __u64 lb_weigh_backend(const struct packet *p, __u32 index, __u32 hash, __u64 former)
{
	struct backend_key k = {};
	struct backend *b;
	__u32 weight;

	if (!p)
		return 0;
	k.service.address = p->daddr;
	k.service.port = p->dport;
	k.service.proto = p->proto;
	k.index = index;
	b = bpf_map_lookup_elem(&backends, &k);
	if (!b)
		return 0;
	weight = former == backend_number(b) ? ~0U : hash_mix(hash_mix(hash, b->address), b->port);
	return (__u64)weight << 32 | (index + 1);
}

/*
 * The backend for a client of a service with session affinity; returns its index plus 1, 0 if none
 * exists. The client's previous one, if its last connection was opened within s->affinity seconds
 * and the backend is still ready; else by rendezvous hashing, so that a backend that comes or goes
 * moves only its own clients. Of more backends than the loop reads, each client has a part. Races
 * with other CPUs: they pick the same, unless the backends change in between. In the worst case two
 * connections of one client go to two backends.
 */
__noinline __u32 lb_pick_sticky(const struct packet *p, __u32 client, __u64 now)
{
	struct backend_choice *former, choice = {};
	struct choice_key key = {};
	struct backend_key k = {};
	__u64 best = 0, number = 0;
	__u32 hash, first, count;
	struct service *s;
	struct backend *b;

	if (!p)
		return 0;
	key.service.address = p->daddr;
	key.service.port = p->dport;
	key.service.proto = p->proto;
	key.source = p->saddr;
	key.client = client;
	s = bpf_map_lookup_elem(&services, &key.service);
	if (!s || !s->backends)
		return 0;
	former = bpf_map_lookup_elem(&choices, &key);
	if (former && now - former->used < s->affinity * SECOND)
		number = backend_number(&former->backend);
	hash = service_hash(s, p, client) ^ SEED_BACKEND;
	first = hash_mix(hash, 0) % ((s->backends + STICKY_BACKENDS - 1) / STICKY_BACKENDS) * STICKY_BACKENDS;
	count = s->backends - first;
	for (__u32 i = 0; i < STICKY_BACKENDS; i++) {
		__u64 weight = i < count ? lb_weigh_backend(p, first + i, hash, number) : 0;

		if (!weight)
			break;
		if (weight > best)
			best = weight;
	}
	k.service = key.service;
	k.index = (__u32)best - 1;
	b = bpf_map_lookup_elem(&backends, &k);
	if (!b)
		return 0;
	choice.used = now;
	choice.backend = *b;
	bpf_map_update_elem(&choices, &key, &choice, BPF_ANY);
	return best;
}

/* The backend for a new flow. client: see service_hash(). */
static __always_inline const struct backend *lb_pick_backend(const struct service_key *key, const struct service *s,
							     const struct packet *p, __u32 client, __u64 now)
{
	struct backend_key k = { .service = *key };

	if (!s->backends)
		return 0;
	/*
	 * Rehashed: the node was picked by the same hash, whose low bits are not uniform on one
	 * node. If no pick comes back, the index is one of no backend.
	 */
	k.index = s->affinity ? lb_pick_sticky(p, client, now) - 1 : hash_mix(flow_hash(p), SEED_BACKEND) % s->backends;
	return bpf_map_lookup_elem(&backends, &k);
}
