/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every struct and enum that the kernel side shares with user space; overlay.h has those that nodes
 * share with each other. bpf2go generates the Go side from this file; no layout is mirrored by
 * hand. Byte order: __be16/__be32 are in network order, everything else is in host order.
 */
#pragma once
#include <linux/types.h>
#include "overlay.h"

/*
 * What became of a packet. Go, metric labels and `pelago nat stats` use the names below, in lower
 * case with dashes and without the prefix; they are read from BTF, so there is no second list to
 * maintain.
 */
enum verdict {
	VERDICT_SENT,		      /* edge: translated and sent towards a gateway or a cable */
	VERDICT_DELIVERED,	      /* edge: translated back and handed to the node's stack */
	VERDICT_SWITCHED,	      /* gateway: passed between overlay and cable */
	VERDICT_BOUNCED,	      /* passed once to another gateway or node */
	VERDICT_PROBE,		      /* a probe or its reply, consumed */
	VERDICT_DROP_MALFORMED,	      /* too short, wrong lengths, not IPv4 inside */
	VERDICT_DROP_BAD_VERSION,     /* overlay header of an unknown version */
	VERDICT_DROP_BAD_TOKEN,	      /* overlay header without the secret token */
	VERDICT_DROP_BAD_TYPE,	      /* unknown packet type in the overlay header */
	VERDICT_DROP_UNKNOWN_PEER,    /* outer source is no known node or gateway */
	VERDICT_DROP_SPOOFED_SOURCE,  /* inner source does not belong to the cluster that sent it */
	VERDICT_DROP_UNKNOWN_SOURCE,  /* local packet whose source is no pod of this node and not the node */
	VERDICT_DROP_NO_ROUTE,	      /* destination belongs to no accepted cluster */
	VERDICT_DROP_NO_GATEWAY,      /* no gateway to send to */
	VERDICT_DROP_NOT_GATEWAY,     /* transit packet at a node that is no gateway */
	VERDICT_DROP_NOT_OWN,	      /* from a cable to an address that is not ours: no transit between clusters */
	VERDICT_DROP_UNKNOWN_BLOCK,   /* no node owns the block of this egress IP and port, here or at a sibling */
	VERDICT_DROP_UNKNOWN_NODE,    /* the owner's node index has no address */
	VERDICT_DROP_NO_SERVICE,      /* global IP and port without an exported service */
	VERDICT_DROP_NO_BACKEND,      /* exported service without a ready backend */
	VERDICT_DROP_NO_FLOW,	      /* no flow entry, and this packet may not make one */
	VERDICT_DROP_NO_EGRESS,	      /* the pod has no egress IP, or the node no active block of it */
	VERDICT_DROP_PORTS_EXHAUSTED, /* no free port found in the node's blocks towards this destination */
	VERDICT_DROP_FLOWS_FULL,      /* the flow table is full */
	VERDICT_DROP_TUPLE_CLASH,     /* another live flow shows the same tuple and no other port was free */
	VERDICT_DROP_FRAGMENT,	      /* later fragment whose first one was never seen, or a fragmented ICMP error */
	VERDICT_DROP_PROTOCOL,	      /* protocol that is not carried, or SCTP whose port would have to change */
	VERDICT_DROP_TTL,	      /* time to live ran out */
	VERDICT_DROP_TOO_BIG,	 /* larger with its overlay header than the uplink's MTU or an IPv4 packet can be */
	VERDICT_DROP_INJECTED,	 /* to one of our ports, and not sent by our programs */
	VERDICT_DROP_UNVERIFIED, /* reached pelago0 without having passed our checks */
	VERDICT_DROP_NOT_READY,	 /* tables not loaded yet */
	VERDICT_DROP_HANDSHAKE,	 /* a wire's handshake from an unknown address, beyond their rate */
	VERDICT_DROP_INTERNAL,	 /* a helper failed */
	VERDICT_DROP_QUOTA,	 /* the local source or remote cluster has used up its share of the flow table */
	VERDICT_OWN_SERVICE, /* to a ClusterSetIP: translated to the service of this cluster, for the node's stack */
	VERDICT_DROP_NOT_EXPORTED, /* the service is not exported to the cluster of the source */
	VERDICT_DROP_STALE_PROBE,  /* unexpected reply to a probe: late, duplicate or forged */
	VERDICT_DROP_NO_MEMORY,	   /* the kernel has no memory for an entry of the flow table, which is not full */
	VERDICT_MAX,
	VERDICT_CONTINUE, /* no verdict yet: the caller continues. Never counted */
};

