/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* In-place rewriting of addresses and ports, checksums included. */
#pragma once
#include "parse.h"

/* Addresses and ports after translation. */
struct tuple {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
};

#define IPV4_CHECK 10
#define IPV4_SADDR 12
#define IPV4_DADDR 16

static __always_inline int replace_address(struct __sk_buff *skb, const struct packet *p, __u32 check, __u64 udp_flag,
					   __u32 field, __be32 from, __be32 to)
{
	if (from == to)
		return 0;
	/*
	 * The pseudo-header flag makes the helper keep skb->csum right; the two changes to the IPv4
	 * header cancel out in it. With a checksum left to the device only the pseudo-header part
	 * is changed, as it must be.
	 */
	if (check && bpf_l4_csum_replace(skb, check, from, to, BPF_F_PSEUDO_HDR | udp_flag | sizeof(to)))
		return -1;
	if (bpf_l3_csum_replace(skb, p->l3 + IPV4_CHECK, from, to, sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, p->l3 + field, &to, sizeof(to), 0);
}

static __always_inline int replace_port(struct __sk_buff *skb, __u32 check, __u64 udp_flag, __u32 at, __be16 from,
					__be16 to)
{
	if (from == to)
		return 0;
	if (bpf_l4_csum_replace(skb, check, from, to, udp_flag | sizeof(to)))
		return -1;
	return bpf_skb_store_bytes(skb, at, &to, sizeof(to), 0);
}

static __always_inline __u16 csum_fold(__u64 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return (__u16)sum;
}

/*
 * Updates a checksum for len bytes (a multiple of 4) that change from `from` to `to`. RFC 1624,
 * equation 3.
 */
static __always_inline __u16 update_check(__u16 check, __be32 *from, __be32 *to, __u32 len)
{
	return ~csum_fold((__u32)bpf_csum_diff(from, len, to, len, (__u16)~check));
}

/*
 * The fields of a quoted packet that are rewritten, as 32-bit words for bpf_csum_diff. They lie at
 * even offsets of the ICMP message, since header lengths are multiples of 4.
 */
struct quote {
	__be32 addresses[2];
	union {
		__be32 l4[2]; /* the first 8 bytes of the transport header */
		struct udp udp;
		struct icmp icmp;
	};
	union {
		__be32 checks;
		struct {
			__u16 ip;
			__u16 tcp; /* the TCP checksum if it is quoted, else 0 */
		} check;
	};
};

#define TCP_CHECK __builtin_offsetof(struct tcp, check)

/*
 * Rewrites an ICMP error of a flow (RFC 5508 REQ-4 and 5): the quoted packet gets the tuple t
 * reversed, so that its sender recognises it, with matching checksums. On the way out the source
 * becomes the address that the flow shows to the far side, whichever router sent the error; on the
 * way in only the destination changes.
 */
static __noinline int rewrite_error(struct __sk_buff *skb, const struct packet *p, const struct tuple *t, int out)
{
	__u32 check_at = p ? p->l4 + __builtin_offsetof(struct icmp, check) : 0;
	struct quote old = {}, new;
	int has_tcp_check;

	if (!p || !t)
		return -1;
	has_tcp_check = p->proto == PROTO_TCP && p->quoted_l4 + TCP_CHECK + 2 <= p->end;
	if (bpf_skb_load_bytes(skb, p->quoted + IPV4_SADDR, old.addresses, sizeof(old.addresses)) ||
	    bpf_skb_load_bytes(skb, p->quoted + IPV4_CHECK, &old.check.ip, 2) ||
	    bpf_skb_load_bytes(skb, p->quoted_l4, old.l4, sizeof(old.l4)) ||
	    (has_tcp_check && bpf_skb_load_bytes(skb, p->quoted_l4 + TCP_CHECK, &old.check.tcp, 2)))
		return -1;
	new = old;
	new.addresses[0] = t->daddr;
	new.addresses[1] = t->saddr;
	new.check.ip = update_check(old.check.ip, old.addresses, new.addresses, sizeof(new.addresses));
	if (p->proto == PROTO_ICMP) {
		new.icmp.id = new.icmp.type == ICMP_ECHO ? t->dport : t->sport;
		new.icmp.check = update_check(old.icmp.check, &old.l4[1], &new.l4[1], 4);
	} else {
		new.udp.source = t->dport;
		new.udp.dest = t->sport;
		if (p->proto == PROTO_UDP && old.udp.check) {
			new.udp.check =
				update_check(old.udp.check, old.addresses, new.addresses, sizeof(new.addresses));
			new.udp.check = update_check(new.udp.check, &old.l4[0], &new.l4[0], 4) ?: 0xffff;
		}
		if (has_tcp_check) {
			new.check.tcp =
				update_check(old.check.tcp, old.addresses, new.addresses, sizeof(new.addresses));
			new.check.tcp = update_check(new.check.tcp, &old.l4[0], &new.l4[0], 4);
		}
	}
	if (bpf_l4_csum_replace(skb, check_at, 0,
				bpf_csum_diff((void *)&old, sizeof(old), (void *)&new, sizeof(new), 0), 0) ||
	    bpf_skb_store_bytes(skb, p->quoted + IPV4_SADDR, new.addresses, sizeof(new.addresses), 0) ||
	    bpf_skb_store_bytes(skb, p->quoted + IPV4_CHECK, &new.check.ip, 2, 0) ||
	    bpf_skb_store_bytes(skb, p->quoted_l4, new.l4, sizeof(new.l4), 0) ||
	    (has_tcp_check && bpf_skb_store_bytes(skb, p->quoted_l4 + TCP_CHECK, &new.check.tcp, 2, 0)))
		return -1;
	if (out && replace_address(skb, p, 0, 0, IPV4_SADDR, p->saddr, t->saddr))
		return -1;
	return replace_address(skb, p, 0, 0, IPV4_DADDR, p->daddr, t->daddr);
}

/*
 * What a 32-bit word that changes adds to a checksum, in ones' complement before folding (RFC
 * 1624).
 */
static __always_inline __u64 csum_change(__u32 from, __u32 to)
{
	return (__u64)(__u32)~from + to;
}

static __always_inline __u32 csum_fold32(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	return (__u32)(sum + (sum >> 32));
}

/*
 * Rewrites the packet to the tuple t. Later fragments have no ports. Invalidates packet
 * pointers.
 */
static __always_inline int rewrite(struct __sk_buff *skb, const struct packet *p, const struct tuple *t,
				   enum direction direction)
{
	__u32 addresses = csum_fold32(csum_change(p->saddr, t->saddr) + csum_change(p->daddr, t->daddr)), ports = 0;
	__be16 sport = t->sport, dport = t->dport, from, to;
	__u64 udp_flag = 0;
	__u32 check = 0;
	struct ipv4 *ip;
	__be16 *l4;

	if (p->error)
		return rewrite_error(skb, p, t, direction == DIRECTION_OUT);
	if (p->fragment != LATER_FRAGMENT) {
		switch (p->proto) {
		case PROTO_TCP:
			check = p->l4 + __builtin_offsetof(struct tcp, check);
			break;
		case PROTO_UDP:
			check = p->l4 + __builtin_offsetof(struct udp, check);
			udp_flag = BPF_F_MARK_MANGLED_0; /* 0 = no checksum, stays 0 */
			break;
		case PROTO_ICMP:
			check = p->l4 + __builtin_offsetof(struct icmp, check);
			break;
		}
	}
	if (check && p->proto == PROTO_ICMP) {
		/* No pseudo-header; the identifier is the only port. */
		from = p->echo_reply ? p->dport : p->sport;
		to = p->echo_reply ? dport : sport;
		if (replace_port(skb, check, 0, p->l4 + __builtin_offsetof(struct icmp, id), from, to))
			return -1;
		check = 0;
	}
	if (check) {
		ports = csum_fold32(csum_change(p->sport, sport) + csum_change(p->dport, dport));
		/*
		 * The helper knows what the transport checksum is: complete, or, left to the
		 * device, the sum of the pseudo-header alone. It keeps skb->csum right, too:
		 * changes of the IPv4 header cancel out in it.
		 */
		if (bpf_l4_csum_replace(skb, check, 0, addresses, BPF_F_PSEUDO_HDR | udp_flag) ||
		    ((p->sport != sport || p->dport != dport) && bpf_l4_csum_replace(skb, check, 0, ports, udp_flag)))
			return -1;
	}
	ip = skb_at(skb, p->l3, sizeof(*ip));
	if (!ip)
		return -1;
	ip->saddr = t->saddr;
	ip->daddr = t->daddr;
	ip->check = ~csum_fold((__u64)(__u16)~ip->check + addresses);
	if (!check)
		return 0;
	l4 = skb_at(skb, p->l4, 2 * sizeof(*l4));
	if (!l4)
		return -1;
	l4[0] = sport;
	l4[1] = dport;
	return 0;
}

#define TCP_OPTION_MSS 2
#define TCP_OPTIONS_MAX 40

/* Lowers the MSS option of a SYN to mss; never adds or raises it (RFC 9293 3.7.1). */
static __noinline int clamp_mss(struct __sk_buff *skb, __u32 l4, __u16 mss)
{
	__u8 offset = 0, option[4];
	__u32 at = l4 + sizeof(struct tcp), end;
	__be16 old, new = bpf_htons(mss);

	if (bpf_skb_load_bytes(skb, l4 + __builtin_offsetof(struct tcp, offset), &offset, 1))
		return -1;
	end = l4 + (offset >> 4) * 4;
	for (int i = 0; i < TCP_OPTIONS_MAX; i++) {
		if (at + 4 > end || bpf_skb_load_bytes(skb, at, option, sizeof(option)))
			return 0;
		if (option[0] == 0)
			return 0;
		if (option[0] == 1) {
			at++;
			continue;
		}
		if (option[0] == TCP_OPTION_MSS && option[1] == 4) {
			old = bpf_htons((__u16)option[2] << 8 | option[3]);
			if (bpf_ntohs(old) <= mss)
				return 0;
			/* At an odd offset the 16-bit sum sees the bytes swapped. */
			if ((at - l4) & 1)
				return bpf_l4_csum_replace(skb, l4 + __builtin_offsetof(struct tcp, check),
							   __builtin_bswap16(old), __builtin_bswap16(new), 2) ||
				       bpf_skb_store_bytes(skb, at + 2, &new, 2, 0);
			return bpf_l4_csum_replace(skb, l4 + __builtin_offsetof(struct tcp, check), old, new, 2) ||
			       bpf_skb_store_bytes(skb, at + 2, &new, 2, 0);
		}
		if (option[1] < 2)
			return 0;
		at += option[1];
	}
	return 0;
}
