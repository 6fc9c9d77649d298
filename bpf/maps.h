/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every map. All are pinned by name in one bpffs directory and outlive the daemon. "loader" is user
 * space. A layout change requires a new map name, a step in package loader (migrate.go) and a new
 * LAYOUT_VERSION; maps are never silently recreated. The loader sets the sizes of `flows` and
 * `slots`.
 */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "types.h"

/*
 * key: 0; value: what this node is. Writer: loader. Reader: every program. Updates of an array
 * element are not atomic, so a program may see old and new fields mixed. Accepted where both values
 * are valid: one packet is handled with the old address, token or MSS. The fields that open a gate
 * (ready, gateway) are written by a later call than those they guard.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct node_settings);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} settings SEC(".maps");

/* key: prefix; value: the cluster behind it. Writer: loader. Reader: edge, gateway. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct route);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} routes SEC(".maps");

/*
 * key: node index; value: how to reach it. Writer: loader. Reader: edge, gateway. Updates are not
 * atomic here either: when a node's address changes, a packet may be sent during the write to one
 * address over the next hop of the other. Accepted: one packet is lost.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct node);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} nodes SEC(".maps");

/*
 * key: 0; value: node indexes of this cluster's gateways. Writer: loader. Reader: edge, gateway.
 * Updates of an array element are not atomic: during a write, a reader may see some indexes of the
 * old set and some of the new, or one entry too many, which is 0 and names no node. Accepted: one
 * packet is lost.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct gateway_set);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} gateways SEC(".maps");

/* key: cluster index below MAX_CLUSTERS; value: its gateways. Writer: loader. Reader: gateway. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_CLUSTERS);
	__type(key, __u32);
	__type(value, struct cluster);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} clusters SEC(".maps");

/* key: outer address; value: who may send from it. Writer: loader. Reader: uplink programs. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct peer);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} peers SEC(".maps");

/*
 * key: local address (pod, node, or endpoint outside the cluster); value: what it may use. Writer:
 * loader. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __be32);
	__type(value, struct source);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} sources SEC(".maps");

/*
 * key: prefix of hosts outside the cluster, or of its ClusterIPs; value: what they may use. Exact
 * addresses in `sources` take precedence. Writer: loader, on gateways. Reader: edge, gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 1024);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct source);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} externals SEC(".maps");

/*
 * key: address of a local pod; value: its device, and whether packets may bypass the stack. Pods
 * without an entry are strict. Writer: loader. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __be32);
	__type(value, struct endpoint);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} endpoints SEC(".maps");

/*
 * key: egress IP; value: the blocks in which this node opens flows. Writer: loader. Reader:
 * edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct egress);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} egresses SEC(".maps");

/*
 * key: own global address, without globalnet that of every pod of the cluster on a gateway; value:
 * what it is. Writer: loader. Reader: edge, gateway. Before, `globals` with 65,536 entries.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 524288);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct global);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} globals2 SEC(".maps");

/*
 * key: own global address with GLOBAL_RESTRICTED; value: the clusters that may open flows to it;
 * without an entry none may. Writer: loader. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct audience);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} audiences SEC(".maps");

/*
 * key: egress IP and block; value: the owning node. Writer: loader, on gateways. Reader:
 * gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct block_key);
	__type(value, struct block);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} blocks SEC(".maps");

/*
 * key: address, port, protocol of an exported service, or of a ClusterSetIP that this cluster
 * serves; value: its sizes. Writer: loader. Reader: edge, gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, struct service);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} services SEC(".maps");

/*
 * key: service and index below service.backends; value: a ready pod on this node; of a
 * ClusterSetIP, one of this cluster. Writer: loader. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct backend_key);
	__type(value, struct backend);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} backends SEC(".maps");

struct table {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__uint(map_flags, BPF_F_INNER_MAP);
	__type(key, __u32);
	__type(value, struct slot_block);
};

/*
 * key: service; value: its Maglev table, slot / SLOT_BLOCK -> node indexes. Writer: loader, on
 * gateways, in place while the size stays. Reader: gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
	__array(values, struct table);
} tables2 SEC(".maps");

/*
 * key: 0; value: the range of ClusterSetIPs. Writer: loader. Reader: edge. Array: see
 * `settings`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct vip_range);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} vip_ranges SEC(".maps");

/*
 * key: ClusterSetIP, port, protocol; value: the clusters that serve it. Writer: loader. Reader:
 * edge. Replaces `vips`, with 32 targets.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct service_key);
	__type(value, struct vip);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} vips2 SEC(".maps");

/*
 * key: ClusterIP of this cluster that is a target in `vips2`; value: the global IP of its service,
 * for clients without a device in `endpoints`; 0: none. Writer: loader. Reader: edge, also to
 * recognise their answers among the packets to pods.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, __be32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} vip_backings SEC(".maps");

/*
 * key: exported service, or ClusterSetIP, with session affinity and its client; value: the backend
 * in `backends` of the client's last connection. LRU: losing one costs a client its backend only if
 * another backend was added since. Writer, reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct choice_key);
	__type(value, struct backend_choice);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} choices SEC(".maps");

/*
 * key: port of a ClusterSetIP and a ready pod of this cluster that serves it, or exported UDP port
 * and a ready backend on this node; value: port of the pod, 0: several. The same pods are in
 * `backends`, by index. Writer: loader. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct vip_pod_key);
	__type(value, __be16);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} vip_pods SEC(".maps");

/*
 * key: UDP socket of the node and a ClusterSetIP that it sends to; value: the pod that it sends to.
 * LRU: losing one costs the socket its pod. Writer, reader: sendmsg4.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct socket_key);
	__type(value, struct backend);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} socket_backends SEC(".maps");

/*
 * key: socket of the node and a pod that it has reached at a ClusterSetIP; value: that ClusterSetIP.
 * LRU: after losing one the socket sees the pod's address. Writer: connect4, connect6, sendmsg4.
 * Reader: recvmsg4, getpeername4 and those of IPv6.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 32768);
	__type(key, struct socket_key);
	__type(value, struct backend);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} socket_vips SEC(".maps");

/*
 * key: interface index of a pod's device (`endpoints`); value: 1. The pod's own end of it runs
 * pod_end, so pod_in leaves answers of ClusterSetIPs to that. Writer: loader, once pod_end is
 * attached. Reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} pod_ends SEC(".maps");

/*
 * key: client and port of a ClusterSetIP with session affinity; value: the cluster of its last
 * connection. LRU: losing one costs one client its affinity. Writer, reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct affinity_key);
	__type(value, struct affinity_choice);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} affinities SEC(".maps");

/*
 * key: tuple before translation and direction; value: tuple after it and state. Two entries a flow.
 * A HASH, never LRU: an evicted entry is a broken connection. Writer: edge; removed by the edge
 * (expired, claimed) and by the sweep program. Reader: edge, loader. Lifetime: the timers of
 * config.h.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * DEFAULT_FLOWS);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct flow_key);
	__type(value, struct flow);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} flows SEC(".maps");

/*
 * key: slot; value: key of the primary entry of the flow that took the slot. A new flow takes the
 * next slot of this ring whose flow is gone or expired, and removes an expired one; when the flow
 * table is full, the oldest slots are searched for removable flows. So the table does not fill up
 * even without a daemon. Writer and reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * DEFAULT_FLOWS);
	__type(key, __u32);
	__type(value, struct flow_key);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} slots SEC(".maps");

/*
 * key: a source, a cluster, or all flows; value: its number of open flows. Writer: edge and sweep,
 * by atomic operations; loader, at migration, and for all flows by a sweep. Reader: edge. The
 * loader's sweep removes entries without flows whose source is not in `sources`.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct usage_key);
	__type(value, __s64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} usage SEC(".maps");

/*
 * The clock hand of `slots`. key: 0; value: the next slot to inspect (wraps). Writer and reader:
 * edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} hand SEC(".maps");

/*
 * key: source and slot of a fragmented datagram on its way out, or from this cluster's own service
 * of a ClusterSetIP to a pod; value: its ports. So a source has at most FRAGMENT_SLOTS entries, and
 * an entry is needed only while the stack sends the fragments, one after the other. LRU: losing an
 * entry costs one datagram. Writer, reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 8192);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} fragments2 SEC(".maps");

/*
 * key: outer address of a peer; value: state of the path. The loader makes and removes entries, the
 * programs write them. Reader: edge, gateway, loader.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct path);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} paths SEC(".maps");

/*
 * key: path_slot(); value: cached state of a path, at most a quarter of a second old. Peers may
 * share a slot. Writer and reader: edge, gateway, without a lock: one packet may see the previous
 * rank. Mappable, because values are then aligned and do not straddle two cache lines.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PATH_LINES);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct path_line);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} path_lines SEC(".maps");

/*
 * key: outer address of a peer that is probed; value: the newest large probe. The loader makes and
 * removes entries, the programs write them. Reader: the programs, loader.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, struct large_probe);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} large_probes SEC(".maps");

/*
 * key: 0; value: what this node's replies to probes advertise. Writer: advertise, gateway, both by
 * atomic operations. Reader: reflector.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct advertised);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} standings SEC(".maps");

/*
 * key: 0; value: the remote clusters that this gateway reaches only over lossy paths. Writer:
 * advertise, gateway, both by atomic operations. Reader: reflector, gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct cluster_set);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} own_losses SEC(".maps");

/*
 * key: outer address of a gateway of this cluster; value: its own_losses, from its last reply. LRU,
 * because entries of removed gateways are not deleted. Writer: the receiver of replies. Reader:
 * edge, gateway, loader.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 256);
	__type(key, __be32);
	__type(value, struct cluster_set);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} gateway_losses SEC(".maps");

/* key: interface index; value: an uplink with XDP. Writer: loader. Reader: uplink_xdp, guard. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, struct uplink);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} uplinks SEC(".maps");

/* key: 0; value: the ports of the wire. Writer: loader. Reader: guard. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct guard);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} guards SEC(".maps");

/*
 * Handshake peers. key: address of a remote gateway on the underlay; value: nothing. Writer:
 * loader. Reader: guard.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16384);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __be32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} callers SEC(".maps");

/*
 * Token bucket of handshakes from unknown addresses. key: 0; value: when it is full again, ns since
 * boot. Writer and reader: guard.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} calls SEC(".maps");

/*
 * key: hook * COUNTER_VERDICTS + verdict; value: packets and bytes. The stride is fixed, so that a
 * new verdict or hook changes no size. Writer: count_verdict(). Reader: collector.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, COUNTER_HOOKS *COUNTER_VERDICTS);
	__type(key, __u32);
	__type(value, struct counter);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} counters2 SEC(".maps");

/*
 * key: hash of a network; value: as in `calls`, for handshakes above that rate. Writer and reader:
 * guard.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, HANDSHAKE_NETWORKS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} network_calls SEC(".maps");

/*
 * Token bucket of answers to dropped packets of local sources. key, value: as in `calls`. Writer
 * and reader: edge.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} answers SEC(".maps");

/*
 * Token buckets of answers to the clients of services without that port or a ready backend. key:
 * index of their cluster; value: as in `calls`. Writer and reader: edge, gateway.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_CLUSTERS);
	__type(key, __u32);
	__type(value, __u64);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} refusals SEC(".maps");

/*
 * key: 0; value: the self-test under way. Writer: loader, which writes the marker last and reads
 * the rest; edge, uplink_out.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct selftest);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} selftests SEC(".maps");

/* key: 0; value: LAYOUT_VERSION of the loader that last opened the maps. Writer, reader: loader. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
	__uint(pinning, LIBBPF_PIN_BY_NAME);
} abi SEC(".maps");
