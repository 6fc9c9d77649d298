/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The guard of an encrypted wire's ports. Who has no key yet may call, but not as often as he likes: a handshake costs
 * the wire a thousand times what it costs the caller. Everything else passes, whatever its address: peers roam, and the wire
 * knows its own.
 */
#pragma once
#include "admit.h"
#include "config.h"
#include "count.h"
#include "live.h"
#include "parse.h"

#define HANDSHAKE_INITIATION 1 /* WireGuard: type in the first 32 bits, little endian */
#define CALL_TRIES 4

/*
 * Whether one more call from an unknown address may pass: a token bucket, kept as the time at which it will be full again
 * (GCRA, ITU-T I.371). CPUs race by compare-and-swap; who loses four times in a row has met a flood, and is refused.
 */
static __always_inline int may_call(void)
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

/* A packet to this node's address and none of our own ports. */
static __always_inline int guard(void *ctx, enum hook hook, const struct outer_udp *o)
{
	__u32 zero = 0, *type;
	struct guard *g = bpf_map_lookup_elem(&guards, &zero);

	if (!g || (__u16)(bpf_ntohs(o->dest) - g->first) >= g->ports)
		return pass(hook);
	type = packet_at(ctx, hook, o->l4 + sizeof(struct udp), sizeof(*type));
	if (!type || *type != HANDSHAKE_INITIATION || bpf_map_lookup_elem(&callers, &o->saddr))
		return pass(hook);
	/* Where XDP is at work it has let the packet pass already. */
	if (!is_xdp(hook)) {
		__u32 ifindex = ((struct __sk_buff *)ctx)->ifindex;

		if (bpf_map_lookup_elem(&uplinks, &ifindex))
			return pass(hook);
	}
	return may_call() ? pass(hook) : finish(ctx, hook, VERDICT_DROP_HANDSHAKE);
}
