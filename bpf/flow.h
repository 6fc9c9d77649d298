/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flow entries: look-up, claim, ageing, removal. Rules: struct flow in types.h, and the README. */
#pragma once
#include "config.h"
#include "health.h"
#include "maps.h"
#include "nat.h"

/*
 * Global functions are verified once, for arbitrary arguments, instead of once per call path, where
 * nested loops would exceed the instruction limit. Hence their null checks, and their copies of
 * keys: the verifier of Linux 6.1 rejects helpers that read through such an argument. Their stack
 * frames are small because a call chain shares 512 bytes, counted in steps of 32 per function.
 */

#define DYING 1ULL
#define EEXIST 17
#define E2BIG 7
#define ENOMEM 12

/*
 * The key of the entry of a packet. An ICMP error may come from a router: its flow is that of the
 * quoted peer.
 */
static __always_inline void flow_key_of(struct flow_key *k, const struct packet *p, enum direction direction)
{
	k->saddr = p->error ? p->quoted_peer : p->saddr;
	k->daddr = p->daddr;
	k->sport = p->sport;
	k->dport = p->dport;
	k->proto = p->proto;
	k->direction = direction;
	k->pad = 0;
}

/*
 * Makes the key of the other entry of a flow: that of a reply to a packet which this entry has
 * translated.
 */
static __always_inline void flow_key_other(struct flow_key *k, const struct flow_key *own, const struct flow *f)
{
	k->saddr = f->daddr;
	k->daddr = f->saddr;
	k->sport = f->dport;
	k->dport = f->sport;
	k->proto = own->proto;
	k->direction = own->direction ^ 1;
	k->pad = own->pad; /* 0, which as a constant would take a register of flow_reclaim() */
}

static __always_inline struct flow *flow_find(const struct flow_key *k)
{
	struct flow *f = bpf_map_lookup_elem(&flows, k);

	return f && !(f->state & DYING) ? f : 0;
}

/* The device that flows of a local source record. */
static __always_inline __u32 device_of(const struct source *s)
{
	return (s->flags & SOURCE_HOST) ? DEVICE_NONE : s->ifindex;
}

static __always_inline int comes_from(__u32 device, __u32 ingress)
{
	return device == DEVICE_ANY || (device == DEVICE_NONE ? ingress == 0 : ingress == device);
}

/*
 * Reports whether a TCP flow is over. a and b are its entries; b may be missing. One FIN suffices
 * where the opener wants a new connection on the same tuple; the timers require both.
 */
static __always_inline int flow_closing(const struct flow *a, const struct flow *b)
{
	return (a->tcp | (b ? b->tcp : 0)) & (TCP_SEEN_FIN | TCP_SEEN_RST);
}

/* Reports whether the flow of an entry goes to a port from 1 to 1023. */
static __always_inline int flow_well_known(const struct flow_key *key, const struct flow *f)
{
	__u16 port = bpf_ntohs(f->primary ? key->dport : key->sport);

	return port && port < 1024;
}

/*
 * Reports whether a flow may be removed. a is the entry of key, b the other one, which may be
 * missing. under_pressure: its port or table entry is needed; then closed_floor bounds a closed TCP
 * flow, udp_known_timeout a UDP flow to a well-known port, and unreplied_timeout any flow without a
 * reply yet. Races with the packet path, which may refresh `seen` between the check and the
 * removal. In the worst case a flow is removed that becomes active again at the very end of its
 * timeout. Accepted, as in every NAT.
 */
static __always_inline int flow_expired(const struct flow_key *key, const struct flow *a, const struct flow *b,
					__u64 now, int under_pressure)
{
	__u64 seen = a->seen, limit = udp_timeout;
	__u8 both = 0, any = a->tcp;

	if (b) {
		if (b->seen > seen)
			seen = b->seen;
		both = a->tcp & b->tcp;
		any |= b->tcp;
	}
	if (key->proto == PROTO_TCP) {
		limit = tcp_transitory_timeout;
		if ((any & TCP_SEEN_RST) || (both & TCP_SEEN_FIN)) {
			if (under_pressure)
				limit = closed_floor;
		} else if (both & TCP_SEEN_ACK) {
			limit = tcp_established_timeout;
		} else if (under_pressure && limit > unreplied_timeout) {
			limit = unreplied_timeout;
		}
	} else {
		const struct flow *answer = a->primary ? b : a;

		if (key->proto == PROTO_ICMP)
			limit = icmp_timeout;
		else if (under_pressure && flow_well_known(key, a))
			limit = udp_known_timeout;
		if (under_pressure && limit > unreplied_timeout && !(answer && (answer->tcp & TCP_SEEN_ACK)))
			limit = unreplied_timeout;
	}
	return now > seen && now - seen > limit;
}

