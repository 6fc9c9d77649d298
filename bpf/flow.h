/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flow entries: looking up, claiming, ageing, removing. The rules are in types.h at struct flow and in the README. */
#pragma once
#include "config.h"
#include "live.h"
#include "maps.h"
#include "nat.h"

/*
 * Functions that are neither static nor inline are looked at by the verifier once, for any argument, instead of once for
 * every way to every call (loops within loops would be too much for it). Hence their checks for null, and their copies of
 * keys: the verifier of Linux 6.1 lets no map helper read what such an argument points to. Their stacks are small because
 * all functions that call each other share 512 bytes, which it counts in steps of 32 for each.
 */

#define DYING 1ULL
#define EEXIST 17
#define E2BIG 7

/* The key of the entry that a packet belongs to. An ICMP error may come from a router: its flow knows the quoted peer. */
static __always_inline void key_of(struct flow_key *k, const struct packet *p, enum direction direction)
{
	k->saddr = p->error ? p->quoted_peer : p->saddr;
	k->daddr = p->daddr;
	k->sport = p->sport;
	k->dport = p->dport;
	k->proto = p->proto;
	k->direction = direction;
	k->pad = 0;
}

/* The key of the other entry of a flow: the answer to what this entry makes of a packet. */
static __always_inline void key_of_other(struct flow_key *k, const struct flow_key *own, const struct flow *f)
{
	k->saddr = f->daddr;
	k->daddr = f->saddr;
	k->sport = f->dport;
	k->dport = f->sport;
	k->proto = own->proto;
	k->direction = !own->direction;
	k->pad = 0;
}

static __always_inline struct flow *find_flow(const struct flow_key *k)
{
	struct flow *f = bpf_map_lookup_elem(&flows, k);

	return f && !(f->state & DYING) ? f : 0;
}

/* What the device of a local source is to be in its flows. */
static __always_inline __u32 device_of(const struct source *s)
{
	return (s->flags & SOURCE_HOST) ? DEVICE_NONE : s->ifindex;
}

static __always_inline int comes_from(__u32 device, __u32 ingress)
{
	return device == DEVICE_ANY || (device == DEVICE_NONE ? ingress == 0 : ingress == device);
}

/*
 * Whether a TCP flow is over. a and b are its entries, b may be missing. One FIN is enough where the opener asks for a
 * new connection on the tuple; the timers want both.
 */
static __always_inline int closing(const struct flow *a, const struct flow *b)
{
	return (a->tcp | (b ? b->tcp : 0)) & (TCP_SEEN_FIN | TCP_SEEN_RST);
}

/* Whether an entry, with its key, is of a flow to one of the ports 1 to 1023. */
static __always_inline int well_known(const struct flow_key *key, const struct flow *f)
{
	__u16 port = bpf_ntohs(f->primary ? key->dport : key->sport);

	return port && port < 1024;
}

/*
 * Whether a flow may go. a is the entry of key, b the other one and may be missing. under_pressure: its port or room is
 * needed; then a closed TCP flow goes after closed_floor, and UDP to a well-known port after udp_known_timeout. Races
 * with the packet path: a packet may refresh `seen` between this look and the removal. The worst result is one flow
 * removed in the very moment when it wakes up after its whole timeout; accepted, as every NAT does.
 */
static __always_inline int expired(const struct flow_key *key, const struct flow *a, const struct flow *b, __u64 now,
				   int under_pressure)
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
		}
	} else if (key->proto == PROTO_ICMP) {
		limit = icmp_timeout;
	} else if (under_pressure && well_known(key, a)) {
		limit = udp_known_timeout;
	}
	return now > seen && now - seen > limit;
}

/*
 * Marks an entry as dying. Several may want to remove one flow: the compare-and-swap on the state, generation
 * included, lets exactly one of them delete, and find_flow() takes a dying entry for none. Between the mark and the
 * delete a packet that wants to open the same flow finds the key taken and is dropped; its sender tries again.
 */
static __always_inline int mark_dying(struct flow *f, __u64 state)
{
	return !(state & DYING) && __sync_val_compare_and_swap(&f->state, state, state | DYING) == state;
}

/*
 * Removes a flow by its primary entry. Returns 1 if this caller did it. The state is read before the tuple: where the
 * element was recycled in between, the swap fails.
 */
static __always_inline int remove_flow(const struct flow_key *primary, struct flow *f)
{
	__u64 state = *(volatile __u64 *)&f->state;
	struct flow_key other;

	key_of_other(&other, primary, f);
	if (!mark_dying(f, state))
		return 0;
	bpf_map_delete_elem(&flows, &other);
	bpf_map_delete_elem(&flows, primary);
	return 1;
}

/* Removes an answer entry without its primary: left by a claim whose second half never came. */
static __always_inline int remove_orphan(const struct flow_key *key, struct flow *f)
{
	if (!mark_dying(f, *(volatile __u64 *)&f->state))
		return 0;
	bpf_map_delete_elem(&flows, key);
	return 1;
}

enum reclaimed {
	RECLAIM_KEPT = 0,
	RECLAIM_GONE,	 /* there was none */
	RECLAIM_REMOVED, /* by this call */
};

/* Removes the flow that an entry belongs to if its time has come. */
__noinline int reclaim(const struct flow_key *of, __u64 now, int under_pressure)
{
	struct flow *f, *other;
	struct flow_key key, other_key;

	if (!of)
		return RECLAIM_KEPT;
	key = *of;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f)
		return RECLAIM_GONE;
	if (f->state & DYING)
		return RECLAIM_KEPT;
	key_of_other(&other_key, &key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	if (!expired(&key, f, other, now, under_pressure))
		return RECLAIM_KEPT;
	if (f->primary)
		return remove_flow(&key, f) ? RECLAIM_REMOVED : RECLAIM_KEPT;
	if (other && other->primary)
		return remove_flow(&other_key, other) ? RECLAIM_REMOVED : RECLAIM_KEPT;
	return remove_orphan(&key, f) ? RECLAIM_REMOVED : RECLAIM_KEPT;
}

