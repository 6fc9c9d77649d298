/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Liveness of paths: what the probes say of them. How probes are sent and answered: probe.h. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "maps.h"

static __always_inline __u64 now_ns(void)
{
	return bpf_ktime_get_coarse_ns();
}

static __always_inline struct path *path_to(__be32 address)
{
	return bpf_map_lookup_elem(&paths, &address);
}

/*
 * Suspect: enough probes are open, and the oldest of them for longer than an answer takes. An answer settles all earlier
 * probes. A prober that does not send makes nothing suspect. Returns for how many ns the oldest of them is open, as far as
 * the ring goes back; 0: not suspect.
 */
static __always_inline __u64 suspect(const struct path *p, __u64 now)
{
	__u32 newest = p->sequence, open = newest - p->answered, oldest;
	__u64 sent;

	if (open < (p->loss > LIVENESS_LOSSY ? LIVENESS_UNANSWERED_LOSSY : LIVENESS_UNANSWERED))
		return 0;
	oldest = open > PROBE_RING ? newest + 1 : newest + 1 - open;
	sent = p->ring[oldest % PROBE_RING].sent;
	return now > sent && now - sent > p->srtt + 4ULL * p->rttvar + LIVENESS_FLOOR ? now - sent : 0;
}

/*
 * Given up: suspect and silent for long. On a path that was idle the last answer is old from the start, so enough probes
 * must be open, or one for long.
 */
static __always_inline int given_up(const struct path *p, __u64 now)
{
	__u64 open = suspect(p, now);

	return open && now > p->seen + LIVENESS_GONE + p->srtt &&
	       (p->sequence - p->answered > PROBE_RING || open > LIVENESS_GONE - LIVENESS_FLOOR);
}

/*
 * A node, at a gateway, is not probed while its own probes come in at the full rate: they say whether the gateway's answers
 * arrive. Else the programs probe it beside the packets that go there.
 */
#define FULL_RATE (25 * MILLISECOND)

static __always_inline int heard_lately(const struct path *p, __u64 now)
{
	__u64 every = p->promised * MILLISECOND, heard = p->heard;

	return every && every <= FULL_RATE && (now < heard || now - heard < every * 3 / 2);
}

/* How good a path is. Traffic takes the best one there is: if all are bad, all are used. */
enum rank {
	RANK_GOOD = 0,
	RANK_STALE = 1, /* the far tables were not confirmed for long */
	RANK_LOSSY = 2, /* more than a tenth of the probes was lost lately */
	RANK_BAD = 3,	/* suspect, or it does not get there */
	RANK_GONE =
		4, /* silent for long, or the far side says that it does not pass packets on: worse than a moment's silence */
	RANK_NONE = 5,
};

#define AVOIDED_LOSS (65536 / 10)

/* A path that nobody probes is taken as it is. One that is probed is used from the first answer on. */
static __always_inline __u32 rank_of(const struct path *p, __u64 now)
{
	if (!p)
		return RANK_GOOD;
	if (p->probed && !p->ready)
		return RANK_GONE;
	if (given_up(p, now))
		return RANK_GONE;
	if (suspect(p, now) || p->deaf)
		return RANK_BAD;
	if (p->loss > AVOIDED_LOSS)
		return RANK_LOSSY;
	return p->age > stale_after ? RANK_STALE : RANK_GOOD;
}

static __always_inline int has_bit(const __u64 *words, __u32 n)
{
	return (words[n / 64 % CLUSTER_WORDS] >> (n % 64)) & 1;
}

/* Notes whether any gateway of a remote cluster answers this gateway; replies to probes tell it to the nodes. */
static __always_inline void note_reach(__u32 cluster, int reached)
{
	__u32 zero = 0;
	struct standing *s = bpf_map_lookup_elem(&standings, &zero);
	__u64 bit = 1ULL << (cluster % 64), *word;

	if (!s || has_bit(s->unreachable, cluster) == !reached)
		return;
	word = &s->unreachable[cluster / 64 % CLUSTER_WORDS];
	if (reached)
		__sync_fetch_and_and(word, ~bit);
	else
		__sync_fetch_and_or(word, bit);
}
