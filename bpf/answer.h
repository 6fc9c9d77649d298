/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Answers to dropped packets: a TCP reset or an ICMP error in place of the packet, so that its
 * sender need not time out. Neither a reset nor an ICMP error is answered (RFC 9293 3.10.7.1, RFC
 * 1122 3.2.2).
 */
#pragma once
#include "bucket.h"
#include "config.h"
#include "maps.h"
#include "nat.h"

#define TCP_FLAGS_WORD 12

/* Codes of ICMP_UNREACHABLE. */
enum icmp_code {
	ICMP_PORT = 3,	      /* port unreachable */
	ICMP_PROHIBITED = 13, /* communication administratively prohibited */
};

/*
 * Reports whether a service refuses the packet: its sender is answered, as by a host without a
 * socket.
 */
static __always_inline int verdict_refuses(enum verdict v)
{
	return v == VERDICT_DROP_NO_SERVICE || v == VERDICT_DROP_NO_BACKEND;
}

/*
 * Reports whether a TCP segment may be answered with a reset. Fragments and GSO packets are not:
 * the sender retries.
 */
static __always_inline int tcp_is_answered(const struct __sk_buff *skb, const struct packet *p)
{
	return p->proto == PROTO_TCP && !p->fragment && !p->error && !(p->tcp_flags & TCP_RST) && !skb->gso_size;
}

/*
 * Turns a segment into the reset that answers it (RFC 9293 3.10.7.1): to a segment with ACK, one
 * with the sequence number that the sender expects; to others, one that acknowledges all of the
 * segment. Addresses and ports are swapped, which keeps every checksum; the payload stays, as a
 * reset may have one.
 */
static __always_inline int tcp_make_reset(struct __sk_buff *skb, const struct packet *p)
{
	__u32 check = p->l4 + __builtin_offsetof(struct tcp, check);
	__be32 addresses[2] = { p->daddr, p->saddr }, seq, ack, new_seq, new_ack;
	__be16 ports[2] = { p->dport, p->sport }, old, new;

	if (bpf_skb_load_bytes(skb, p->l4 + 4, &seq, 4) || bpf_skb_load_bytes(skb, p->l4 + 8, &ack, 4) ||
	    bpf_skb_load_bytes(skb, p->l4 + TCP_FLAGS_WORD, &old, 2))
		return -1;
	new = (old & bpf_htons(0xf000)) | bpf_htons(TCP_RST);
	if (p->tcp_flags & TCP_ACK) {
		new_seq = ack;
		new_ack = 0;
	} else {
		__u32 len = p->end - p->l4 - (bpf_ntohs(old) >> 12) * 4;

		len += !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);
		new_seq = 0;
		new_ack = bpf_htonl(bpf_ntohl(seq) + len);
		new |= bpf_htons(TCP_ACK);
	}
	return bpf_skb_store_bytes(skb, p->l3 + IPV4_SADDR, addresses, sizeof(addresses), 0) ||
	       bpf_skb_store_bytes(skb, p->l4, ports, sizeof(ports), 0) ||
	       bpf_l4_csum_replace(skb, check, seq, new_seq, 4) || bpf_l4_csum_replace(skb, check, ack, new_ack, 4) ||
	       bpf_l4_csum_replace(skb, check, old, new, 2) || bpf_skb_store_bytes(skb, p->l4 + 4, &new_seq, 4, 0) ||
	       bpf_skb_store_bytes(skb, p->l4 + 8, &new_ack, 4, 0) ||
	       bpf_skb_store_bytes(skb, p->l4 + TCP_FLAGS_WORD, &new, 2, 0);
}

/* An ICMP error that quotes an IPv4 header without options and 8 bytes behind it. */
struct icmp_error {
	struct ipv4 ip;
	struct icmp icmp;
	struct ipv4 quoted;
	__be32 l4[2];
};
ASSERT_SIZE(struct icmp_error, 56);

/* Reports whether a packet may be answered with an ICMP error. Later fragments are not. */
static __always_inline int icmp_is_answered(const struct __sk_buff *skb, const struct packet *p)
{
	return p->fragment != LATER_FRAGMENT && !p->error && p->l4 - p->l3 == sizeof(struct ipv4) &&
	       p->proto != PROTO_TCP && skb->gso_segs <= 1;
}

/*
 * Turns a packet into the ICMP error that answers it, from its destination. It is the last part of
 * the frame, whose length changes; but the kernel refuses to change that of a packet which it has
 * encapsulated itself, for a node of the same kernel. What remains of it then is padding, and one
 * that is too short gets no answer. A checksum of UDP that is left to a device does no harm: it is
 * stored in the unused field of the ICMP header, where it becomes 0 or -0.
 */
static __noinline int icmp_make_unreachable(struct __sk_buff *skb, const struct packet *p, __u32 code)
{
	struct icmp_error e = {};
	__u32 at;

	if (!p || !icmp_is_answered(skb, p))
		return -1;
	at = p->l3;
	if (at > OUTER_LEN || bpf_skb_load_bytes(skb, at, &e.quoted, sizeof(e.quoted) + sizeof(e.l4)) ||
	    (bpf_skb_change_tail(skb, at + sizeof(e), 0) && skb->len < at + sizeof(e)))
		return -1;
	e.ip.version_ihl = 0x45;
	e.ip.len = bpf_htons(sizeof(e));
	e.ip.ttl = 64;
	e.ip.proto = PROTO_ICMP;
	e.ip.saddr = p->daddr;
	e.ip.daddr = p->saddr;
	e.ip.check = ~csum_fold(bpf_csum_diff(0, 0, (__be32 *)&e.ip, sizeof(e.ip), 0));
	e.icmp.type = ICMP_UNREACHABLE;
	e.icmp.code = code;
	e.icmp.check = ~csum_fold(bpf_csum_diff(0, 0, (__be32 *)&e.icmp, sizeof(e) - sizeof(e.ip), 0));
	return bpf_skb_store_bytes(skb, at, &e, sizeof(e), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Reports whether a packet dropped with a verdict is of a kind that is answered: UDP, and TCP or
 * ICMP depending on the verdict.
 */
static __always_inline int is_answered(const struct __sk_buff *skb, const struct packet *p, enum verdict v)
{
	if (!verdict_refuses(v))
		return icmp_is_answered(skb, p);
	return tcp_is_answered(skb, p) || (p->proto == PROTO_UDP && icmp_is_answered(skb, p));
}

/* Turns such a packet into its answer. */
static __always_inline int make_answer(struct __sk_buff *skb, const struct packet *p, enum verdict v)
{
	if (p->proto == PROTO_TCP)
		return tcp_make_reset(skb, p);
	return icmp_make_unreachable(skb, p, verdict_refuses(v) ? ICMP_PORT : ICMP_PROHIBITED);
}
