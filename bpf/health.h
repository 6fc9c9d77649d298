/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Liveness of paths, from the state that probes leave in them. Sending and answering probes:
 * probe.h.
 */
#pragma once
#include <bpf/bpf_helpers.h>
#include "config.h"
#include "maps.h"
#include "parse.h"

static __always_inline __u64 now_ns(void)
{
	return bpf_ktime_get_coarse_ns();
}

static __always_inline struct path *path_lookup(__be32 address)
{
	return bpf_map_lookup_elem(&paths, &address);
}

#define NEVER (~0ULL)

/* When the oldest open probe that the ring holds was sent. */
static __always_inline __u64 path_oldest(const struct path *p)
{
	__u32 open = p->sequence - p->answered;

	return p->ring[(open > PROBE_RING ? p->sequence + 1 : p->sequence + 1 - open) % PROBE_RING].sent;
}

/*
 * When a path becomes suspect unless a reply comes in: enough probes are unanswered, the oldest for
 * longer than a reply takes. A reply settles all earlier probes; a prober that stops sending does
 * not make a path suspect.
 */
static __always_inline __u64 path_suspect_at(const struct path *p)
{
	if (p->sequence - p->answered < (p->loss > LIVENESS_LOSS_LOW ? LIVENESS_UNANSWERED_LOSS : LIVENESS_UNANSWERED))
		return NEVER;
	return path_oldest(p) + p->srtt + 4ULL * p->rttvar + LIVENESS_FLOOR;
}

/*
 * When a path is gone: it is suspect and has been silent for long. On an idle path the last reply
 * is old anyway, so in addition many probes must be unanswered, or the oldest one for long.
 */
static __always_inline __u64 path_gone_at(const struct path *p)
{
	__u64 at = path_suspect_at(p), silent = p->seen + LIVENESS_GONE + p->srtt,
	      open = path_oldest(p) + LIVENESS_GONE - LIVENESS_FLOOR;

	if (silent > at)
		at = silent;
	return open > at && p->sequence - p->answered <= PROBE_RING ? open : at;
}

/*
 * A gateway does not probe a node that probes it at the full rate: PROBE_NO_REPLY reports the
 * return path already. Otherwise the programs send probes along with packets to the node.
 */
#define FULL_RATE (25 * MILLISECOND)

/*
 * Probes of a long path are spread over its round-trip time, so that the ring holds all that are in
 * flight.
 */
static __always_inline __u64 path_interval(const struct path *p)
{
	__u64 spread = p->srtt / (PROBE_RING / 2);

	return spread > LIVENESS_INTERVAL ? spread : LIVENESS_INTERVAL;
}

/*
 * When the next probe is overdue and is sent along with a packet. The prober gets half an interval
 * of grace; paths to nodes have no prober.
 */
static __always_inline __u64 path_probe_at(const struct path *p)
{
	__u64 every = p->next_probe * MILLISECOND, wait = path_interval(p),
	      at = p->ring[p->sequence % PROBE_RING].sent + wait + (p->probed ? wait / 2 : 0);

	if (!p->probed && every && every <= FULL_RATE && p->heard + every * 3 / 2 > at)
		at = p->heard + every * 3 / 2;
	return at;
}

/*
 * Quality of a path, or of a gateway for a cluster, best first. The best is taken; if all are bad,
 * all are used.
 */
enum rank {
	RANK_GOOD = 0,
	RANK_STALE = 1, /* the peer's tables were not confirmed for stale_after */
	RANK_LOSSY =
		2, /* it loses too many probes (path_note_loss), or the gateway reaches the cluster by such paths only */
	RANK_BAD = 3,  /* suspect, or the cluster is not reached over it */
	RANK_GONE = 4, /* gone, or the peer says that it does not forward */
	RANK_NONE = 5,
};

/*
 * Adds a probe to the loss of a path: sample is 65536 if it was lost, else 0. Two thresholds and a
 * minimum time keep flows from changing gateways back and forth: at 5 % the average of 128 probes
 * exceeds 10 % once in hours, at 30 % within 60 probes.
 */
static __always_inline void path_note_loss(struct path *p, __u32 sample, __u64 now)
{
	__u32 seconds = now / SECOND + 1;

	p->loss = p->loss - p->loss / LIVENESS_LOSS_WINDOW + sample / LIVENESS_LOSS_WINDOW;
	if (p->loss > LIVENESS_LOSS_HIGH) {
		if (!p->lossy)
			p->lossy = seconds;
	} else if (p->lossy && p->loss < LIVENESS_LOSS_LOW && seconds - p->lossy >= LIVENESS_LOSSY_TIME) {
		p->lossy = 0;
	}
}

/*
 * Caps the loss after an outage, so that the path recovers as a lossy one does, instead of
 * averaging for minutes.
 */
static __always_inline void path_note_return(struct path *p)
{
	if (p->loss > 2 * LIVENESS_LOSS_HIGH)
		p->loss = 2 * LIVENESS_LOSS_HIGH;
}

