/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Flow entries: looking up, claiming, ageing, removing. The rules are in types.h at struct flow and in the README. */
#pragma once
#include "config.h"
#include "maps.h"
#include "nat.h"

#define DYING 1ULL

static __always_inline __u64 now_ns(void)
{
	return bpf_ktime_get_coarse_ns();
}

static __always_inline void key_of(struct flow_key *k, const struct packet *p, enum direction direction)
{
	k->saddr = p->saddr;
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

/*
 * Whether a flow may go. a and b are its entries, b may be missing. under_pressure: a closed TCP flow goes after
 * closed_floor instead of the transitory timer. Races with the packet path: a packet may refresh `seen` between
 * this look and the removal. The worst result is one flow removed in the very moment when it wakes up after its
 * whole timeout; accepted, as every NAT does.
 */
static __always_inline int expired(__u8 proto, const struct flow *a, const struct flow *b, __u64 now, int under_pressure)
{
	__u64 seen = a->seen, limit = udp_timeout;
	__u8 both = a->tcp, any = a->tcp;

	if (b) {
		if (b->seen > seen)
			seen = b->seen;
		both &= b->tcp;
		any |= b->tcp;
	} else {
		both = 0;
	}
	if (proto == PROTO_TCP) {
		limit = tcp_transitory_timeout;
		if ((any & TCP_SEEN_RST) || (both & TCP_SEEN_FIN)) {
			if (under_pressure)
				limit = closed_floor;
		} else if (both & TCP_SEEN_ACK) {
			limit = tcp_established_timeout;
		}
	} else if (proto == PROTO_ICMP) {
		limit = icmp_timeout;
	}
	return now > seen && now - seen > limit;
}

/*
 * Removes a flow by its primary entry. Two removers, or a remover and a packet, may meet here: the compare-and-swap
 * on the state lets one of them delete; find_flow() takes a dying entry for none. Returns 1 if this caller did it.
 */
static __always_inline int remove_flow(const struct flow_key *primary, struct flow *f)
{
	__u64 state = f->state;
	struct flow_key other;

	if (state & DYING)
		return 0;
	key_of_other(&other, primary, f);
	if (__sync_val_compare_and_swap(&f->state, state, state | DYING) != state)
		return 0;
	bpf_map_delete_elem(&flows, &other);
	bpf_map_delete_elem(&flows, primary);
	return 1;
}

/* Removes the flow that an entry belongs to if its time has come. Returns 1 if the entry is gone now. */
static __noinline int reclaim(const struct flow_key *key, __u64 now, int under_pressure)
{
	struct flow *f, *other;
	struct flow_key other_key;

	if (!key)
		return 0;
	f = bpf_map_lookup_elem(&flows, key);
	if (!f)
		return 1;
	if (f->state & DYING)
		return 0;
	key_of_other(&other_key, key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	if (!expired(key->proto, f, other, now, under_pressure))
		return 0;
	if (f->primary)
		return remove_flow(key, f);
	if (other && other->primary)
		return remove_flow(&other_key, other);
	/* An answer entry without its primary: left by a claim whose second half failed. */
	bpf_map_delete_elem(&flows, key);
	return 1;
}

#define SLOT_TRIES 4

/*
 * Takes a slot of the ring for a new flow and frees what has expired on the way. A flow without a slot works as
 * any other; only the sweep program then finds it.
 */
static __noinline int take_slot(const struct flow_key *primary, __u64 now)
{
	__u32 zero = 0;
	__u64 *next = bpf_map_lookup_elem(&hand, &zero);

	if (!next || !primary)
		return 0;
	for (int i = 0; i < SLOT_TRIES; i++) {
		__u32 slot = __sync_fetch_and_add(next, 1) & (2 * MAX_FLOWS - 1);
		struct flow_key *k = bpf_map_lookup_elem(&slots, &slot), seen;

		if (!k)
			return 0;
		seen = *k; /* may be torn by another CPU that takes the same slot a turn later: then it matches no flow */
		if (seen.proto && !reclaim(&seen, now, 0))
			continue;
		*k = *primary;
		return 1;
	}
	return 0;
}

static __always_inline __u64 new_state(void)
{
	return (bpf_ktime_get_ns() << 1) & ~DYING;
}

/* Fills both entries of a new flow: `key` is the tuple as it comes, `t` as it goes. */
static __always_inline void make_flow(struct flow *primary, struct flow *answer, const struct flow_key *key,
				      const struct tuple *t, __u8 role, __u16 cluster, __be32 pod, __u64 now)
{
	*primary = (struct flow){
		.state = new_state(),
		.seen = now,
		.saddr = t->saddr,
		.daddr = t->daddr,
		.sport = t->sport,
		.dport = t->dport,
		.cluster = cluster,
		.role = role,
		.primary = 1,
		.pod = pod,
	};
	*answer = *primary;
	answer->primary = 0;
	answer->seen = 0;
	answer->saddr = key->daddr;
	answer->daddr = key->saddr;
	answer->sport = key->dport;
	answer->dport = key->sport;
}

/* Refreshes the entry of this direction. `seen` is written at most once a second, so the cache line stays shared. */
static __always_inline void touch(struct flow *f, const struct packet *p, __u64 now)
{
	__u8 tcp = f->tcp;

	if (now - f->seen > SECOND)
		f->seen = now;
	if (p->proto != PROTO_TCP || p->fragment == LATER_FRAGMENT)
		return;
	if (!(p->tcp_flags & TCP_SYN))
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
	if (p->fragment == LATER_FRAGMENT || p->echo_reply)
		return 0;
	if (p->proto == PROTO_TCP)
		return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_SYN;
	return 1;
}

/*
 * A SYN that meets a closed flow opens a new connection on the same tuple (RFC 9293 3.6.1, TIME-WAIT reuse): the
 * flow starts over with its translation. The far node is asked for anew.
 */
static __always_inline void reopen(const struct flow_key *key, struct flow *f, const struct packet *p, __u64 now)
{
	struct flow_key other_key;
	struct flow *other;

	if (p->proto != PROTO_TCP || !f->tcp || !opens_flow(p))
		return;
	key_of_other(&other_key, key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	if (!((f->tcp | (other ? other->tcp : 0)) & (TCP_SEEN_FIN | TCP_SEEN_RST)))
		return;
	f->tcp = 0;
	f->seen = now;
	f->node = 0;
	if (other)
		other->tcp = 0;
}
