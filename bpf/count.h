/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The one exit of every program: count what became of the packet, and say it to the kernel. */
#pragma once
#include "maps.h"

/* Return codes of TCX; clsact knows the same numbers as TC_ACT_UNSPEC, _OK, _SHOT, _REDIRECT. */
enum action {
	ACTION_NEXT = -1,
	ACTION_PASS = 0,
	ACTION_DROP = 2,
	ACTION_REDIRECT = 7,
};

static __always_inline void count(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	__u32 key = hook * VERDICT_MAX + verdict;
	struct counter *c = bpf_map_lookup_elem(&counters, &key);

	if (c) {
		c->packets++;
		c->bytes += skb->len;
	}
}

/* For verdicts without a redirect: drops drop, the rest goes on to the next program and to the stack. */
static __always_inline int finish(struct __sk_buff *skb, enum hook hook, enum verdict verdict)
{
	count(skb, hook, verdict);
	return verdict >= VERDICT_DROP_MALFORMED ? ACTION_DROP : ACTION_NEXT;
}
