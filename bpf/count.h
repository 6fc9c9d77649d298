/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The one exit of every program: count what became of the packet, and say it to the kernel. */
#pragma once
#include "frame.h"
#include "maps.h"

/* Return codes of TCX; clsact knows the same numbers as TC_ACT_UNSPEC, _OK, _SHOT, _REDIRECT. */
enum action {
	ACTION_NEXT = -1,
	ACTION_PASS = 0,
	ACTION_DROP = 2,
	ACTION_REDIRECT = 7,
};

static __always_inline void count(void *ctx, enum hook hook, enum verdict verdict)
{
	__u32 key = hook * VERDICT_MAX + verdict;
	struct counter *c = bpf_map_lookup_elem(&counters, &key);

	if (c) {
		c->packets++;
		c->bytes += packet_len(ctx, hook);
	}
}

/* Leaves a packet to whoever comes next. */
static __always_inline int pass(enum hook hook)
{
	return is_xdp(hook) ? XDP_PASS : ACTION_NEXT;
}

/* For verdicts without a redirect: drops drop, the rest goes on to the next program and to the stack. */
static __always_inline int finish(void *ctx, enum hook hook, enum verdict verdict)
{
	count(ctx, hook, verdict);
	if (verdict < VERDICT_DROP_MALFORMED)
		return pass(hook);
	return is_xdp(hook) ? XDP_DROP : ACTION_DROP;
}