/*
 * The state of an entry, right after its look-up: flow_mark_dying() fails if the element is
 * recycled in between.
 */
static __always_inline __u64 flow_state(const struct flow *f)
{
	return *(const volatile __u64 *)&f->state;
}

/*
 * Marks an entry as dying. The compare-and-swap on state, generation included, lets only one of
 * several removers delete it; flow_find() ignores a dying entry. Until the delete, a packet that
 * opens the same flow finds the key taken and is dropped; its sender retries. `seen` is set to the
 * time of the mark just before, for flow_bury().
 */
static __always_inline int flow_mark_dying(struct flow *f, __u64 state, __u64 now)
{
	if (state & DYING)
		return 0;
	f->seen = now;
	return __sync_val_compare_and_swap(&f->state, state, state | DYING) == state;
}

/*
 * Deletes an entry that has been dying for a second: kernels without d35381aa73f7 refuse a delete
 * (EBUSY) while this CPU holds a lock of the table. Sooner, its remover may still be about to
 * delete the key, and would then delete the next flow with that key. The flow is no longer counted
 * in `usage`.
 */
static __always_inline int flow_bury(const struct flow_key *key, struct flow *f, __u64 now)
{
	__u64 seen = *(volatile __u64 *)&f->seen;

	/*
	 * The swap lets one bury it; it fails if the element is that of the next tenant
	 * meanwhile.
	 */
	return now > seen + SECOND && __sync_val_compare_and_swap(&f->seen, seen, now) == seen &&
	       !bpf_map_delete_elem(&flows, key);
}

/*
 * Key and value of the map `usage`, in memory that the caller does not need at the time, to save
 * stack.
 */
struct usage_scratch {
	struct usage_key key;
	__s64 none;
};
_Static_assert(sizeof(struct usage_scratch) <= sizeof(struct flow_key), "usage_scratch fits a flow_key");

/*
 * The cluster in the key of `usage` under which the flow of a local source is counted. primary, tcp:
 * key and field of its primary entry. Hosts outside the cluster count as one: their addresses are
 * forged more easily than those of pods, and would fill the map.
 */
static __always_inline __u32 usage_of_client(const struct flow_key *primary, __u8 tcp)
{
	return (__u32)(primary->direction & DIRECTION_MAPPING) * USAGE_MAPPINGS +
	       (__u32)(tcp & FLOW_EXTERNAL) * USAGE_EXTERNAL;
}

/* Reports whether the flows under such a cluster are counted for each source. */
static __always_inline int usage_by_source(__u32 cluster)
{
	return !(cluster & ~(DIRECTION_MAPPING * USAGE_MAPPINGS));
}

static __always_inline void usage_key_of(struct usage_key *k, const struct flow_key *primary, __u32 cluster)
{
	k->source = usage_by_source(cluster) ? primary->saddr : 0;
	k->cluster = cluster;
}

static __always_inline void usage_change(const struct usage_key *k, __s64 change)
{
	__s64 *count = bpf_map_lookup_elem(&usage, k);

	if (count)
		__sync_fetch_and_add(count, change);
}

/* Counts a flow that has been opened (change 1) or removed (-1). */
static __always_inline void usage_add(const struct flow_key *primary, __u32 cluster, __s64 change,
				      struct usage_scratch *scratch)
{
	usage_key_of(&scratch->key, primary, cluster);
	usage_change(&scratch->key, change);
	scratch->key = (struct usage_key){};
	usage_change(&scratch->key, change);
}

