/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Header structs, bounds-checked access, and the parsed form that the other headers work on. */
#pragma once
#include <linux/types.h>
#include <bpf/bpf_endian.h>
#include "ctx.h"

#define ETH_P_IP 0x0800
#define ETH_LEN 14
#define PACKET_HOST 0
#define IPV4_MAX 65535
#define IPV4_HEADER_MAX 60
#define ECN_MASK 3
#define ECN_CE 3
#define PROTO_ICMP 1
#define PROTO_TCP 6
#define PROTO_UDP 17
#define PROTO_SCTP 132
#define IP_DF 0x4000
#define IP_MF 0x2000
#define IP_OFFSET 0x1fff
#define ICMP_ECHO_REPLY 0
#define ICMP_UNREACHABLE 3
#define ICMP_ECHO 8
#define ICMP_TIME_EXCEEDED 11
#define ICMP_PARAMETER_PROBLEM 12
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10

struct eth {
	__u8 dst[6];
	__u8 src[6];
	__be16 proto;
};

struct ipv4 {
	__u8 version_ihl;
	__u8 tos;
	__be16 len;
	__be16 id;
	__be16 frag;
	__u8 ttl;
	__u8 proto;
	__u16 check;
	__be32 saddr;
	__be32 daddr;
};

struct udp {
	__be16 source;
	__be16 dest;
	__be16 len;
	__u16 check;
};

struct tcp {
	__be16 source;
	__be16 dest;
	__be32 seq;
	__be32 ack;
	__u8 offset;
	__u8 flags;
	__be16 window;
	__u16 check;
	__be16 urgent;
};

/* The checksum (CRC32c) covers the ports but not the addresses, so ports are never translated. */
struct sctp {
	__be16 source;
	__be16 dest;
	__be32 tag;
	__u32 check;
};

struct icmp {
	__u8 type;
	__u8 code;
	__u16 check;
	__be16 id;
	__be16 seq;
};

_Static_assert(sizeof(struct eth) == 14 && sizeof(struct ipv4) == 20 && sizeof(struct udp) == 8 &&
		       sizeof(struct tcp) == 20 && sizeof(struct icmp) == 8 && sizeof(struct sctp) == 12,
	       "headers have no padding");

/*
 * Headers in front of an inner packet. Packed, so the compiler reads members byte by byte: the fast
 * path uses pointers to the parts instead.
 */
struct outer {
	struct eth eth;
	struct ipv4 ip;
	struct udp udp;
	struct overlay_header overlay;
	struct eth inner;
} __attribute__((packed));

#define OUTER_LEN 64 /* offset of the inner IPv4 header */

enum encap_len {
	ENCAP_LEN = 50, /* what the overlay adds to a packet of the node's stack, bytes */
};
_Static_assert(sizeof(struct outer) == OUTER_LEN, "outer header");

enum fragment_state {
	NOT_FRAGMENT = 0,
	FIRST_FRAGMENT = 1,
	LATER_FRAGMENT = 2,
};

/*
 * A parsed IPv4 packet. Ports of an ICMP echo: see struct flow_key. Of an ICMP error, proto and
 * ports are those of the quoted packet, reversed: what a packet of the flow in the direction of the
 * error would have.
 */
struct packet {
	__u32 l3;	    /* offset of the IPv4 header */
	__u32 l4;	    /* offset of the transport header */
	__u32 quoted;	    /* error: offset of the quoted IPv4 header */
	__u32 quoted_l4;    /* error: offset of the quoted transport header */
	__be32 quoted_peer; /* error: destination of the quoted packet; saddr may be a router on the way to it */
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__be16 id;
	__u8 proto;
	__u8 tos;
	__u8 tcp_flags;
	__u8 fragment; /* enum fragment_state */
	__u8 echo_reply;
	__u8 error; /* ICMP error */
	__u32 end;  /* offset behind the packet */
};