/* Where a verdict was counted. */
enum hook {
	HOOK_EDGE_OUT,	 /* egress of pelago0: from the node's stack into the overlay */
	HOOK_UPLINK_IN,	 /* ingress of an uplink: overlay and cable packets */
	HOOK_UPLINK_OUT, /* egress of an uplink: the guard */
	HOOK_EDGE_IN,	 /* ingress of pelago0: from the overlay into the node's stack */
	HOOK_WIRE_IN,	 /* ingress of an encrypted wire's device: cable packets */
	HOOK_WIRE_OUT,	 /* egress of an encrypted wire's device: the guard */
	HOOK_UPLINK_XDP, /* the driver of an uplink, before HOOK_UPLINK_IN */
	HOOK_POD_OUT,	 /* from a pod's device into the overlay, past the node's stack */
	HOOK_POD_IN,	 /* from the overlay into a pod, past the node's stack */
	HOOK_HAIRPIN,	 /* ingress of a gateway's pelago0: from its own pods to global IPs of its own cluster */
	HOOK_MAX,
};

/* Dimensions of the map of counters. */
enum counter_limit {
	COUNTER_HOOKS = 16,
	COUNTER_VERDICTS = 64,
};
_Static_assert(HOOK_MAX <= COUNTER_HOOKS && VERDICT_MAX <= COUNTER_VERDICTS, "the map of counters is full");

/*
 * The layout of the pinned maps. Layout 1 had no map `abi`, and its counters had a stride of
 * VERDICT_MAX, at that time
 * 34. Layout 2 has the maps counters2 and usage.
 */
enum layout {
	LAYOUT_VERSION = 2,
};

/* Flows that the maps hold unless the loader sets another size, a power of two. */
#define DEFAULT_FLOWS (1 << 18)

struct counter {
	__u64 packets;
	__u64 bytes;
};
ASSERT_SIZE(struct counter, 16);

/* ---- settings ---- */
struct node_settings {
	__be32 address;	      /* this node's address on the overlay */
	__be32 cable_address; /* and on the cable: the same with the vxlan wire, else its fabric address */
	__u16 node;	      /* this node's index */
	__u16 cluster;	      /* this cluster's index */
	__u16 gateway;	      /* 1: this node switches between overlay and cable */
	__u16 mss;	      /* TCP MSS that fits into every wire; 0 = do not clamp */
	__u32 cookie;	      /* per-boot secret of this node: skb mark of own packets, VNI of verified ones */
	__u32 probe_mark;     /* a second secret: skb mark of frames that become probes and of hairpinned packets,
				 skb priority of verified packets */
	__u32 edge;	      /* interface index of pelago0 */
	__u32 overlay_token;  /* low 24 bits */
	__u32 overlay_token_old;
	__u32 cable_token;
	__u32 cable_token_old;
	__u32 generation;  /* of the tables, counts up with every change */
	__u16 ready;	   /* 1 once the first full set of tables is in */
	__be16 cable_port; /* UDP port of the vxlan wire; 0 = another wire, or no gateway */
	__u32 leaving;	   /* 1: a draining gateway: peers use others, it keeps switching what still arrives */
	__u32 single;	   /* 1: all flows take one gateway of a cluster while it is good */
};
ASSERT_SIZE(struct node_settings, 60);

/* ---- routing ---- */
struct prefix {
	__u32 length; /* bits */
	__be32 address;
};
ASSERT_SIZE(struct prefix, 8);

struct route {
	__u16 cluster; /* index of the remote cluster; this one's: own global IPs (hairpin) */
	__u16 pad;
};
ASSERT_SIZE(struct route, 4);

