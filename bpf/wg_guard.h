/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Rate-limits WireGuard handshake initiations from unknown addresses: answering one costs about a
 * thousand times what sending it costs. Everything else passes from any address: peers roam, and
 * WireGuard authenticates them.
 */
#pragma once
#include "rx.h"
#include "bucket.h"
#include "config.h"
#include "ctx.h"
#include "health.h"
#include "parse.h"

#define HANDSHAKE_INITIATION 1 /* WireGuard: type in the first 32 bits, little endian */

/*
 * Reports whether an initiation from an address passes. Up to a global rate all do; above it, those
 * from networks (/24) that send few. So one network cannot lock out peers that roam elsewhere, and
 * forged addresses of all networks remain bounded. Networks are hashed with a secret, so that an
 * attacker cannot choose one that shares another's bucket.
 */
static __always_inline int wg_may_call(__be32 from)
{
	__u32 zero = 0, network = from & bpf_htonl(0xffffff00);
	const struct node_settings *s = get_settings();
	__u64 now = now_ns(), *full;

	full = bpf_map_lookup_elem(&calls, &zero);
	if (full && bucket_take(full, now, handshake_interval, handshake_burst))
		return 1;
	network = hash_mix(network, s ? s->cookie : 0) % HANDSHAKE_NETWORKS;
	full = bpf_map_lookup_elem(&network_calls, &network);
	return full && bucket_take(full, now, network_interval, network_burst);
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
	return wg_may_call(o->saddr) ? ctx_pass(hook) : finish(ctx, hook, VERDICT_DROP_HANDSHAKE);
}