/* Without room for another counter it is 0. */
static __always_inline __s64 usage_read(struct usage_scratch *scratch)
{
	__s64 *count = bpf_map_lookup_elem(&usage, &scratch->key);

	if (count)
		return *count;
	scratch->none = 0;
	bpf_map_update_elem(&usage, &scratch->key, &scratch->none, BPF_NOEXIST);
	return 0;
}

/*
 * The flows, or mappings, that a source or cluster has open. Races with other CPUs: each may open
 * one beyond a limit.
 */
static __always_inline __s64 usage_count(const struct flow_key *primary, __u32 cluster, struct usage_scratch *scratch)
{
	usage_key_of(&scratch->key, primary, cluster);
	return usage_read(scratch);
}

/*
 * Removes a flow by its primary entry. Returns 1 if this call did. *other, the caller's, receives
 * the other key.
 */
static __always_inline int flow_remove(const struct flow_key *primary, struct flow *f, __u64 state, __u64 now,
				       struct flow_key *other)
{
	__u32 cluster = f->role == FLOW_CLIENT ? usage_of_client(primary, f->tcp) : f->cluster;

	flow_key_other(other, primary, f);
	if (!flow_mark_dying(f, state, now))
		return 0;
	bpf_map_delete_elem(&flows, other);
	bpf_map_delete_elem(&flows, primary);
	usage_add(primary, cluster, -1, (void *)other);
	return 1;
}

/* Removes an answer entry without a primary one, left by an interrupted claim. */
static __always_inline int flow_remove_orphan(const struct flow_key *key, struct flow *f, __u64 state, __u64 now)
{
	if (!flow_mark_dying(f, state, now))
		return 0;
	bpf_map_delete_elem(&flows, key);
	return 1;
}

enum reclaimed {
	RECLAIM_KEPT = 0,
	RECLAIM_GONE,	 /* no such entry */
	RECLAIM_REMOVED, /* by this call */
};

/* Removes the flow of an entry if it has expired. */
__noinline int flow_reclaim(const struct flow_key *of, __u64 now, int under_pressure)
{
	union {
		struct flow_key other_key;
		volatile __u64 state; /* after its look-up, to save stack: of the entry to be marked */
	} of_other;
	struct flow *f, *other;
	struct flow_key key;
	__u64 state;

	if (!of)
		return RECLAIM_KEPT;
	key = *of;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f)
		return RECLAIM_GONE;
	state = flow_state(f);
	if (state & DYING)
		return flow_bury(&key, f, now) ? RECLAIM_REMOVED : RECLAIM_KEPT;
	flow_key_other(&of_other.other_key, &key, f);
	other = bpf_map_lookup_elem(&flows, &of_other.other_key);
	of_other.state = other && other->primary && !f->primary ? flow_state(other) : state;
	if (!flow_expired(&key, f, other, now, under_pressure))
		return RECLAIM_KEPT;
	state = of_other.state;
	flow_key_other(&of_other.other_key, &key, f);
	if (f->primary)
		return flow_remove(&key, f, state, now, &of_other.other_key) ? RECLAIM_REMOVED : RECLAIM_KEPT;
	if (other && other->primary)
		return flow_remove(&of_other.other_key, other, state, now, &key) ? RECLAIM_REMOVED : RECLAIM_KEPT;
	return flow_remove_orphan(&key, f, state, now) ? RECLAIM_REMOVED : RECLAIM_KEPT;
}

/* Removes a flow whatever its timers. */
__noinline int flow_evict(const struct flow_key *of)
{
	struct flow_key key, other_key;
	struct flow *f, *other;
	__u64 state, now = bpf_ktime_get_ns();

	if (!of)
		return 0;
	key = *of;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f)
		return 0;
	state = flow_state(f);
	if (state & DYING)
		return flow_bury(&key, f, now);
	if (f->primary)
		return flow_remove(&key, f, state, now, &other_key);
	flow_key_other(&other_key, &key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	if (other && other->primary)
		return flow_remove(&other_key, other, flow_state(other), now, &key);
	return flow_remove_orphan(&key, f, state, now);
}

#define SLOT_TRIES 4
#define ROOM_TRIES 64

