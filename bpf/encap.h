/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Encapsulation: the overlay header, the next hop, sending. */
#pragma once
#include "lb.h"
#include "maps.h"
#include "nat.h"
#include "parse.h"

#define AF_INET 2
#define OUTER_TTL 64
#define MTU_AT_LEAST 1280 /* lower bound of every device that leads to a peer; saves the look-up for most packets */

/*
 * The address of every pelago0 (netdev.mac). No packet has it as source, so the loop check of the
 * receiver never hits.
 */
static const __u8 pelago_mac[6] = { 0x02, 0x50, 0x45, 0x4c, 0x00, 0x02 };

/*
 * Where an outer packet goes, and the fields that its headers get. Without a device (hop.ifindex 0)
 * it is received on this node's own pelago0.
 */
struct encap {
	struct hop hop;
	__be32 source;
	__be16 port;
	__u16 slot; /* of the path in `path_lines` */
	__u32 token : 24;
	__u32 wire : 8; /* an encrypted wire: the device has no Ethernet header */
};

/*
 * How packets of a local address name it as client: in the last four bytes of the inner source
 * address. A fragment has its ports there, and the name in the destination address, by which the
 * kernel of a node of 2c18591 drops packets.
 */
static __always_inline __u32 encap_client(__be32 address)
{
	return hash_mix(address, SEED_CLIENT);
}

/*
 * The client that the sender of an overlay packet names. 0: unknown, the sender is of a version
 * that does not name it.
 */
static __always_inline __u32 encap_read_client(void *ctx, enum hook hook)
{
	struct overlay_header *h = ctx_at(ctx, hook, OUTER_LEN - ETH_LEN - sizeof(*h), sizeof(*h) + ETH_LEN);
	struct eth *inner = (void *)(h + 1);
	__u32 client, none;

	if (!h)
		return 0;
	__builtin_memcpy(&client, h->version_flags & OVERLAY_FRAGMENT ? &inner->dst[2] : &inner->src[2],
			 sizeof(client));
	__builtin_memcpy(&none, &pelago_mac[2], sizeof(none));
	return client == none ? 0 : client;
}

static __always_inline struct node_settings *get_settings(void)
{
	__u32 zero = 0;

	return bpf_map_lookup_elem(&settings, &zero);
}

/* What hosts outside the cluster with an address may use; 0 if it is in none of their prefixes. */
static __always_inline const struct source *external_lookup(__be32 address)
{
	struct prefix key = { .length = 32, .address = address };

	return bpf_map_lookup_elem(&externals, &key);
}

/*
 * Reports whether other clusters may send to an address outside the cluster. A global function to
 * save stack.
 */
__noinline int external_routed(__be32 address)
{
	const struct source *s = external_lookup(address);

	return s && (s->flags & SOURCE_ROUTED);
}

/* What a local address may use, 0 if it is none. */
static __always_inline const struct source *source_lookup(__be32 address)
{
	const struct source *s = bpf_map_lookup_elem(&sources, &address);

	return s ?: external_lookup(address);
}

/* How flows of a source are marked: FLOW_EXTERNAL or 0. */
static __always_inline __u8 external_mark(const struct source *s)
{
	return s->flags & SOURCE_EXTERNAL ? FLOW_EXTERNAL : 0;
}

static __always_inline __u32 overlay_get_token(const struct overlay_header *h)
{
	return (__u32)h->token[0] << 16 | (__u32)h->token[1] << 8 | h->token[2];
}

static __always_inline __u16 overlay_get_node(const struct overlay_header *h)
{
	return (__u16)h->node[0] << 8 | h->node[1];
}

static __always_inline void overlay_set(struct overlay_header *h, __u32 token, __u8 type, __u16 node, __u8 flags)
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

static __always_inline __u32 csum_words(__be32 a)
{
	return (a & 0xffff) + (a >> 16);
}

/*
 * Reports whether the packet, grown by `more` bytes, fits the device, which would otherwise drop it
 * uncounted. A GSO packet does: its segments were sized by the route to pelago0 (edge) or came in
 * by an uplink (gateway). So does any packet if the MTU is unknown.
 */
static __always_inline int encap_fits(void *ctx, enum hook hook, const struct encap *to, __s32 more)
{
	__u32 mtu = 0;

	if (!to->hop.ifindex)
		return 1;
	if (to->wire || !to->hop.next)
		more -= ETH_LEN; /* the device has no such header */
	if (ctx_len(ctx, hook) + more <= ETH_LEN + MTU_AT_LEAST)
		return 1;
	return bpf_check_mtu(ctx, to->hop.ifindex, &mtu, more, 0) != BPF_MTU_CHK_RET_FRAG_NEEDED;
}

/*
 * Sends an overlay packet that came in by an uplink or wire, complete but for its MAC addresses. By
 * an uplink without these, the kernel sends it as it is, whatever the next hop.
 */
