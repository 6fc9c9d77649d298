// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Changes what this node's replies advertise, at the daemon's request. A map update from user space
 * would overwrite words of `unreachable` that the packet path changes at the same time.
 */
#include "maps.h"

static __always_inline void replace_word(__u64 *word, __u64 want)
{
	__u64 have = *(volatile __u64 *)word;

	__sync_fetch_and_or(word, want & ~have);
	__sync_fetch_and_and(word, want | ~have);
}

SEC("syscall")
int advertise(struct advertisement *ctx)
{
	__u32 zero = 0;
	struct advertised *s = bpf_map_lookup_elem(&standings, &zero);
	struct cluster_set *l = bpf_map_lookup_elem(&own_losses, &zero);

	if (!s || !l)
		return -1;
	if (ctx->confirm)
		*(volatile __u64 *)&s->confirmed = bpf_ktime_get_ns();
	if (!ctx->replace)
		return 0;
		/* Unrolled: the argument may be read at constant offsets only. */
#pragma clang loop unroll(full)
	for (int i = 0; i < CLUSTER_WORDS; i++) {
		replace_word(&s->unreachable[i], ctx->unreachable[i]);
		replace_word(&l->words[i], ctx->lossy[i]);
	}
	return 0;
}
