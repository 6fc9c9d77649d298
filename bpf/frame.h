/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What tc and XDP have in common, so that whatever looks at a packet is written once: its bytes, its length, the end of a
 * program. `ctx` is a struct __sk_buff, and at HOOK_UPLINK_XDP a struct xdp_md. Where functions are inlined the hook is a
 * constant and each program keeps its own half; of a function that is not, the verifier walks that half only.
 */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "types.h"

static __always_inline int is_xdp(enum hook hook)
{
	return hook == HOOK_UPLINK_XDP;
}

/*
 * data and data_end through a load that the compiler cannot fold into arithmetic on the context pointer, which the
 * verifier refuses.
 */
#define CTX_POINTER(ctx, type, field)                                                                                  \
	({                                                                                                             \
		void *__p;                                                                                             \
		asm volatile("%[p] = *(u32 *)(%[s] + %[o])"                                                            \
			     : [p] "=r"(__p)                                                                           \
			     : [s] "r"(ctx), [o] "i"(__builtin_offsetof(struct type, field)));                         \
		__p;                                                                                                   \
	})

/* No header that we look at begins behind this: outer headers, inner IPv4, ICMP, quoted IPv4. */
#define OFFSET_MAX 255

/*
 * The bytes [off, off+len) of a packet as a linear piece of memory, or 0. Invalidates earlier pointers. The empty
 * asm keeps the pointer that was checked: computed anew it would be a different one to the verifier. The check of
 * off is for it, too: it has lost the bounds of what was kept in memory.
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

/* The same in XDP, where a frame is linear or does not come to us. */
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

static __always_inline void *packet_at(void *ctx, enum hook hook, __u32 off, __u32 len)
{
	return is_xdp(hook) ? xdp_at(ctx, off, len) : skb_at(ctx, off, len);
}

/* The whole length, from the Ethernet header on. */
static __always_inline __u32 packet_len(void *ctx, enum hook hook)
{
	if (is_xdp(hook))
		return CTX_POINTER(ctx, xdp_md, data_end) - CTX_POINTER(ctx, xdp_md, data);
	return ((struct __sk_buff *)ctx)->len;
}

/* Of how many packets on the wire this one consists. */
static __always_inline __u32 segments(void *ctx, enum hook hook)
{
	return is_xdp(hook) ? 1 : ((struct __sk_buff *)ctx)->gso_segs;
}
