/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What tc and XDP share: access to the bytes, the length, the exit of every program. `ctx` is a
 * struct __sk_buff, at HOOK_UPLINK_XDP a struct xdp_md. In inlined functions the hook is a
 * constant, so each program keeps its own half; of a function that is not inlined the verifier
 * walks that half only.
 */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "maps.h"
#include "types.h"

static __always_inline int is_xdp(enum hook hook)
{
	return hook == HOOK_UPLINK_XDP;
}

/*
 * data and data_end through a load that the compiler cannot fold into arithmetic on the context
 * pointer, which the verifier refuses.
 */
#define CTX_POINTER(ctx, type, field)                                                                                  \
	({                                                                                                             \
		void *__p;                                                                                             \
		asm volatile("%[p] = *(u32 *)(%[s] + %[o])"                                                            \
			     : [p] "=r"(__p)                                                                           \
			     : [s] "r"(ctx), [o] "i"(__builtin_offsetof(struct type, field)));                         \
		__p;                                                                                                   \
	})

/*
 * No header that is parsed begins behind this offset: outer headers, inner IPv4, ICMP, quoted
 * IPv4.
 */
#define OFFSET_MAX 255

/*
 * The bytes [off, off+len) of a packet as linear memory, or 0. Invalidates earlier pointers. The
 * empty asm keeps the compiler from recomputing the checked pointer, which the verifier would take
 * for a different one. off is checked since the verifier loses its bounds when it is spilled.
 */
static __always_inline void *skb_at(struct __sk_buff *skb, __u32 off, __u32 len)
{
	void *at, *end;

	asm volatile("" : "+r"(off));
	if (off > OFFSET_MAX)
		return 0;
	at = CTX_POINTER(skb, __sk_buff, data) + off;
	end = CTX_POINTER(skb, __sk_buff, data_end);
	asm volatile("" : "+r"(at));
	if (at + len > end) {
		if (bpf_skb_pull_data(skb, off + len))
			return 0;
		at = CTX_POINTER(skb, __sk_buff, data) + off;
		end = CTX_POINTER(skb, __sk_buff, data_end);
		asm volatile("" : "+r"(at));
		if (at + len > end)
			return 0;
	}
	return at;
}

/* The same in XDP, where frames are linear. */
static __always_inline void *xdp_at(struct xdp_md *xdp, __u32 off, __u32 len)
{
	void *at, *end;

	asm volatile("" : "+r"(off));
	if (off > OFFSET_MAX)
		return 0;
	at = CTX_POINTER(xdp, xdp_md, data) + off;
	end = CTX_POINTER(xdp, xdp_md, data_end);
	asm volatile("" : "+r"(at));
	return at + len > end ? 0 : at;
}

static __always_inline void *ctx_at(void *ctx, enum hook hook, __u32 off, __u32 len)
{
	return is_xdp(hook) ? xdp_at(ctx, off, len) : skb_at(ctx, off, len);
}

/* Length from the Ethernet header on. */
static __always_inline __u32 ctx_len(void *ctx, enum hook hook)
{
	if (is_xdp(hook))
		return CTX_POINTER(ctx, xdp_md, data_end) - CTX_POINTER(ctx, xdp_md, data);
	return ((struct __sk_buff *)ctx)->len;
}

/* Number of packets on the wire: the segments of a GSO packet. */
static __always_inline __u32 ctx_segments(void *ctx, enum hook hook)
{
	return is_xdp(hook) ? 1 : ((struct __sk_buff *)ctx)->gso_segs;
}

/*
 * Reports whether a frame is a GSO packet. Not by gso_segs, which bpf_skb_adjust_room() clears and
 * a veth pair passes on.
 */
static __always_inline int ctx_is_gso(void *ctx, enum hook hook)
{
	return !is_xdp(hook) && ((struct __sk_buff *)ctx)->gso_size;
}

/* Return codes of TCX; clsact knows the same numbers as TC_ACT_UNSPEC, _OK, _SHOT, _REDIRECT. */
enum action {
	ACTION_NEXT = -1,
	ACTION_PASS = 0,
	ACTION_DROP = 2,
	ACTION_REDIRECT = 7,
};

static __always_inline void count_verdict(void *ctx, enum hook hook, enum verdict verdict)
{
	__u32 key = hook * COUNTER_VERDICTS + verdict;
	struct counter *c = bpf_map_lookup_elem(&counters2, &key);

	if (c) {
		c->packets++;
		c->bytes += ctx_len(ctx, hook);
	}
}

/* Passes a packet to the next program and the stack. */
static __always_inline int ctx_pass(enum hook hook)
{
	return is_xdp(hook) ? XDP_PASS : ACTION_NEXT;
}

/* The one exit for verdicts without a redirect: counts, then drops or passes the packet. */
static __always_inline int finish(void *ctx, enum hook hook, enum verdict verdict)
{
	count_verdict(ctx, hook, verdict);
	if (verdict < VERDICT_DROP_MALFORMED || verdict == VERDICT_OWN_SERVICE)
		return ctx_pass(hook);
	return is_xdp(hook) ? XDP_DROP : ACTION_DROP;
}