/* How an outer packet gets to another node or gateway. */
struct hop {
	__be32 address;
	__be32 next; /* next hop on the uplink; equal to address if on-link; 0 = its packets have no Ethernet header */
	__u32 ifindex; /* the uplink; 0 = an encrypted wire, the flow's hash picks the tunnel */
};
ASSERT_SIZE(struct hop, 12);

struct node {
	struct hop hop;
	__u32 present;
};
ASSERT_SIZE(struct node, 16);

#define MAX_GATEWAYS 16

/* The gateways of this cluster, by node index. */
struct gateway_set {
	__u32 count;
	__u16 nodes[MAX_GATEWAYS];
};
ASSERT_SIZE(struct gateway_set, 36);

#define MAX_TUNNELS 4

struct remote_gateway {
	struct hop hop;
	__u16 node;		   /* its index in its own cluster, seed of the rendezvous hash */
	__be16 port;		   /* of its cable */
	__u32 tunnels;		   /* encrypted wire: number of devices in `tunnel` */
	__u32 tunnel[MAX_TUNNELS]; /* interface indexes; flows are spread over them */
};
ASSERT_SIZE(struct remote_gateway, 36);

struct cluster {
	__u32 count;
	struct remote_gateway gateways[MAX_GATEWAYS];
};
ASSERT_SIZE(struct cluster, 4 + 36 * MAX_GATEWAYS);

enum peer_kind {
	PEER_NODE = 1,	  /* node of this cluster: may send on the overlay */
	PEER_GATEWAY = 2, /* gateway of a remote cluster: may send on the cable */
};

struct peer {
	__u16 kind;    /* enum peer_kind */
	__u16 cluster; /* PEER_GATEWAY: its cluster's index */
	__u16 node;    /* its index in its cluster */
	__u16 pad;
};
ASSERT_SIZE(struct peer, 8);

/* ---- XDP ---- */

/* An uplink that uplink_xdp sits on. */
struct uplink {
	__u8 mac[6]; /* its own */
	__u16 pad;
};
ASSERT_SIZE(struct uplink, 8);

/* The UDP ports at which WireGuard listens; ports 0 = nothing to guard. */
struct guard {
	__u16 first; /* host order */
	__u16 ports;
};
ASSERT_SIZE(struct guard, 4);

#define HANDSHAKE_NETWORKS 512 /* buckets for handshakes by network */

/* ---- addresses ---- */
enum source_flag {
	SOURCE_HOST = 1,     /* an address of the node itself, not of a pod */
	SOURCE_EXTERNAL = 2, /* a host outside the cluster, behind a device that is no pod's */
	SOURCE_ROUTED = 4,   /* in `externals`: other clusters may send to it, under its own address */
	SOURCE_MAPPED = 8,   /* its UDP has endpoint-independent mappings, as that of all sources with this egress IP */
	SOURCE_OPEN = 16,    /* with SOURCE_MAPPED: any address of an accepted cluster may send to its mappings */
};

enum source_device {
	DEVICE_ANY = 0,	   /* not checked */
	DEVICE_NONE = ~0U, /* none: a socket of the node itself */
};

struct source {
	__be32 egress_ip; /* 0: no egress */
	__be32 own_ip;	  /* global IP of a headless pod, used 1:1; 0 if none */
	__u32 ifindex;	  /* device towards the pod, enum source_device; ignored with SOURCE_HOST */
	__u32 flags;	  /* enum source_flag */
};
ASSERT_SIZE(struct source, 16);

/* How packets get from a local pod to the overlay and back. */
enum datapath {
	DATAPATH_STRICT = 0, /* all packets pass through the node's stack */
	DATAPATH_HYBRID = 1, /* packets of established connections bypass it, except one now and then */
	DATAPATH_FAST = 2,   /* all packets bypass it */
};

/* A pod's own device: the node's end of its veth pair. */
struct endpoint {
	__u32 ifindex;
	__u8 mac[6];	/* of the pod's end */
	__u16 datapath; /* enum datapath */
};
ASSERT_SIZE(struct endpoint, 12);