/* The next slot of the ring. */
static __always_inline struct flow_key *flow_next_slot(__u64 *next)
{
	__u32 slot = __sync_fetch_and_add(next, 1) & (slot_count - 1);

	return bpf_map_lookup_elem(&slots, &slot);
}

/*
 * Takes a ring slot for a new flow and removes expired flows on the way. A flow without a slot
 * works too; only the sweep program finds it then.
 */
__noinline int flow_take_slot(const struct flow_key *primary, __u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&hand, &zero);

	if (!primary || !next)
		return 0;
	for (int i = 0; i < SLOT_TRIES; i++) {
		struct flow_key *k = flow_next_slot(next), seen;

		if (!k)
			return 0;
		seen = *k; /* may be torn by a CPU that takes the same slot; a torn key matches no flow */
		if (seen.proto && flow_reclaim(&seen, now, 0) == RECLAIM_KEPT)
			continue;
		*k = *primary;
		return 1;
	}
	return 0;
}

/*
 * Removes one flow when the table is full, the oldest removable one of the ring, and rewinds the
 * ring so that the new flow gets its slot. Races with other CPUs. In the worst case one of two new
 * flows has no slot.
 */
__noinline int flow_make_room(__u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&hand, &zero);

	if (!next)
		return 0;
	for (int i = 0; i < ROOM_TRIES; i++) {
		struct flow_key *k = flow_next_slot(next), seen;

		if (!k)
			return 0;
		seen = *k;
		if (seen.proto && flow_reclaim(&seen, now, 1) == RECLAIM_REMOVED) {
			__sync_fetch_and_add(next, -1);
			return 1;
		}
	}
	return 0;
}

/*
 * Reports whether a source or cluster with so many flows may open another one: up to a quarter of
 * the table for a local source and half of it for a remote cluster or the hosts outside this one
 * (RFC 6888 REQ-5), and no more than are free. So the table is never filled by few, and those with
 * fewer flows find room. Beyond what is free, a flow that may go under pressure makes room.
 */
static __always_inline int usage_permits(__u32 cluster, __s64 count, __u64 now, struct usage_scratch *scratch)
{
	if (count >= flow_limit >> (1 + usage_by_source(cluster)))
		return 0;
	scratch->key = (struct usage_key){};
	return count < flow_limit - usage_read(scratch) || flow_make_room(now);
}

/*
 * Inserts a new entry. Returns 0, -EEXIST, -E2BIG if there is no room, -ENOMEM if the kernel finds
 * no memory for it, or another error.
 */
static __always_inline int flow_insert(const struct flow_key *key, const struct flow *f, __u64 now)
{
	int err = bpf_map_update_elem(&flows, key, f, BPF_NOEXIST);

	if (err == -E2BIG && flow_make_room(now))
		err = bpf_map_update_elem(&flows, key, f, BPF_NOEXIST);
	return err;
}

/*
 * Inserts an entry of a flow, which claims the tuple on that side. An expired or dying entry with
 * the same key is removed first. Errors: as flow_insert().
 */
static __always_inline int flow_claim(const struct flow_key *key, const struct flow *f, __u64 now, int under_pressure)
{
	int err = flow_insert(key, f, now);

	if (err != -EEXIST || flow_reclaim(key, now, under_pressure) == RECLAIM_KEPT)
		return err;
	return flow_insert(key, f, now);
}

/* The verdict on a packet whose flow was not inserted; taken: if its tuple belongs to another flow. */
static __always_inline enum verdict flow_failed(int err, enum verdict taken)
{
	switch (err) {
	case -EEXIST:
		return taken;
	case -E2BIG:
		return VERDICT_DROP_FLOWS_FULL;
	case -ENOMEM:
		return VERDICT_DROP_NO_MEMORY;
	}
	return VERDICT_DROP_INTERNAL;
}

static __always_inline __u64 flow_new_state(void)
{
	return (bpf_ktime_get_ns() << 1) & ~DYING;
}

/*
 * The answer entry of a new flow; `key` is the tuple before translation. Both entries get the same
 * time: an answer claimed before its primary exists must not look orphaned.
 */