/* The transport header, len bytes. It must lie inside the packet, not only inside the frame. */
static __always_inline void *transport_at(void *ctx, enum hook hook, const struct packet *p, __u32 len)
{
	return p->l4 + len > p->end ? 0 : ctx_at(ctx, hook, p->l4, len);
}

/*
 * Bound for the offset of a quoted packet: the verifier loses the bounds of fields of struct
 * packet.
 */
#define QUOTED_MAX (OUTER_LEN + IPV4_HEADER_MAX + sizeof(struct icmp))

/*
 * Parses the packet that an ICMP error quotes. It must have been sent by the destination of the
 * error and include the ports (RFC 792: 8 bytes of transport). IP options are skipped (RFC 5508
 * REQ-3b).
 */
static __noinline enum verdict parse_quoted(void *ctx, enum hook hook, struct packet *p)
{
	struct ipv4 *ip;
	struct icmp *l4;
	__u32 header;

	if (!p)
		return VERDICT_DROP_INTERNAL;
	if (p->fragment)
		return VERDICT_DROP_FRAGMENT;
	p->quoted = p->l4 + sizeof(struct icmp);
	if (p->quoted > QUOTED_MAX || p->quoted + sizeof(*ip) > p->end)
		return VERDICT_DROP_MALFORMED;
	ip = ctx_at(ctx, hook, p->quoted, sizeof(*ip));
	if (!ip || ip->version_ihl >> 4 != 4 || ip->saddr != p->daddr)
		return VERDICT_DROP_MALFORMED;
	header = (ip->version_ihl & 0x0f) * 4;
	p->quoted_l4 = p->quoted + header;
	p->quoted_peer = ip->daddr;
	p->proto = ip->proto;
	if (ip->frag & bpf_htons(IP_OFFSET))
		return VERDICT_DROP_FRAGMENT;
	l4 = header < sizeof(*ip) || p->quoted_l4 + sizeof(*l4) > p->end ? 0 :
									   ctx_at(ctx, hook, p->quoted_l4, sizeof(*l4));
	if (!l4)
		return VERDICT_DROP_MALFORMED;
	p->error = 1;
	if (p->proto == PROTO_TCP || p->proto == PROTO_UDP || p->proto == PROTO_SCTP) {
		struct udp *ports = (void *)l4;

		p->sport = ports->dest;
		p->dport = ports->source;
		return VERDICT_CONTINUE;
	}
	if (p->proto != PROTO_ICMP)
		return VERDICT_DROP_PROTOCOL;
	if (l4->type == ICMP_ECHO)
		p->dport = l4->id;
	else if (l4->type == ICMP_ECHO_REPLY)
		p->sport = l4->id;
	else
		return VERDICT_DROP_PROTOCOL; /* no error is sent about an error (RFC 1122 3.2.2) */
	return VERDICT_CONTINUE;
}

/* Transport part of parse_ipv4(). Later fragments have none. */
static __always_inline enum verdict parse_l4(void *ctx, enum hook hook, struct packet *p)
{
	switch (p->proto) {
	case PROTO_TCP: {
		struct tcp *tcp = transport_at(ctx, hook, p, sizeof(*tcp));

		if (!tcp)
			return VERDICT_DROP_MALFORMED;
		p->sport = tcp->source;
		p->dport = tcp->dest;
		p->tcp_flags = tcp->flags;
		return VERDICT_CONTINUE;
	}
	case PROTO_UDP: {
		struct udp *udp = transport_at(ctx, hook, p, sizeof(*udp));

		if (!udp)
			return VERDICT_DROP_MALFORMED;
		p->sport = udp->source;
		p->dport = udp->dest;
		return VERDICT_CONTINUE;
	}
	case PROTO_SCTP: {
		struct sctp *sctp = transport_at(ctx, hook, p, sizeof(*sctp));

		if (!sctp)
			return VERDICT_DROP_MALFORMED;
		if (ctx_segments(ctx, hook) > 1)
			return VERDICT_DROP_PROTOCOL; /* bpf_skb_adjust_room() refuses them */
		p->sport = sctp->source;
		p->dport = sctp->dest;
		return VERDICT_CONTINUE;
	}
	case PROTO_ICMP: {
		struct icmp *icmp = transport_at(ctx, hook, p, sizeof(*icmp));

		if (!icmp)
			return VERDICT_DROP_MALFORMED;
		switch (icmp->type) {
		case ICMP_ECHO:
			p->sport = icmp->id;
			return VERDICT_CONTINUE;
		case ICMP_ECHO_REPLY:
			p->dport = icmp->id;
			p->echo_reply = 1;
			return VERDICT_CONTINUE;
		case ICMP_UNREACHABLE:
		case ICMP_TIME_EXCEEDED:
		case ICMP_PARAMETER_PROBLEM:
			return parse_quoted(ctx, hook, p);
		}
	}
	}
	return VERDICT_DROP_PROTOCOL;
}