/* Rank of a path that is not suspect. */
static __always_inline __u32 path_base_rank(const struct path *p)
{
	return p->lossy ? RANK_LOSSY : p->age > stale_after ? RANK_STALE : RANK_GOOD;
}

/*
 * A path that is not probed is used at once; a probed one, once a reply reports that the peer is
 * ready.
 */
static __always_inline int path_ready(const struct path *p)
{
	return !p->probed || p->ready;
}

static __always_inline __u32 path_rank(const struct path *p, __u64 now)
{
	if (!p)
		return RANK_GOOD;
	if (!path_ready(p) || now > path_gone_at(p))
		return RANK_GONE;
	return p->no_reply || now > path_suspect_at(p) ? RANK_BAD : path_base_rank(p);
}

/*
 * Reports whether the peer has not answered for long. A draining peer still answers, forwards and
 * delivers.
 */
static __always_inline int path_dead(__be32 address, __u64 now)
{
	const struct path *p = path_lookup(address);

	return p && now > path_gone_at(p);
}

static __always_inline int has_bit(const __u64 *words, __u32 n)
{
	return (words[n / 64 % CLUSTER_WORDS] >> (n % 64)) & 1;
}

/*
 * A clone is as long as its packet. A packet larger than CLONE_SMALL bytes is cloned only if the
 * probe is overdue by this many intervals, and a GSO packet never: each of its segments would
 * become a probe with the same number.
 */
#define CLONE_INTERVALS 3
#define CLONE_SMALL 256

/*
 * How long a line may be stale if programs of another version, or a change of the tables, have not
 * updated it.
 */
#define PATH_LINE_AGE (250 * MILLISECOND)

/* The slot of a peer in `path_lines`. cluster: 0 for a node of this cluster. */
static __always_inline __u32 path_slot(__u32 cluster, __u32 node)
{
	__u32 half = PATH_LINES / 2;

	return cluster ? half + (hash_mix(cluster, node) & (half - 1)) : node & (half - 1);
}

static __always_inline void path_line_fill(struct path_line *l, const struct path *p, __be32 address, __u64 now)
{
	__u64 doubtful = 0;

	const struct cluster_set *lossy = bpf_map_lookup_elem(&gateway_losses, &address);

	for (int i = 0; i < CLUSTER_WORDS; i++)
		doubtful |= p->unreachable[i] | (lossy ? lossy->words[i] : 0);
	l->doubtful = doubtful;
	l->rank = path_base_rank(p);
	l->suspect_at = p->no_reply ? 0 : path_suspect_at(p);
	l->gone_at = path_ready(p) ? path_gone_at(p) : 0;
	l->probe_at = path_probe_at(p);
	l->clone_at = l->probe_at + CLONE_INTERVALS * path_interval(p);
	l->used = p->used;
	l->address = address;
	l->until = now + PATH_LINE_AGE;
}

static __always_inline struct path_line *path_line_lookup(__u32 slot)
{
	return bpf_map_lookup_elem(&path_lines, &slot);
}

/* Reports whether a line is that of an address and up to date. */
static __always_inline int path_line_fresh(const struct path_line *l, __be32 address, __u64 now)
{
	return l && l->address == address && now < l->until;
}

/* Loads the line of a path: for a packet that takes the path, and after a probe has changed it. */
__noinline int path_line_load(__u32 slot, __be32 address, __u64 now)
{
	struct path_line *l = path_line_lookup(slot);
	const struct path *p = path_lookup(address);

	if (!l || !p)
		return 0;
	path_line_fill(l, p, address, now);
	return 1;
}

static __always_inline __u32 path_line_rank(const struct path_line *l, __u64 now)
{
	return now > l->gone_at ? RANK_GONE : now > l->suspect_at ? RANK_BAD : l->rank;
}

/* From when on a packet of this length is to take a probe with it. */
static __always_inline __u64 path_clone_at(const struct path_line *l, __u32 length)
{
	return length > CLONE_SMALL ? l->clone_at : l->probe_at;
}

static __always_inline void set_bit(__u64 *words, __u32 n, int on)
{
	__u64 bit = 1ULL << (n % 64), *word = &words[n / 64 % CLUSTER_WORDS];

	if (on)
		__sync_fetch_and_or(word, bit);
	else
		__sync_fetch_and_and(word, ~bit);
}

#define LOSS_UNKNOWN 2

/*
 * Records whether any gateway of a remote cluster answers this gateway, and whether only over lossy
 * paths; replies to probes advertise both to the nodes.
 */
__noinline int advertise_reach(__u32 cluster, __u32 reached, __u32 lossy)
{
	__u32 zero = 0;
	struct advertised *s = bpf_map_lookup_elem(&standings, &zero);
	struct cluster_set *own = bpf_map_lookup_elem(&own_losses, &zero);

	if (s && has_bit(s->unreachable, cluster) == reached)
		set_bit(s->unreachable, cluster, !reached);
	if (own && lossy != LOSS_UNKNOWN && has_bit(own->words, cluster) != lossy)
		set_bit(own->words, cluster, lossy);
	return 0;
}
