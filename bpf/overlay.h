/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * What nodes send each other in the overlay and the cable: an ABI, versions N and N-1 interoperate.
 *
 *  0                   1                   2                   3
 *  |  0x08 (VXLAN) |            token (24 bits)                    |
 *  |     type      |       node index (16)         | ver |  flags  |
 *
 * VXLAN framing (RFC 7348) with its reserved fields in use. The inner Ethernet header is ours as
 * well: its destination is the fixed address of every pelago0, its source 02:00 and four bytes that
 * identify the client among those that share an egress IP, for session affinity (0: unknown). In a
 * fragment these four bytes are its L4 ports, and the last four of the destination identify the
 * client, or are those of the fixed address: unknown.
 *
 * Version 2 is accepted one release before it is sent. It has the layout of version 1, and room: a
 * receiver ignores bits of the first byte other than 0x08, flags that it does not know, the first
 * two bytes of both inner addresses, the rest of the destination without OVERLAY_FRAGMENT, and what
 * follows the inner packet (by its IPv4 length, so not in GSO packets). There is no header length:
 * the inner packet begins at the same offset. Packet types that a receiver does not know are
 * dropped. A gateway forwards a packet with the header of the version that it sends, and the rest
 * unchanged; the reply to a probe has the version of the probe. What a receiver must not ignore
 * needs a version of its own.
 */
#pragma once
#include <linux/types.h>

#define ASSERT_SIZE(type, size) _Static_assert(sizeof(type) == (size), #type " has changed its size")

#define OVERLAY_VNI_FLAG 0x08

enum overlay {
	OVERLAY_VERSION = 1,	 /* that is sent */
	OVERLAY_VERSION_MAX = 2, /* and up to which packets are accepted */
	OVERLAY_PORT = 4800,	 /* UDP, inside the cluster */
};

enum packet_type {
	PACKET_FORWARD = 1, /* an inner IPv4 packet */
	PACKET_PROBE = 2,
	PACKET_PROBE_REPLY = 3,
};

enum overlay_flag {
	OVERLAY_BOUNCED = 1,  /* was bounced once in this cluster; never again. Ignored from a cable */
	OVERLAY_FRAGMENT = 2, /* the inner source MAC holds the L4 ports */
	OVERLAY_SWITCH = 4,   /* for this cluster: a gateway is to find the node; without it the receiver is the edge */
};

struct overlay_header {
	__u8 vxlan_flags;
	__u8 token[3];
	__u8 type;	    /* enum packet_type */
	__u8 node[2];	    /* node index, network order; 0 = none */
	__u8 version_flags; /* version in the high four bits, enum overlay_flag in the low */
};
ASSERT_SIZE(struct overlay_header, 8);

#define MAX_CLUSTERS 1024 /* of a clusterset; indexes are smaller */
#define CLUSTER_WORDS (MAX_CLUSTERS / 64)

/* Flags of PACKET_PROBE and PACKET_PROBE_REPLY. */
enum probe_flag {
	PROBE_NO_REPLY = 1, /* the sender's last probes found no answer */
	PROBE_LARGE = 2,    /* as long as the largest packet; does not affect liveness */
	PROBE_SHORT = 8,    /* has no struct probe: cloned from a packet, the rest of which follows */
};

/*
 * The frame that the daemon has edge_out turn into a probe: as long as the probe, its body in place
 * (struct probe).
 */
enum probe_frame {
	PROBE_BODY = 64,       /* offset of the body: that of the inner packet */
	PROBE_FRAME_OLD = 208, /* of a version that does not know struct probe_losses */
	PROBE_FRAME = 336,
};

/*
 * Follows the header of a probe and its reply, in place of the inner MAC addresses. The reflector
 * leaves it alone.
 */
struct probe_id {
	__u32 nonce[2]; /* must match that of the sender's slot */
	__u32 sequence; /* names the slot; of a large probe its size */
};
ASSERT_SIZE(struct probe_id, 12);

/* In the place of the inner packet. */
struct probe {
	__u32 next_probe; /* ms until the sender's next probe */
	__u32 ready;	  /* reply: 1 once the reflector's tables are complete */
	__u32 generation; /* reply: the reflector's table generation */
	__u32 age;	  /* reply: seconds since its daemon last confirmed the tables */
	__u64 unreachable
		[CLUSTER_WORDS]; /* reply: a bit for each remote cluster of which no gateway answers the reflector */
};
ASSERT_SIZE(struct probe, PROBE_FRAME_OLD - PROBE_BODY);

/* A set of cluster indexes. */
struct cluster_set {
	__u64 words[CLUSTER_WORDS];
};

/*
 * Follows struct probe. Together with `unreachable` it forms a two-bit rank of each remote cluster.
 * The sender of a probe leaves it 0, so that a reflector that does not know it reports no losses.
 */
struct probe_losses {
	struct cluster_set lossy; /* reply: those that the reflector reaches only over lossy paths */
};
ASSERT_SIZE(struct probe_losses, PROBE_FRAME - PROBE_FRAME_OLD);