static __always_inline int encap_send(struct __sk_buff *skb, const struct node_settings *s, const struct encap *to)
{
	struct bpf_redir_neigh neigh = { .nh_family = AF_INET, .ipv4_nh = to->hop.next };

	if (!to->hop.ifindex) {
		skb->mark = s->probe_mark;
		return bpf_redirect(s->edge, BPF_F_INGRESS); /* to hairpin() in edge.c */
	}
	skb->mark = s->cookie; /* uplink_out and wire_out drop anything else */
	if (to->wire)
		return bpf_redirect(to->hop.ifindex, 0);
	return bpf_redirect_neigh(to->hop.ifindex, &neigh, sizeof(neigh), 0);
}

/*
 * The same for a packet from the node's stack. It still carries its route to pelago0: while the
 * next hop is unresolved, the kernel would use the MAC address of that route for the queued packet.
 * Setting a tunnel key replaces the route; no later device uses the key.
 */
static __always_inline int encap_send_from_stack(struct __sk_buff *skb, const struct node_settings *s,
						 const struct encap *to)
{
	/*
	 * The id and the remote address alone, offsetof(struct bpf_tunnel_key, remote_ipv6[1]): the
	 * stack is short.
	 */
	__u32 none[2] = {};

	bpf_skb_set_tunnel_key(skb, (struct bpf_tunnel_key *)none, sizeof(none), 0);
	return encap_send(skb, s, to);
}

/*
 * Fills the outer headers; len is the length of the outer IPv4 packet. That of a GSO packet over 64
 * KiB (BIG TCP) is 0 in the headers, as the kernel has it: segmentation writes that of each
 * segment.
 */
static __always_inline void encap_make_outer(struct outer *o, const struct encap *to, __u32 len, __u8 tos,
					     __be16 source_port)
{
	if (len > IPV4_MAX)
		len = 0;
	o->eth.proto = bpf_htons(ETH_P_IP);
	o->ip.version_ihl = 0x45;
	o->ip.tos = tos;
	o->ip.len = bpf_htons(len);
	o->ip.frag = bpf_htons(IP_DF);
	o->ip.ttl = OUTER_TTL;
	o->ip.proto = PROTO_UDP;
	o->ip.saddr = to->source;
	o->ip.daddr = to->hop.address;
	/* Over the words of the header, in network order; little-endian, as bpf_htons() is. */
	o->ip.check = ~csum_fold((0x45 | tos << 8) + bpf_htons(len) + bpf_htons(IP_DF) + (OUTER_TTL | PROTO_UDP << 8) +
				 csum_words(to->source) + csum_words(to->hop.address));
	o->udp.source = source_port;
	o->udp.dest = to->port;
	o->udp.len = len ? bpf_htons(len - sizeof(struct ipv4)) : 0;
}

/*
 * Pushes the overlay header in front of the IPv4 packet of a frame. Segments of a GSO packet
 * inherit it. The outer UDP checksum is 0 (RFC 6935; IPv4 only). client: encap_client(), or 0.
 */
static __always_inline int encap_push(struct __sk_buff *skb, const struct packet *p, const struct encap *to, __u16 node,
				      __u8 flags, __u32 hash, __u32 client)
{
	struct outer o = {};

	if (bpf_skb_adjust_room(skb, ENCAP_LEN, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | BPF_F_ADJ_ROOM_ENCAP_L4_UDP |
					BPF_F_ADJ_ROOM_ENCAP_L2(ETH_LEN) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH |
					BPF_F_ADJ_ROOM_FIXED_GSO | BPF_F_ADJ_ROOM_NO_CSUM_RESET))
		return -1;
	/*
	 * DSCP and ECN are carried (RFC 2983 uniform, RFC 6040 normal mode); the port is entropy
	 * (RFC 7348 section 5).
	 */
	encap_make_outer(&o, to, skb->len - ETH_LEN, p->tos, bpf_htons(0xc000 | (hash & 0x3fff)));
	overlay_set(&o.overlay, to->token, PACKET_FORWARD, node, flags);
	__builtin_memcpy(o.inner.dst, pelago_mac, sizeof(o.inner.dst));
	o.inner.src[0] = 0x02;
	if (flags & OVERLAY_FRAGMENT) {
		__builtin_memcpy(&o.inner.src[2], &p->sport, 2);
		__builtin_memcpy(&o.inner.src[4], &p->dport, 2);
		if (client)
			__builtin_memcpy(&o.inner.dst[2], &client, sizeof(client));
	} else {
		__builtin_memcpy(&o.inner.src[2], &client, sizeof(client));
	}
	o.inner.proto = bpf_htons(ETH_P_IP);
	return bpf_skb_store_bytes(skb, 0, &o, sizeof(o), 0);
}

/*
 * Readdresses an overlay packet to another node or gateway: outer addresses, port, overlay header.
 * The outer TTL is decremented, never reset; the inner packet stays as it is.
 */
