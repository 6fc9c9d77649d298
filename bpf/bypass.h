/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Bypassing the node's stack: which packets of a pod may take the fast path between its device and
 * the overlay. In hybrid mode, those of a connection of which the stack has accepted a packet in
 * this direction within the last second, so that conntrack and policies keep deciding: packets take
 * the stack until one gets through; its time is then recorded in the flow.
 */
#pragma once
#include "flow.h"
#include "parse.h"

enum passed {
	PASSED_TICK = 28,     /* a tick is 2^28 ns, 0.27 s */
	PASSED_TICKS = 254,   /* ticks count from 1 to this (68 s) and wrap around */
	PASSED_FRESH = 3,     /* for so many ticks the rest of the flow bypasses the stack */
	PASSED_PENDING = 255, /* packets take the stack: the hook that sees one after it stores the tick */
};

static __always_inline __u8 passed_tick(__u64 now)
{
	return (now >> PASSED_TICK) % PASSED_TICKS + 1;
}

/*
 * Reports whether the stack has recently let a packet of this direction pass. If not, the next one
 * that it lets pass is to be recorded: an old tick must not look fresh again once the counter has
 * wrapped around. An idle flow may keep its tick that long, but its `seen` is old by then.
 */
static __always_inline int passed_fresh(struct flow *f, __u64 now)
{
	__u32 passed = f->passed;

	if (passed && passed != PASSED_PENDING && now - f->seen < 2 * SECOND &&
	    (passed_tick(now) + PASSED_TICKS - passed) % PASSED_TICKS < PASSED_FRESH)
		return 1;
	if (passed != PASSED_PENDING)
		f->passed = PASSED_PENDING;
	return 0;
}

/* Reports whether packets of both directions were seen, and none that ends the flow. */
static __always_inline int flow_established(const struct flow *a, const struct flow *b)
{
	return (a->tcp & b->tcp & TCP_SEEN_ACK) && !flow_closing(a, b);
}

struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

#define IPS_ASSURED 4 /* linux/netfilter/nf_conntrack_common.h */

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

/* Linux 5.18. Without them, or without conntrack, nothing bypasses the stack in hybrid mode. */
extern struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *skb, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					 struct bpf_ct_opts *opts, __u32 opts_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *conn) __ksym __weak;

/*
 * Reports whether the connection of a packet, by its current tuple, is assured: conntrack does not
 * drop it early.
 */
static __always_inline int conntrack_assured(struct __sk_buff *skb, const struct packet *p)
{
	struct bpf_ct_opts opts = { .netns_id = BPF_F_CURRENT_NETNS, .l4proto = p->proto };
	struct bpf_sock_tuple tuple = {
		.ipv4 = { .saddr = p->saddr, .daddr = p->daddr, .sport = p->sport, .dport = p->dport },
	};
	struct nf_conn *conn;
	int assured;

	/*
	 * Testing the addresses of the kfuncs would not work: where conntrack is a module,
	 * cilium/ebpf writes the module's index into that load as well, which the verifier rejects.
	 */
	if (!has_conntrack)
		return 0;
	conn = bpf_skb_ct_lookup(skb, &tuple, sizeof(tuple.ipv4), &opts, sizeof(opts));
	if (!conn)
		return 0;
	assured = !!(conn->status & IPS_ASSURED);
	bpf_ct_release(conn);
	return assured;
}

/*
 * Records in the flow entry f that the stack has let a packet of its direction pass; p is the
 * packet after the stack. Callers check that the record is pending. other is the entry of the other
 * direction.
 */
static __always_inline void passed_record(struct __sk_buff *skb, const struct packet *p, struct flow *f,
					  const struct flow *other)
{
	if (other && flow_established(f, other) && conntrack_assured(skb, p))
		f->passed = passed_tick(now_ns());
}

/*
 * Reports whether a packet may bypass the stack, judging by its headers: TCP or UDP, not
 * fragmented, and not on its last hop. All others are left to the stack, which answers them or
 * keeps the state that they change.
 */
static __always_inline int may_bypass(const struct packet *p, const struct ipv4 *ip, enum datapath datapath)
{
	if (p->fragment || p->error || ip->ttl <= 1 || (p->proto != PROTO_TCP && p->proto != PROTO_UDP))
		return 0;
	return datapath == DATAPATH_FAST || !(p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST));
}

/* Length of the IPv4 packet, or of the segments of a GSO packet. */
static __always_inline __u32 segment_len(struct __sk_buff *skb, enum hook hook, const struct packet *p)
{
	struct tcp *tcp;

	if (!skb->gso_size)
		return p->end - p->l3;
	if (p->proto == PROTO_UDP)
		return p->l4 - p->l3 + sizeof(struct udp) + skb->gso_size;
	tcp = ctx_at(skb, hook, p->l4, sizeof(*tcp));
	return tcp ? p->l4 - p->l3 + (tcp->offset >> 4) * 4 + skb->gso_size : IPV4_MAX;
}

/*
 * Decrements the TTL, as the stack does when it forwards. The checksum of the whole packet stays as
 * it is.
 */
static __always_inline void ttl_decrement(struct ipv4 *ip)
{
	__u32 check = ip->check + bpf_htons(0x0100);

	ip->check = check + (check >= 0xffff);
	ip->ttl--;
}

/*
 * The second byte of the inner source MAC address by which hand_over() tells edge_in that the
 * packet may bypass the stack.
 */
#define BYPASS_ALLOWED 1
#define GSO_PROBE 2 /* there as well: a probe, see gso_probe_send() */

/*
 * Delivers a packet without overlay header, at an ingress hook, to the pod's end of its veth
 * pair.
 */
static __always_inline int deliver_to_pod(struct __sk_buff *skb, enum hook hook, const struct endpoint *pod)
{
	__u32 ifindex = pod->ifindex;
	struct eth *eth = ctx_at(skb, hook, 0, sizeof(*eth) + sizeof(struct ipv4));

	if (!eth)
		return finish(skb, hook, VERDICT_DROP_INTERNAL);
	__builtin_memcpy(eth->dst, pod->mac, sizeof(eth->dst));
	eth->proto = bpf_htons(ETH_P_IP);
	ttl_decrement((void *)(eth + 1));
	count_verdict(skb, HOOK_POD_IN, VERDICT_DELIVERED);
	return bpf_redirect_peer(ifindex, 0);
}
