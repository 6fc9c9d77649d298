/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Liveness of paths, from the state that probes leave in them. Sending and answering probes: probe.h. */
#pragma once
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "maps.h"

static __always_inline __u64 now_ns(void)
{
	return bpf_ktime_get_coarse_ns();
}

static __always_inline struct path *path_lookup(__be32 address)
{
	return bpf_map_lookup_elem(&paths, &address);
}

/*
 * A path is suspect with enough probes open, the oldest for longer than a reply takes. A reply settles all earlier
 * probes; a prober that stops sending makes nothing suspect. Returns the age in ns of the oldest open probe that the
 * ring holds, 0 if the path is not suspect.
 */
static __always_inline __u64 path_suspect(const struct path *p, __u64 now)
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
 * A path is gone when it is suspect and silent for long. On an idle path the last reply is old from the start, so many
 * probes must be open as well, or one for long.
 */
static __always_inline int path_gone(const struct path *p, __u64 now)
{
	__u64 open = path_suspect(p, now);

	return open && now > p->seen + LIVENESS_GONE + p->srtt &&
	       (p->sequence - p->answered > PROBE_RING || open > LIVENESS_GONE - LIVENESS_FLOOR);
}

/*
 * A gateway does not probe a node that probes it at the full rate: PROBE_DEAF reports the return path already.
 * Otherwise the programs send probes along with packets to the node.
 */
#define FULL_RATE (25 * MILLISECOND)

static __always_inline int path_heard_lately(const struct path *p, __u64 now)
{
	__u64 every = p->promised * MILLISECOND, heard = p->heard;

	return every && every <= FULL_RATE && (now < heard || now - heard < every * 3 / 2);
}

/* Quality of a path, best first. Traffic takes the best one; if all are bad, all are used. */
enum rank {
	RANK_GOOD = 0,
	RANK_STALE = 1, /* the peer's tables were not confirmed for stale_after */
	RANK_LOSSY = 2, /* it loses too many probes (path_note_loss) */
	RANK_BAD = 3,	/* suspect, or the cluster is not reached over it */
	RANK_GONE = 4,	/* gone, or the peer says that it does not forward */
	RANK_NONE = 5,
};

/*
 * Adds a probe to the loss of a path: sample is 65536 if it was lost, else 0. Two thresholds and a minimum time keep
 * flows from changing gateways back and forth: at 5 % the average of 128 probes exceeds 10 % once in hours, at 30 %
 * within 60 probes.
 */
static __always_inline void path_note_loss(struct path *p, __u32 sample, __u64 now)
{
	__u32 seconds = now / SECOND + 1;

	p->loss = p->loss - p->loss / LIVENESS_LOSS_WINDOW + sample / LIVENESS_LOSS_WINDOW;
	if (p->loss > LIVENESS_AVOIDED) {
		if (!p->lossy)
			p->lossy = seconds;
	} else if (p->lossy && p->loss < LIVENESS_LOSSY && seconds - p->lossy >= LIVENESS_AVOIDED_TIME) {
		p->lossy = 0;
	}
}

/* After an outage, all of whose probes were lost, a path need not average for minutes: it starts as a lossy one. */
static __always_inline void path_note_return(struct path *p)
{
	if (p->loss > 2 * LIVENESS_AVOIDED)
		p->loss = 2 * LIVENESS_AVOIDED;
}

/* Rank of a path. One that is not probed is good; one that is, is used from its first reply on. */
static __always_inline __u32 path_rank(const struct path *p, __u64 now)
{
	if (!p)
		return RANK_GOOD;
	if (p->probed && !p->ready)
		return RANK_GONE;
	if (path_gone(p, now))
		return RANK_GONE;
	if (path_suspect(p, now) || p->deaf)
		return RANK_BAD;
	if (p->lossy)
		return RANK_LOSSY;
	return p->age > stale_after ? RANK_STALE : RANK_GOOD;
}

static __always_inline int has_bit(const __u64 *words, __u32 n)
{
	return (words[n / 64 % CLUSTER_WORDS] >> (n % 64)) & 1;
}

/* Records whether any gateway of a remote cluster answers this gateway; replies to probes advertise it to the nodes. */
static __always_inline void advertise_reach(__u32 cluster, int reached)
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
