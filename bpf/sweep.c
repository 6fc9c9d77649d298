// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Removal of flows at the daemon's request. User space picks candidates from a dump; this program
 * decides, with the same compare-and-swap as the packet path, which protects a flow that has just
 * become active.
 */
#include "flow.h"

SEC("syscall")
int sweep_flows(struct sweep *ctx)
{
	__u64 now = bpf_ktime_get_ns(); /* this program type has no coarse clock */
	__u32 removed = 0;

	/* Unrolled: the argument may be read at constant offsets only. */
#pragma clang loop unroll(full)
	for (int i = 0; i < SWEEP_BATCH; i++) {
		struct flow_key key;

		if (i >= ctx->count)
			break;
		key = ctx->keys[i];
		if (ctx->force)
			removed += flow_evict(&key);
		else if (flow_reclaim(&key, now, 0) == RECLAIM_REMOVED)
			removed++;
	}
	ctx->removed = removed;
	return 0;
}
