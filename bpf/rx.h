/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Ingress validation of packets to our ports: outer headers, peer, version, token. */
#pragma once
#include "ctx.h"
#include "fwd.h"

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
 * Reads the outer headers at offset l3: ETH_LEN, or 0 on devices without an Ethernet header.
 * Returns 0 if there is no UDP header: another protocol, or a later fragment. A first fragment
 * holds the whole UDP header: the kernel discards fragments of less than 8 bytes other than the
 * last.
 */
static __always_inline int rx_read_outer(void *ctx, enum hook hook, __u32 l3, struct outer_udp *o)
{
	struct ipv4 *ip = ctx_at(ctx, hook, l3, sizeof(*ip) + sizeof(struct udp));
	struct udp *udp = (void *)(ip + 1);
	__u32 header;

	if (!ip || ip->version_ihl >> 4 != 4 || ip->proto != PROTO_UDP || (ip->frag & bpf_htons(IP_OFFSET)))
		return 0;
	header = (ip->version_ihl & 0x0f) * 4;
	if (header < sizeof(*ip))
		return 0;
	o->saddr = ip->saddr;
	o->daddr = ip->daddr;
	o->l4 = l3 + header;
	o->plain = header == sizeof(*ip) && !(ip->frag & bpf_htons(IP_MF));
	if (header > sizeof(*ip)) {
		udp = ctx_at(ctx, hook, l3 + header, sizeof(*udp));
		if (!udp)
			return 0;
	}
	o->dest = udp->dest;
	return 1;
}

/* Reports whether a UDP port is that of the overlay or of the vxlan wire. */
static __always_inline int rx_own_port(const struct node_settings *s, __be16 port)
{
	return port == bpf_htons(OVERLAY_PORT) || (s->cable_port && port == s->cable_port);
}

static __always_inline int rx_has_token(const struct node_settings *s, const struct rx *rx, __u32 token)
{
	if (rx->from_cable)
		return token == s->cable_token || (s->cable_token_old && token == s->cable_token_old);
	return token == s->overlay_token || (s->overlay_token_old && token == s->overlay_token_old);
}

/* Reports whether the header has a version that is accepted. See overlay.h. */
static __always_inline int overlay_understood(const struct overlay_header *h)
{
	__u8 version = h->version_flags >> 4;

	if (version == 1)
		return h->vxlan_flags == OVERLAY_VNI_FLAG;
	return version > 1 && version <= OVERLAY_VERSION_MAX && (h->vxlan_flags & OVERLAY_VNI_FLAG);
}

/* Validates a packet to one of our ports, peer, version and token first, and fills *rx. */
static __always_inline enum verdict rx_validate(void *ctx, const struct node_settings *s, __be32 from, struct rx *rx)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &from);
	struct overlay_header *h;

	if (!peer || peer->kind != (rx->from_cable ? PEER_GATEWAY : PEER_NODE))
		return VERDICT_DROP_UNKNOWN_PEER;
	h = ctx_at(ctx, rx->hook, OVERLAY_AT, sizeof(*h));
	if (!h)
		return VERDICT_DROP_MALFORMED;
	if (!overlay_understood(h))
		return VERDICT_DROP_BAD_VERSION;
	if (!rx_has_token(s, rx, overlay_get_token(h)))
		return VERDICT_DROP_BAD_TOKEN;
	/* With incomplete tables a gateway must not attract packets by answering probes. */
	if (!s->ready)
		return VERDICT_DROP_NOT_READY;
	rx->now = now_ns();
	rx->type = h->type;
	rx->node = overlay_get_node(h);
	rx->flags = h->version_flags & 0x0f;
	/* A cluster bounces a packet once; what the other one did is no concern of this one. */
	if (rx->from_cable && rx->type == PACKET_FORWARD)
		rx->flags &= OVERLAY_FRAGMENT;
	rx->peer_node = peer->node;
	rx->peer_cluster = rx->from_cable ? peer->cluster : 0;
	return VERDICT_CONTINUE;
}
