/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Every constant that the loader may set before load. Times are in nanoseconds. Timers: UDP RFC
 * 4787 REQ-5 (default 5 min), TCP RFC 5382 REQ-5 (2 h 4 min established, 4 min transitory), ICMP
 * RFC 5508 REQ-2 (60 s). closed_floor: see README, Decisions.
 */
#pragma once
#include "types.h"

#define SECOND 1000000000ULL
#define MILLISECOND 1000000ULL

volatile const __u64 udp_timeout = 300 * SECOND;
/*
 * UDP to a well-known port, if its port or table entry is needed (RFC 4787 REQ-5a allows a shorter
 * timeout).
 */
volatile const __u64 udp_known_timeout = 30 * SECOND;
volatile const __u64 icmp_timeout = 60 * SECOND;
volatile const __u64 tcp_established_timeout = 7440 * SECOND;
volatile const __u64 tcp_transitory_timeout = 240 * SECOND;
/*
 * UDP and ICMP without a reply, and TCP before its handshake is complete, under the same condition
 * (RFC 6888 REQ-4).
 */
volatile const __u64 unreplied_timeout = 10 * SECOND;
/* A closed TCP flow may be reclaimed after this long if its port or table entry is needed. */
volatile const __u64 closed_floor = 2 * SECOND;

/* Entries of the map `slots`, a power of two: twice the flows that the table holds. */
volatile const __u32 slot_count = 2 * DEFAULT_FLOWS;

/* Flows that the table holds. */
volatile const __s64 flow_limit = DEFAULT_FLOWS;

/* 1: the kernel has the kfuncs by which programs read conntrack (bypass.h). */
volatile const __u32 has_conntrack = 0;

/*
 * Cookie of the node's network namespace (SO_NETNS_COOKIE), whose sockets reach ClusterSetIPs by
 * socket.c; 0: none do.
 */
volatile const __u64 host_netns = 0;

/*
 * A gateway whose daemon has not confirmed its tables for this long is used only if no other is
 * fresher; seconds.
 */
volatile const __u32 stale_after = LIVENESS_STALE;

/*
 * Rate limit of handshakes with an encrypted wire from addresses that belong to no peer: interval,
 * and burst as a time (bucket_take()).
 */
volatile const __u64 handshake_interval = SECOND / 100;
volatile const __u64 handshake_burst = SECOND / 2;
/* For handshakes beyond this rate, per source network. */
volatile const __u64 network_interval = SECOND / 2;
volatile const __u64 network_burst = 2 * SECOND;

/*
 * Rate limit of the answers to flows that get no port or are refused by a service, in the same
 * form: one for the local sources, one for each cluster.
 */
volatile const __u64 answer_interval = SECOND / 1000;
volatile const __u64 answer_burst = SECOND / 10;
