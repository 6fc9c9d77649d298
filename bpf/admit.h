/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The door: which packets that come in by an uplink or a wire are ours, and which of them are let in. */
#pragma once
#include "count.h"
#include "onward.h"

#define OVERLAY_AT (ETH_LEN + sizeof(struct ipv4) + sizeof(struct udp))

/* The outer IPv4 and UDP headers. */
struct outer_udp {
	__be32 saddr;
	__be32 daddr;
	__be16 dest;
	__u16 l4;    /* offset of the UDP header */
	__u32 plain; /* neither IP options nor a fragment, as our programs send */
};

/*
 * Reads the outer headers behind an Ethernet header, or the place of one, at offset 0. Returns 0 if there is no UDP
 * header: another protocol, or a later fragment. A first fragment always holds the whole UDP header, since the kernel
 * reassembles no fragment of less than 8 bytes.
 */
static __always_inline int read_outer(void *ctx, enum hook hook, struct outer_udp *o)
{
	struct ipv4 *ip = packet_at(ctx, hook, ETH_LEN, sizeof(*ip) + sizeof(struct udp));
	struct udp *udp = (void *)(ip + 1);
	__u32 header;

	if (!ip || ip->version_ihl >> 4 != 4 || ip->proto != PROTO_UDP || (ip->frag & bpf_htons(IP_OFFSET)))
		return 0;
	header = (ip->version_ihl & 0x0f) * 4;
	if (header < sizeof(*ip))
		return 0;
	o->saddr = ip->saddr;
	o->daddr = ip->daddr;
	o->l4 = ETH_LEN + header;
	o->plain = header == sizeof(*ip) && !(ip->frag & bpf_htons(IP_MF));
	if (header > sizeof(*ip)) {
		udp = packet_at(ctx, hook, ETH_LEN + header, sizeof(*udp));
		if (!udp)
			return 0;
	}
	o->dest = udp->dest;
	return 1;
}

/* Reports whether a UDP port is that of the overlay or of the vxlan wire. */
static __always_inline int own_port(const struct node_settings *s, __be16 port)
{
	return port == bpf_htons(OVERLAY_PORT) || (s->cable_port && port == s->cable_port);
}

static __always_inline int has_token(const struct node_settings *s, const struct arrival *a, __u32 token)
{
	if (a->from_cable)
		return token == s->cable_token || (s->cable_token_old && token == s->cable_token_old);
	return token == s->overlay_token || (s->overlay_token_old && token == s->overlay_token_old);
}

/*
 * A packet to one of our ports. Peer, version and token come before anything else. VERDICT_SENT: it is let in, and *a
 * says what it is.
 */
static __always_inline enum verdict admit(void *ctx, const struct node_settings *s, __be32 from, struct arrival *a)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &from);
	struct overlay_header *h;

	if (!peer || peer->kind != (a->from_cable ? PEER_GATEWAY : PEER_NODE))
		return VERDICT_DROP_UNKNOWN_PEER;
	h = packet_at(ctx, a->hook, OVERLAY_AT, sizeof(*h));
	if (!h)
		return VERDICT_DROP_MALFORMED;
	if (h->vxlan_flags != OVERLAY_VNI_FLAG || h->version_flags >> 4 != OVERLAY_VERSION)
		return VERDICT_DROP_BAD_VERSION;
	if (!has_token(s, a, header_token(h)))
		return VERDICT_DROP_BAD_TOKEN;
	/* A gateway that would reflect probes without complete tables would draw packets that it cannot switch. */
	if (!s->ready)
		return VERDICT_DROP_NOT_READY;
	a->type = h->type;
	a->node = header_node(h);
	a->flags = h->version_flags & 0x0f;
	a->peer_node = peer->node;
	a->peer_cluster = a->from_cable ? peer->cluster : 0;
	return VERDICT_SENT;
}
