// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/* The object: every program over one set of maps. */
#include "edge.c"
#include "pod.c"
#include "socket.c"
#include "uplink.c"
#include "xdp.c"
#include "sweep.c"
#include "advertise.c"

/*
 * Types that occur only as constants or on the stack leave no trace in BTF; a pointer keeps them
 * there for bpf2go.
 */
#define KEEP(kind, name) const kind name *keep_##name __attribute__((unused))
KEEP(enum, packet_type);
KEEP(enum, hook);
KEEP(enum, verdict);
KEEP(enum, overlay_flag);
KEEP(enum, peer_kind);
KEEP(enum, source_flag);
KEEP(enum, global_kind);
KEEP(enum, global_flag);
KEEP(enum, direction);
KEEP(enum, flow_role);
KEEP(enum, tcp_seen);
KEEP(enum, usage_cluster);
KEEP(enum, source_device);
KEEP(enum, datapath);
KEEP(enum, passed);
KEEP(struct, overlay_header);
KEEP(enum, probe_flag);
KEEP(struct, probe);
KEEP(struct, probe_id);
KEEP(struct, probe_losses);
KEEP(struct, hop);
KEEP(struct, remote_gateway);
KEEP(struct, probe_slot);
KEEP(struct, vip_target);
KEEP(struct, sweep);
KEEP(enum, selftest_port);
KEEP(struct, advertisement);
KEEP(enum, layout);
KEEP(enum, counter_limit);
KEEP(enum, overlay);
KEEP(enum, probe_frame);
KEEP(enum, liveness);
KEEP(enum, rank);
KEEP(enum, seed);
KEEP(enum, slot_step);
KEEP(enum, slot_tries);
KEEP(enum, slot_block_size);
KEEP(struct, slot_block);
KEEP(enum, vip_slot);
KEEP(enum, encap_len);

char __license[] SEC("license") = "Dual BSD/GPL";