static __always_inline enum verdict parse_ipv4(void *ctx, enum hook hook, __u32 l3, struct packet *p)
{
	struct ipv4 *ip = ctx_at(ctx, hook, l3, sizeof(*ip));
	__u32 header, len, end = ctx_len(ctx, hook);
	__u16 frag;

	if (!ip || (ip->version_ihl >> 4) != 4)
		return VERDICT_DROP_MALFORMED;
	header = (ip->version_ihl & 0x0f) * 4;
	len = bpf_ntohs(ip->len);
	if (!len && ctx_is_gso(ctx, hook))
		len = end - l3; /* GSO packet over 64 KiB (BIG TCP) */
	if (header < sizeof(*ip) || len < header || l3 + len > end)
		return VERDICT_DROP_MALFORMED;
	p->l3 = l3;
	p->l4 = l3 + header;
	p->end = l3 + len;
	p->saddr = ip->saddr;
	p->daddr = ip->daddr;
	p->proto = ip->proto;
	p->tos = ip->tos;
	p->id = ip->id;
	frag = bpf_ntohs(ip->frag);
	if (frag & IP_OFFSET) {
		p->fragment = LATER_FRAGMENT;
		return VERDICT_CONTINUE;
	}
	if (frag & IP_MF)
		p->fragment = FIRST_FRAGMENT;
	return parse_l4(ctx, hook, p);
}

/*
 * Parse the IPv4 packet at offset l3 into *p, which must be zero. Global functions, so the verifier
 * walks them once; that needs the type of the context in the signature.
 */
__noinline enum verdict parse_skb(struct __sk_buff *skb, __u32 l3, struct packet *p)
{
	return p ? parse_ipv4(skb, HOOK_UPLINK_IN, l3, p) : VERDICT_DROP_INTERNAL;
}

__noinline enum verdict parse_xdp(struct xdp_md *xdp, __u32 l3, struct packet *p)
{
	return p ? parse_ipv4(xdp, HOOK_UPLINK_XDP, l3, p) : VERDICT_DROP_INTERNAL;
}

static __always_inline int same_mac(const __u8 *a, const __u8 *b)
{
	return *(__u32 *)a == *(__u32 *)b && *(__u16 *)(a + 4) == *(__u16 *)(b + 4);
}

/* 32-bit mixer (the finalizer of MurmurHash3), good enough to spread flows; not a secret. */
static __always_inline __u32 hash_mix(__u32 a, __u32 b)
{
	a ^= b * 0x9e3779b1;
	a ^= a >> 16;
	a *= 0x85ebca6b;
	a ^= a >> 13;
	a *= 0xc2b2ae35;
	return a ^ (a >> 16);
}

static __always_inline __u32 flow_hash(const struct packet *p)
{
	return hash_mix(hash_mix(p->saddr, p->daddr), ((__u32)p->sport << 16 | p->dport) ^ p->proto);
}
