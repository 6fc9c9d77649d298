/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The overlay header: pushing it, reading it, rewriting the outer part in place, sending. */
#pragma once
#include "maps.h"
#include "nat.h"
#include "parse.h"

#define AF_INET 2
#define OUTER_TTL 64
#define MTU_AT_LEAST 1280 /* of any device that leads to a peer; saves the look-up for most packets */

/* Every pelago0 has this address; nobody sends from it, so the kernel's loop check never hits. */
static const __u8 pelago_mac[6] = { 0x02, 0x50, 0x45, 0x4c, 0x00, 0x02 };

/* Where an outer packet goes: the next gateway or node, what it expects there, and from which address. */
struct target {
	struct hop hop;
	__be32 source;
	__be16 port;
	__u16 wire; /* 1: into an encrypted wire, a device without Ethernet header */
	__u32 token;
};

static __always_inline struct node_settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

static __always_inline __u32 header_token(const struct overlay_header *h)
{
	return (__u32)h->token[0] << 16 | (__u32)h->token[1] << 8 | h->token[2];
}

static __always_inline __u16 header_node(const struct overlay_header *h)
{
	return (__u16)h->node[0] << 8 | h->node[1];
}

static __always_inline void set_header(struct overlay_header *h, __u32 token, __u8 type, __u16 node, __u8 flags)
{
	h->vxlan_flags = OVERLAY_VNI_FLAG;
	h->token[0] = token >> 16;
	h->token[1] = token >> 8;
	h->token[2] = token;
	h->type = type;
	h->node[0] = node >> 8;
	h->node[1] = node;
	h->version_flags = OVERLAY_VERSION << 4 | flags;
}

static __always_inline __u32 words(__be32 a)
{
	return (a & 0xffff) + (a >> 16);
}

/*
 * Whether the packet, grown by `more` bytes, fits into the device; the kernel would let the device or the next switch
 * drop it without a word. A GSO packet does: its segments were sized by the route to pelago0 (edge) or came in by an
 * uplink (gateway). Where the device cannot be asked the packet may go on.
 */
static __always_inline int fits(void *ctx, enum hook hook, const struct target *to, __s32 more)
{
	__u32 mtu = 0;

	if (to->wire)
		more -= ETH_LEN;
	if (packet_len(ctx, hook) + more <= ETH_LEN + MTU_AT_LEAST)
		return 1;
	return bpf_check_mtu(ctx, to->hop.ifindex, &mtu, more, 0) != BPF_MTU_CHK_RET_FRAG_NEEDED;
}

/* Sends an overlay packet that came in by an uplink or wire and is complete but for its MAC addresses. */
static __always_inline int send_to(struct __sk_buff *skb, const struct node_settings *s, const struct target *to)
{
	struct bpf_redir_neigh neigh = { .nh_family = AF_INET, .ipv4_nh = to->hop.next };

	skb->mark = s->cookie; /* the guard on the way out lets nothing else pass */
	if (to->wire)
		return bpf_redirect(to->hop.ifindex, 0);
	return bpf_redirect_neigh(to->hop.ifindex, &neigh, sizeof(neigh), 0);
}

/*
 * The same for a packet of the node's stack. That still carries the route to pelago0, and where the next hop is not
 * resolved yet the kernel would take the MAC address of that route for the packet that waited. A tunnel key takes the
 * place of the route; no device behind us looks at it.
 */
static __always_inline int send_from_stack(struct __sk_buff *skb, const struct node_settings *s,
					   const struct target *to)
{
	struct bpf_tunnel_key none = {};

	bpf_skb_set_tunnel_key(skb, &none, sizeof(none), 0);
	return send_to(skb, s, to);
}

/* Fills the outer headers of a packet whose outer IPv4 packet is len bytes long. */
static __always_inline void make_outer(struct outer *o, const struct target *to, __u32 len, __u8 tos,
				       __be16 source_port)
{
	struct ipv4 ip = {};

	o->eth.proto = bpf_htons(ETH_P_IP);
	ip.version_ihl = 0x45;
	ip.tos = tos;
	ip.len = bpf_htons(len);
	ip.frag = bpf_htons(IP_DF);
	ip.ttl = OUTER_TTL;
	ip.proto = PROTO_UDP;
	ip.saddr = to->source;
	ip.daddr = to->hop.address;
	ip.check = ~fold(bpf_csum_diff(0, 0, (__be32 *)&ip, sizeof(ip), 0));
	o->ip = ip;
	o->udp.source = source_port;
	o->udp.dest = to->port;
	o->udp.len = bpf_htons(len - sizeof(struct ipv4));
}

/*
 * Pushes the overlay header in front of the IPv4 packet of a frame. The packet may be a GSO packet; its segments
 * get the header when they are cut. The outer UDP checksum is 0 (RFC 6935; IPv4 only).
 */
static __always_inline int push_outer(struct __sk_buff *skb, const struct packet *p, const struct target *to,
				      __u16 node, __u8 flags, __u32 hash)
{
	__u32 inner_len = skb->len - ETH_LEN;
	struct outer o = {};

	if (bpf_skb_adjust_room(skb, ENCAP_LEN, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_LEN) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
					BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return -1;
	/* DSCP and ECN are carried (RFC 2983 uniform, RFC 6040 normal mode); the port is entropy (RFC 7348 section 5). */
	make_outer(&o, to, inner_len + ENCAP_LEN, p->tos, bpf_htons(0xc000 | (hash & 0x3fff)));
	set_header(&o.overlay, to->token, PACKET_FORWARD, node, flags);
	__builtin_memcpy(o.inner.dst, pelago_mac, sizeof(o.inner.dst));
	o.inner.src[0] = 0x02;
	if (flags & OVERLAY_FRAGMENT) {
		__builtin_memcpy(&o.inner.src[2], &p->sport, 2);
		__builtin_memcpy(&o.inner.src[4], &p->dport, 2);
	}
	o.inner.proto = bpf_htons(ETH_P_IP);
	return bpf_skb_store_bytes(skb, 0, &o, sizeof(o), 0);
}

/*
 * Turns an overlay packet round towards another node or gateway: outer addresses, port and overlay header. The outer
 * TTL falls and is never reset, the inner packet stays as it is. VERDICT_SWITCHED means: ready for send_to().
 */
static __always_inline enum verdict turn_outer(void *ctx, enum hook hook, const struct target *to, __u16 node,
					       __u8 flags)
{
	void *data = packet_at(ctx, hook, 0, OUTER_LEN);
	struct ipv4 *ip = data + ETH_LEN;
	struct udp *udp = data + ETH_LEN + sizeof(*ip);
	struct overlay_header *h = data + ETH_LEN + sizeof(*ip) + sizeof(*udp);
	__u32 sum;

	if (!data)
		return VERDICT_DROP_MALFORMED;
	if (ip->ttl <= 1)
		return VERDICT_DROP_TTL;
	/* RFC 1624, equation 3, over the words that change. */
	sum = (ip->check ^ 0xffff) + words(~ip->saddr) + words(~ip->daddr) + words(to->source) + words(to->hop.address);
	sum += bpf_htons(0x0100) ^ 0xffff; /* one off the high byte of the TTL word */
	ip->ttl--;
	ip->check = ~fold(sum);
	ip->saddr = to->source;
	ip->daddr = to->hop.address;
	udp->dest = to->port;
	udp->check = 0;
	set_header(h, to->token, PACKET_FORWARD, node, flags);
	return VERDICT_SWITCHED;
}