#define SLOT_TRIES 4
#define ROOM_TRIES 64

/* The next slot of the ring. */
static __always_inline struct flow_key *next_slot(__u64 *next)
{
	__u32 slot = __sync_fetch_and_add(next, 1) & (2 * MAX_FLOWS - 1);

	return bpf_map_lookup_elem(&slots, &slot);
}

/*
 * Takes a slot of the ring for a new flow and frees what has expired on the way. A flow without a slot works as
 * any other; only the sweep program then finds it.
 */
__noinline int take_slot(const struct flow_key *primary, __u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&hand, &zero);

	if (!primary || !next)
		return 0;
	for (int i = 0; i < SLOT_TRIES; i++) {
		struct flow_key *k = next_slot(next), seen;

		if (!k)
			return 0;
		seen = *k; /* may be torn by another CPU that takes the same slot: then it matches no flow */
		if (seen.proto && reclaim(&seen, now, 0) == RECLAIM_KEPT)
			continue;
		*k = *primary;
		return 1;
	}
	return 0;
}

/*
 * The flow table is full: removes one flow that may go, the oldest first as the ring has them. The hand goes back to its
 * slot, for the new flow to take. Another CPU may come first; then one of the two flows remains without a slot.
 */
__noinline int make_room(__u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&hand, &zero);

	if (!next)
		return 0;
	for (int i = 0; i < ROOM_TRIES; i++) {
		struct flow_key *k = next_slot(next), seen;

		if (!k)
			return 0;
		seen = *k;
		if (seen.proto && reclaim(&seen, now, 1) == RECLAIM_REMOVED) {
			__sync_fetch_and_add(next, -1);
			return 1;
		}
	}
	return 0;
}

/* Inserts an entry that must not exist yet. 0, -EEXIST, or else there is no room (-E2BIG) or memory for it. */
static __always_inline int insert(const struct flow_key *key, const struct flow *f, __u64 now)
{
	int err = bpf_map_update_elem(&flows, key, f, BPF_NOEXIST);

	if (err == -E2BIG && make_room(now))
		err = bpf_map_update_elem(&flows, key, f, BPF_NOEXIST);
	return err;
}

/*
 * Inserts the answer entry of a flow, which is the claim to its tuple on that side. An entry in the way that has run
 * out is removed first. Errors as of insert().
 */
static __always_inline int claim(const struct flow_key *answer_key, const struct flow *answer, __u64 now,
				 int under_pressure)
{
	int err = insert(answer_key, answer, now);

	if (err != -EEXIST || reclaim(answer_key, now, under_pressure) == RECLAIM_KEPT)
		return err;
	return insert(answer_key, answer, now);
}

static __always_inline __u64 new_state(void)
{
	return (bpf_ktime_get_ns() << 1) & ~DYING;
}

/*
 * The answer entry of a new flow, of which `key` is the tuple as it comes. Both entries are as fresh as the flow: an answer
 * that is claimed before its primary exists must not look like one that was left behind.
 */
static __always_inline void make_answer(struct flow *f, const struct flow_key *key, __u8 role, __u16 cluster,
					__u32 device, __u64 now)
{
	*f = (struct flow){
		.state = new_state(),
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

/* Its key: `key` is the tuple as it comes, `t` as it goes. */
static __always_inline void key_of_answer(struct flow_key *k, const struct flow_key *key, const struct tuple *t)
{
	k->saddr = t->daddr;
	k->daddr = t->saddr;
	k->sport = t->dport;
	k->dport = t->sport;
	k->proto = key->proto;
	k->direction = !key->direction;
	k->pad = 0;
}

/* Makes the answer entry, which is in the table by now, the primary one. */
static __always_inline void make_primary(struct flow *f, const struct tuple *t)
{
	f->primary = 1;
	f->saddr = t->saddr;
	f->daddr = t->daddr;
	f->sport = t->sport;
	f->dport = t->dport;
}

/*
 * Refreshes the entry of this direction. `seen` is written at most once a second, so the cache line stays shared. An
 * ICMP error refreshes nothing and ends nothing (RFC 5508 REQ-6, RFC 5382 REQ-10).
 */
static __always_inline void touch(struct flow *f, const struct packet *p, __u64 now)
{
	__u8 tcp = f->tcp;

	if (p->error)
		return;
	if (now - f->seen > SECOND)
		f->seen = now;
	if (p->proto != PROTO_TCP || p->fragment == LATER_FRAGMENT)
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

static __always_inline int opens_flow(const struct packet *p)
{
	if (p->fragment == LATER_FRAGMENT || p->echo_reply || p->error)
		return 0;
	if (p->proto == PROTO_TCP)
		return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
	return 1;
}

/*
 * Whether the packet is a SYN of the opener that meets a flow which is over: a new connection on the same tuple
 * (RFC 9293 3.6.1). The caller has the primary entry; *other is set to the answer entry.
 */
static __always_inline int reopens(const struct flow_key *key, const struct flow *f, const struct packet *p,
				   struct flow **other)
{
	struct flow_key other_key;

	if (p->proto != PROTO_TCP || !f->primary || !opens_flow(p))
		return 0;
	key_of_other(&other_key, key, f);
	*other = bpf_map_lookup_elem(&flows, &other_key);
	return closing(f, *other);
}