#define BLOCK_BITS 8   /* a block is 256 ports */
#define MAX_BLOCKS 252 /* every block of an IP */

/* The blocks of one egress IP in which this node opens flows. */
struct egress {
	__u32 count;
	__u16 first[MAX_BLOCKS]; /* first port of each, host order, sorted */
};
ASSERT_SIZE(struct egress, 4 + 2 * MAX_BLOCKS);

enum global_kind {
	GLOBAL_EGRESS = 1,   /* (address, port >> 8) names the node */
	GLOBAL_SERVICE = 2,  /* (address, port, protocol) names the service */
	GLOBAL_POD = 3,	     /* one pod on one node */
	GLOBAL_EXTERNAL = 4, /* an endpoint outside the cluster: the gateway that receives a new flow is its edge */
};

enum global_flag {
	GLOBAL_RESTRICTED = 1, /* only clusters in map `audiences` open flows to it */
};

struct global {
	__u8 kind;  /* enum global_kind */
	__u8 flags; /* enum global_flag; formerly the high byte of kind, always 0 */
	__u16 node; /* GLOBAL_POD: index of the pod's node */
	__be32 pod; /* GLOBAL_POD on this node: the pod's address; GLOBAL_EXTERNAL on a gateway: the endpoint's; else 0 */
};
ASSERT_SIZE(struct global, 8);

/* The clusters to which the service behind a global address is exported. */
struct audience {
	__u64 clusters[CLUSTER_WORDS]; /* a bit for each index */
};
ASSERT_SIZE(struct audience, 8 * CLUSTER_WORDS);

struct block_key {
	__be32 address;
	__u32 block; /* port >> 8 */
};
ASSERT_SIZE(struct block_key, 8);

struct block {
	__u16 node;
	__u16 pad;
};
ASSERT_SIZE(struct block, 4);

