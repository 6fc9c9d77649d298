/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rate-limits WireGuard handshake initiations from unknown addresses: answering one costs about a thousand times what
 * sending it costs. Everything else passes from any address: peers roam, and WireGuard authenticates them.
 */
#pragma once
#include "rx.h"
#include "config.h"
#include "ctx.h"
#include "health.h"
#include "parse.h"

#define HANDSHAKE_INITIATION 1 /* WireGuard: type in the first 32 bits, little endian */
#define CALL_TRIES 4

/*
 * Takes a token of the bucket for one initiation; reports whether there was one. The bucket is kept as the time at
 * which it is full again (GCRA, ITU-T I.371). CPUs race by compare-and-swap; after CALL_TRIES losses the packet is
 * dropped, since only a flood causes them.
 */
static __always_inline int wg_may_call(void)
{
	__u64 now = now_ns(), *full, was, from;
	__u32 zero = 0;

	full = bpf_map_lookup_elem(&calls, &zero);
	if (!full)
		return 0;
	for (int i = 0; i < CALL_TRIES; i++) {
		was = *(volatile __u64 *)full;
		from = was > now ? was : now;
		if (from - now > handshake_burst)
			return 0;
		if (__sync_val_compare_and_swap(full, was, from + handshake_interval) == was)
			return 1;
	}
	return 0;
}

/* A UDP packet to this node, but to none of our own ports. */
static __always_inline int wg_guard(void *ctx, enum hook hook, const struct outer_udp *o)
{
	__u32 zero = 0, *type;
	struct guard *g = bpf_map_lookup_elem(&guards, &zero);

	if (!g || (__u16)(bpf_ntohs(o->dest) - g->first) >= g->ports)
		return ctx_pass(hook);
	type = ctx_at(ctx, hook, o->l4 + sizeof(struct udp), sizeof(*type));
	if (!type || *type != HANDSHAKE_INITIATION || bpf_map_lookup_elem(&callers, &o->saddr))
		return ctx_pass(hook);
	/* uplink_xdp has counted it already. */
	if (!is_xdp(hook)) {
		__u32 ifindex = ((struct __sk_buff *)ctx)->ifindex;

		if (bpf_map_lookup_elem(&uplinks, &ifindex))
			return ctx_pass(hook);
	}
	return wg_may_call() ? ctx_pass(hook) : finish(ctx, hook, VERDICT_DROP_HANDSHAKE);
}