static __always_inline void flow_make_answer(struct flow *f, const struct flow_key *key, __u8 role, __u16 cluster,
					     __u32 device, __u64 now)
{
	*f = (struct flow){
		.state = flow_new_state(),
		.seen = now,
		.saddr = key->daddr,
		.daddr = key->saddr,
		.sport = key->dport,
		.dport = key->sport,
		.cluster = cluster,
		.role = role,
		.device = device,
	};
}

/* Makes the key of the answer entry: `key` is the tuple before translation, `t` after it. */
static __always_inline void flow_key_answer(struct flow_key *k, const struct flow_key *key, const struct tuple *t)
{
	k->saddr = t->daddr;
	k->daddr = t->saddr;
	k->sport = t->dport;
	k->dport = t->sport;
	k->proto = key->proto;
	k->direction = key->direction ^ 1;
	k->pad = 0;
}

/* Turns the answer entry, which has been inserted, into the primary one. */
static __always_inline void flow_make_primary(struct flow *f, const struct tuple *t)
{
	f->primary = 1;
	f->saddr = t->saddr;
	f->daddr = t->daddr;
	f->sport = t->sport;
	f->dport = t->dport;
}

/*
 * Refreshes the mapping of a flow on a packet in either direction (RFC 4787 REQ-6), so that the
 * mapping outlives its flows. out: the packet comes from the local source.
 */
__noinline int mapping_touch(const struct packet *p, __u32 out, __u64 now)
{
	struct flow_key key = { .proto = PROTO_UDP };
	struct flow *mapping;

	if (!p)
		return 0;
	if (out) {
		key.saddr = p->saddr;
		key.sport = p->sport;
		key.direction = DIRECTION_OUT | DIRECTION_MAPPING;
	} else {
		key.daddr = p->daddr;
		key.dport = p->dport;
		key.direction = DIRECTION_IN | DIRECTION_MAPPING;
	}
	mapping = flow_find(&key);
	if (mapping) {
		mapping->seen = now;
		mapping->tcp |= TCP_SEEN_ACK;
	}
	return 0;
}

/*
 * Refreshes the entry of this direction. `seen` is written at most once a second to keep the cache
 * line shared. ICMP errors neither refresh nor end a flow (RFC 5508 REQ-6, RFC 5382 REQ-10).
 */
static __always_inline void flow_touch(struct flow *f, const struct packet *p, __u64 now)
{
	__u8 tcp = f->tcp;

	if (p->error)
		return;
	if ((tcp & FLOW_MAPPED) && (now - f->seen > SECOND || !(tcp & TCP_SEEN_ACK)))
		mapping_touch(p, f->primary, now);
	if (now - f->seen > SECOND)
		f->seen = now;
	if (p->proto != PROTO_TCP) {
		if (!(tcp & TCP_SEEN_ACK))
			f->tcp = tcp | TCP_SEEN_ACK;
		return;
	}
	if (p->fragment == LATER_FRAGMENT)
		return;
	if (p->tcp_flags & TCP_ACK)
		tcp |= TCP_SEEN_ACK;
	if (p->tcp_flags & TCP_FIN)
		tcp |= TCP_SEEN_FIN;
	if (p->tcp_flags & TCP_RST)
		tcp |= TCP_SEEN_RST;
	if (tcp != f->tcp) {
		f->tcp = tcp;
		f->seen = now;
	}
}

static __always_inline int packet_opens_flow(const struct packet *p)
{
	if (p->fragment == LATER_FRAGMENT || p->echo_reply || p->error)
		return 0;
	if (p->proto == PROTO_TCP)
		return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
	return 1;
}

/*
 * Reports whether the packet is a SYN of the opener on a flow that is over: a new connection on the
 * same tuple (RFC 9293 3.6.1). f must be the primary entry; *other becomes the answer entry.
 */
static __always_inline int flow_reopens(const struct flow_key *key, const struct flow *f, const struct packet *p,
					struct flow **other)
{
	struct flow_key other_key;

	if (p->proto != PROTO_TCP || !f->primary || !packet_opens_flow(p))
		return 0;
	flow_key_other(&other_key, key, f);
	*other = bpf_map_lookup_elem(&flows, &other_key);
	return flow_closing(f, *other);
}
