/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Token buckets in map values. */
#pragma once
#include <linux/types.h>

#define BUCKET_TRIES 4

/*
 * Takes a token from a bucket; reports whether there was one. The bucket is stored as the time at
 * which it is full again (GCRA, ITU-T I.371): one token per interval, and as many at once as
 * intervals fit into burst. CPUs race by compare-and-swap; after BUCKET_TRIES lost races no token
 * is granted, since only a flood causes so many.
 */
static __always_inline int bucket_take(__u64 *full, __u64 now, __u64 interval, __u64 burst)
{
	for (int i = 0; i < BUCKET_TRIES; i++) {
		__u64 was = *(volatile __u64 *)full, from = was > now ? was : now;

		if (from - now > burst)
			return 0;
		if (__sync_val_compare_and_swap(full, was, from + interval) == was)
			return 1;
	}
	return 0;
}