static __always_inline enum verdict encap_turn(void *ctx, enum hook hook, const struct encap *to, __u16 node,
					       __u8 flags)
{
	void *data = ctx_at(ctx, hook, 0, OUTER_LEN);
	struct ipv4 *ip = data + ETH_LEN;
	struct udp *udp = data + ETH_LEN + sizeof(*ip);
	struct overlay_header *h = data + ETH_LEN + sizeof(*ip) + sizeof(*udp);
	__u32 sum;

	if (!data)
		return VERDICT_DROP_MALFORMED;
	if (ip->ttl <= 1)
		return VERDICT_DROP_TTL;
	/* RFC 1624, equation 3, over the words that change. */
	sum = (ip->check ^ 0xffff) + csum_words(~ip->saddr) + csum_words(~ip->daddr) + csum_words(to->source) +
	      csum_words(to->hop.address);
	sum += bpf_htons(0x0100) ^ 0xffff; /* decrements the TTL, the high byte of its word */
	ip->ttl--;
	ip->check = ~csum_fold(sum);
	ip->saddr = to->source;
	ip->daddr = to->hop.address;
	udp->dest = to->port;
	udp->check = 0;
	overlay_set(h, to->token, PACKET_FORWARD, node, flags);
	return VERDICT_CONTINUE;
}

/* The cluster of an address: a remote one, or this one for its own global IPs; 0 if none. */
static __always_inline const struct route *route_lookup(__be32 address)
{
	struct prefix prefix = { .length = 32, .address = address };

	return bpf_map_lookup_elem(&routes, &prefix);
}

/* A node of this cluster. Returns 0 if there is no such node; *to then stays as it is. */
static __always_inline int encap_to_node(const struct node_settings *s, __u32 index, struct encap *to)
{
	struct node *n = index ? bpf_map_lookup_elem(&nodes, &index) : 0;

	if (!n || !n->present)
		return 0;
	to->hop = n->hop;
	to->source = s->address;
	to->port = bpf_htons(OVERLAY_PORT);
	to->wire = 0;
	to->token = s->overlay_token;
	to->slot = path_slot(0, index);
	return 1;
}

/* The far end of a cable. Returns 0 if no tunnel leads there. */
static __always_inline int encap_to_remote(const struct node_settings *s, __u32 cluster, const struct remote_gateway *r,
					   __u32 hash, struct encap *to)
{
	to->hop = r->hop;
	to->slot = path_slot(cluster, r->node);
	to->source = s->cable_address;
	to->port = r->port;
	to->token = s->cable_token;
	to->wire = !r->hop.ifindex;
	if (!to->wire)
		return 1;
	if (!r->tunnels)
		return 0;
	to->hop.ifindex = r->tunnel[hash_mix(hash, SEED_TUNNEL) % r->tunnels % MAX_TUNNELS];
	return 1;
}

enum reach {
	REACH_NONE = 0, /* no gateway is known, or no tunnel leads to it */
	REACH_GOOD = 1,
	REACH_DOUBTFUL = 2, /* none of them answers; the pick is arbitrary */
};

/* Picks a gateway of a remote cluster and records whether one answers. */
static __always_inline enum reach encap_to_cluster(const struct node_settings *s, __u32 index, __u32 hash, __u64 now,
						   struct encap *to)
{
	struct cluster *c = bpf_map_lookup_elem(&clusters, &index);
	enum reach reach = REACH_NONE;
	__u32 pick = 0, place;

	if (c) {
		pick = lb_pick_remote(c, index, gateway_hash(s, hash), now);
		place = (pick & 0xffff) - 1;
		if (place < MAX_GATEWAYS && encap_to_remote(s, index, &c->gateways[place], hash, to))
			reach = pick & PICK_DOUBTFUL ? REACH_DOUBTFUL : REACH_GOOD;
	}
	advertise_reach(index, reach == REACH_GOOD, !!(pick & PICK_LOSSY));
	return reach;
}

/*
 * Picks the exit of a flow: a gateway of this cluster, or the far end of the cable if this node is
 * the picked gateway. A gateway applies the same pick to its own pods as every other node. For its
 * own cluster it is the exit itself: to->hop.ifindex stays 0.
 */
static __always_inline enum verdict encap_find_exit(const struct node_settings *s, __u16 cluster, __u32 hash, __u64 now,
						    struct encap *to)
{
	__u32 gateway;

	if (cluster == s->cluster && s->gateway) {
		to->hop.address = s->address;
		to->source = s->address;
		to->port = bpf_htons(OVERLAY_PORT);
		to->token = s->overlay_token;
		return VERDICT_CONTINUE;
	}
	gateway = lb_pick_gateway(gateway_hash(s, hash), cluster, 0, now) & 0xffff;
	if (!gateway)
		return VERDICT_DROP_NO_GATEWAY;
	if (s->gateway && gateway == s->node)
		return encap_to_cluster(s, cluster, hash, now, to) ? VERDICT_CONTINUE : VERDICT_DROP_NO_GATEWAY;
	return encap_to_node(s, gateway, to) ? VERDICT_CONTINUE : VERDICT_DROP_UNKNOWN_NODE;
}