struct service_key {
	__be32 address;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
ASSERT_SIZE(struct service_key, 8);

struct service {
	__u32 backends; /* ready backends on this node, of a ClusterSetIP in this cluster, in map `backends` */
	__u32 slots;	/* size of its table in map `tables2`; 0 = none here */
	__u32 affinity; /* seconds for which a client keeps its backend; 0: none. Formerly 1: without a timeout */
};
ASSERT_SIZE(struct service, 12);

enum slot_block_size {
	SLOT_BLOCK = 64,
};

/* Consecutive slots of a Maglev table: an element of an array takes at least 8 bytes. */
struct slot_block {
	__u16 nodes[SLOT_BLOCK]; /* indexes; 0 = none */
};
ASSERT_SIZE(struct slot_block, 128);

struct backend_key {
	struct service_key service;
	__u32 index;
};
ASSERT_SIZE(struct backend_key, 12);

struct backend {
	__be32 address;
	__be16 port;
	__u16 pad;
};
ASSERT_SIZE(struct backend, 8);

struct choice_key {
	struct service_key service; /* with session affinity */
	__be32 source;
	__u32 client; /* of those with this source address (encap_client()); 0: unknown */
};
ASSERT_SIZE(struct choice_key, 16);

struct backend_choice {
	__u64 used; /* by its last new connection, coarse ns since boot */
	struct backend backend;
};
ASSERT_SIZE(struct backend_choice, 16);

/* ---- ClusterSetIPs ---- */

/* The addresses that may be ClusterSetIPs; mask 0: none. */
struct vip_range {
	__be32 address;
	__be32 mask;
};
ASSERT_SIZE(struct vip_range, 8);

/* A cluster that serves a port of a ClusterSetIP. */
struct vip_target {
	__be32 address; /* of the service there; in this cluster its ClusterIP */
	__u16 cluster;	/* index */
	__u16 pad;
};
ASSERT_SIZE(struct vip_target, 8);

#define VIP_TARGETS 128
#define VIP_SLOTS 509 /* a prime */

enum vip_slot {
	VIP_NO_TARGET = 255, /* in a slot of no cluster */
	VIP_TRIES = 16,	     /* slots that a new connection tries */
};

/* A port of a ClusterSetIP. */
struct vip {
	__u32 count;	/* of targets */
	__u32 affinity; /* seconds for which a client keeps its cluster; 0: none */
	struct vip_target targets[VIP_TARGETS];
	__u8 slots[VIP_SLOTS + 3]; /* by the hash of a connection: a position in `targets`. The last three are padding */
};
ASSERT_SIZE(struct vip, 8 + 8 * VIP_TARGETS + VIP_SLOTS + 3);

struct affinity_key {
	struct service_key vip;
	__be32 client; /* a local address */
};
ASSERT_SIZE(struct affinity_key, 12);

struct affinity_choice {
	__u64 used; /* by its last new connection, coarse ns since boot */
	__u32 cluster;
	__u32 pad;
};
ASSERT_SIZE(struct affinity_choice, 16);

struct vip_pod_key {
	struct service_key vip;
	__be32 pod;
};
ASSERT_SIZE(struct vip_pod_key, 12);

/* A socket of the node, and an address that it uses. */
struct socket_key {
	__u64 socket; /* cookie, unique since boot */
	__be32 address;
	__be16 port;
	__u8 proto;
	__u8 pad;
};
ASSERT_SIZE(struct socket_key, 16);

/* ---- flows ---- */
enum direction {
	DIRECTION_OUT = 0,     /* the packet leaves the node for the overlay */
	DIRECTION_IN = 1,      /* the packet comes from the overlay */
	DIRECTION_MAPPING = 2, /* flag: the entry of a mapping; no packet has such a key */
};

/*
 * A flow has two entries in one map, one for each direction. The key is the tuple as it stands
 * before translation. ICMP echo: a request has its identifier as source port, a reply as
 * destination port, the other port is 0. An ICMP error belongs to the flow of the packet that it
 * quotes: its key is the quoted tuple reversed.
 *
 * An endpoint-independent mapping (RFC 4787 REQ-1) of UDP is a flow with DIRECTION_MAPPING whose
 * remote address and port are 0: it maps a local address and port to the egress IP and port that
 * all its flows use.
 */
struct flow_key {
	__be32 saddr;
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u8 proto;
	__u8 direction; /* enum direction */
	__u16 pad;
};
ASSERT_SIZE(struct flow_key, 16);

enum flow_role {
	FLOW_CLIENT = 1, /* a local pod opened it: source translated on the way out */
	FLOW_SERVER = 2, /* a remote client opened it: destination translated on the way in */
};

enum tcp_seen {
	/*
	 * A segment with ACK was seen; if in both directions, the handshake is complete or nearly
	 * so. Other protocols: any packet was seen; if in the answer entry, the flow has been
	 * replied to.
	 */
	TCP_SEEN_ACK = 1,
	TCP_SEEN_FIN = 2,
	TCP_SEEN_RST = 4,
	FLOW_MAPPED = 8,    /* of UDP: the flow belongs to a mapping, which it refreshes */
	FLOW_EXTERNAL = 16, /* opened by a host outside the cluster, and counted with those of all others */
};

struct flow {
	/*
	 * Generation << 1 | dying. Whoever sets the dying bit by compare-and-swap removes the flow;
	 * because of the generation, the swap fails if the element has been recycled for another
	 * flow in the meantime.
	 */
	__u64 state;
	__u64 seen;   /* last packet of this direction, coarse ns since boot */
	__be32 saddr; /* the tuple after translation */
	__be32 daddr;
	__be16 sport;
	__be16 dport;
	__u16 node;    /* index of the far node, learned from replies; 0 = not yet */
	__u16 cluster; /* index of the far cluster; this one's: hairpin, or a ClusterSetIP that it serves itself */
	__u8 role;     /* enum flow_role */
	__u8 tcp;      /* enum tcp_seen, this direction */
	__u8 primary;  /* 1: the entry of the direction that opened the flow */
	__u8 passed;   /* tick when the stack last let a packet of this direction pass (bypass.h); 0 = not asked */
	__u32 device;  /* where the local side's packets come from: an interface index, or enum source_device */
};
ASSERT_SIZE(struct flow, 40);

enum usage_cluster {
	USAGE_MAPPINGS = 1 << 15, /* times DIRECTION_MAPPING, so no cluster index: counts mappings of the source */
	USAGE_EXTERNAL = 1 << 13, /* times FLOW_EXTERNAL: counts those of all hosts outside the cluster */
};

/*
 * Flows are counted for each local source, for all hosts outside the cluster together, for each
 * remote cluster, and all together (source and cluster 0).
 */
struct usage_key {
	__be32 source; /* of the flows that it opened; 0: not of one */
	__u32 cluster; /* index of the cluster whose clients opened them, or enum usage_cluster */
};
ASSERT_SIZE(struct usage_key, 8);

#define FRAGMENT_SLOTS 64 /* fragmented datagrams of one source that are stored at a time, a power of two */

/* Fragments on their way out: the ports of the first one. */
struct fragment_key {
	__be32 saddr;
	__u32 slot; /* from the identification */
};
ASSERT_SIZE(struct fragment_key, 8);

struct fragment {
	__be32 daddr;
	__be16 id;
	__u8 proto;
	__u8 pad;
	__be16 sport;
	__be16 dport;
};
ASSERT_SIZE(struct fragment, 12);

/* ---- paths ---- */
#define PROBE_RING 16
#define RTT_BUCKETS 24

/*
 * The numbers of the liveness rule, which user space applies to what it reads (health.h,
 * liveness.Path). Times in ns.
 */
enum liveness {
	LIVENESS_INTERVAL = 10000000,	 /* between two probes of a path in use */
	LIVENESS_UNANSWERED = 3,	 /* a path is suspect once this many probes are unanswered, */
	LIVENESS_UNANSWERED_LOSS = 6,	 /* or this many if its loss exceeds LIVENESS_LOSS_LOW, */
	LIVENESS_LOSS_LOW = 65536 / 20,	 /* (in the unit of struct path.loss) */
	LIVENESS_FLOOR = 30000000,	 /* and the reply to the oldest of them is overdue by this much */
	LIVENESS_GONE = 450000000,	 /* a suspect path is dead when silent for so long beyond its round-trip time */
	LIVENESS_LOSS_WINDOW = 128,	 /* probes over which loss is averaged, exponentially */
	LIVENESS_LOSS_HIGH = 65536 / 10, /* a path of more loss is lossy, that is avoided, */
	LIVENESS_LOSSY_TIME = 5,	 /* for so many seconds at least, until its loss is below LIVENESS_LOSS_LOW */
	LIVENESS_STALE = 120,		 /* seconds after which a gateway's tables that were not confirmed are stale */
};

struct probe_slot {
	__u32 nonce[2]; /* the first is 0 = answered */
	__u64 sent;	/* ns since boot */
};
ASSERT_SIZE(struct probe_slot, 16);

/*
 * The path to a peer (key: its outer address): a gateway of this cluster, a remote gateway, and, on
 * gateways, every node. Probes are numbered consecutively; the last PROBE_RING of them have a slot.
 * The programs write it on several CPUs without a lock (the loader replaces entries): a lost update
 * makes a path look worse or better for one probe.
 */
struct path {
	__u64 seen;  /* when the last valid reply came in, ns since boot */
	__u64 used;  /* when a packet last took the path, coarse */
	__u64 heard; /* when the peer's last probe came in */
	__u64 rtt;   /* of the last reply, ns */
	__u64 probes;
	__u64 replies;
	__u32 next_probe; /* ms until the peer's next probe, from its last one */
	__u32 no_reply;	  /* 1: the peer, a node, reports that it gets no replies */
	__u32 probed;	  /* 1: this node probes the peer; set by the loader */
	__u32 srtt;	  /* ns (RFC 6298) */
	__u32 rttvar;	  /* ns */
	__u32 loss;	  /* share of probes without an answer, in 1/65536, over LIVENESS_LOSS_WINDOW */
	__u32 sequence;	  /* of the newest probe */
	__u32 answered;	  /* the newest one that has its answer */
	__u32 ready;	  /* from the last reply, like the next two */
	__u32 generation;
	__u32 age;
	/* since when the path is lossy, seconds since boot + 1; 0: it is not */
	__u32 lossy;
	struct probe_slot ring[PROBE_RING]; /* by sequence */
	__u64 unreachable[CLUSTER_WORDS];   /* from the last reply */
	__u32 histogram[RTT_BUCKETS]; /* replies by RTT: bucket n counts those below 2^n µs and not below 2^(n-1) */
};
ASSERT_SIZE(struct path, 48 + 48 + 16 * PROBE_RING + 8 * CLUSTER_WORDS + 4 * RTT_BUCKETS);

/*
 * What the packet path needs to know about a path, in one cache line: its rank until the next probe
 * is sent or answered. It is recomputed from struct path whenever that happens.
 */
struct path_line {
	__be32 address;	  /* of the peer; if it differs, the line belongs to another path */
	__u32 rank;	  /* enum rank until suspect_at */
	__u64 suspect_at; /* ns since boot, like the next five; ~0 = not before the next probe */
	__u64 gone_at;
	__u64 probe_at; /* from when on a small packet is cloned into a probe, */
	__u64 clone_at; /* and from when on any packet is, except a GSO packet */
	__u64 used;	/* as of struct path */
	__u64 until;	/* when it must be recomputed */
	__u64 doubtful; /* bit n: the peer does not reach one of the clusters n, n + 64, ... well */
};
ASSERT_SIZE(struct path_line, 64);

#define PATH_LINES 32768 /* half of them for nodes of this cluster, half for remote gateways */

/*
 * The newest large probe to a peer. One is under way at a time, so only the newest is waited
 * for.
 */
struct large_probe {
	__u32 nonce[2]; /* the first is 0 = answered, or none was sent */
	__u64 sent;	/* ns since boot */
	__u32 size;	/* of the inner packet whose place it takes, bytes */
	/*
	 * GSO probes handed over to the kernel's vxlan receiver as if the peer had sent them, and
	 * those that came back from it.
	 */
	__u16 gso_handed;
	__u16 gso_passed;
};
ASSERT_SIZE(struct large_probe, 24);

/* What the replies of this gateway advertise. The loader changes it by program `advertise`. */
struct advertised {
	__u64 confirmed;		  /* when the daemon last confirmed the tables, ns since boot */
	__u64 unreachable[CLUSTER_WORDS]; /* clusters of which no gateway answers */
};
ASSERT_SIZE(struct advertised, 8 + 8 * CLUSTER_WORDS);

/* Argument of the program `advertise`. */
struct advertisement {
	__u32 confirm;			  /* 1: the tables are up to date now */
	__u32 replace;			  /* 1: `unreachable` replaces what is advertised */
	__u64 unreachable[CLUSTER_WORDS]; /* in */
	__u64 lossy[CLUSTER_WORDS];	  /* in, replaced as well */
};
ASSERT_SIZE(struct advertisement, 8 + 16 * CLUSTER_WORDS);

/* ---- self-test ---- */
enum selftest_port {
	SELFTEST_PORT = 9, /* UDP: discard (RFC 863) */
};

/* The datagram of the node's self-test, and which programs received it. Reset by the loader. */
struct selftest {
	__be32 marker; /* its first four bytes; 0: none is under way */
	__u32 edge;    /* 1: edge_out received it, */
	__u32 ingress; /* from the device with this interface index, */
	__be32 source; /* with this source address */
	__u32 pod;     /* interface index of the pod's device at which pod_out received it; 0: it did not */
	__u32 uplink;  /* interface index of the uplink by which it would have left; 0: none */
};
ASSERT_SIZE(struct selftest, 24);

/* Argument of the sweep program. */
#define SWEEP_BATCH 32

struct sweep {
	__u32 count;
	__u32 force;   /* 1: remove whatever the timers say (the pod is gone) */
	__u32 removed; /* out */
	__u32 pad;
	struct flow_key keys[SWEEP_BATCH];
};
ASSERT_SIZE(struct sweep, 16 + 16 * SWEEP_BATCH);
