// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Removal of flows at the daemon's request. User space picks candidates from a dump; this program decides, with the
 * same compare-and-swap as the packet path, which protects a flow that has just become active.
 */
#include "flow.h"

/* Removes a flow whatever its timers. */
__noinline int flow_evict(const struct flow_key *of)
{
	struct flow_key key, other_key;
	struct flow *f, *other;

	if (!of)
		return 0;
	key = *of;
	f = bpf_map_lookup_elem(&flows, &key);
	if (!f)
		return 0;
	if (f->primary)
		return flow_remove(&key, f);
	flow_key_other(&other_key, &key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	if (other && other->primary)
		return flow_remove(&other_key, other);
	return flow_remove_orphan(&key, f);
}

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
