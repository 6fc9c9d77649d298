/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Endpoint-independent mapping and filtering of UDP (RFC 4787 REQ-1, REQ-8), for sources whose
 * egress IP has it enabled. The entries are described at struct flow_key. All UDP of such an egress
 * IP is mapped, so the port of a mapping carries only the flows of that mapping.
 */
#pragma once
#include "edge.h"

/*
 * Reports whether a mapping is one that its source opens today: by its egress IP, and in a block of
 * this node.
 */
static __always_inline int mapping_valid(const struct source *src, __be32 egress_ip, __be16 port)
{
	return (src->flags & SOURCE_MAPPED) && src->egress_ip == egress_ip &&
	       egress_has(egress_of(egress_ip), bpf_ntohs(port));
}

/*
 * Reports whether the UDP of a source is mapped. A headless pod has its own address, and keeps its
 * ports.
 */
static __always_inline int mapping_applies(const struct packet *p, const struct source *src)
{
	return (src->flags & SOURCE_MAPPED) && p->proto == PROTO_UDP && !src->own_ip;
}

/*
 * Reports whether a packet is an ICMP error of a local source about a packet that it received
 * through an open mapping, without a flow.
 */
static __always_inline int mapping_error(const struct packet *p, const struct source *src)
{
	return p->error && p->quoted_peer == p->saddr && (src->flags & SOURCE_OPEN) && mapping_applies(p, src);
}

/*
 * Fills the source of t from the mapping of a packet. VERDICT_DROP_NO_FLOW: none exists yet. A
 * source may have mappings on at most half of the ports. A mapping in a block that was withdrawn is
 * removed; its flows keep their port.
 */
__noinline enum verdict mapping_find(const struct packet *p, const struct source *src, struct tuple *t)
{
	struct flow_key key __attribute__((aligned(8))) = {}; /* at last, a struct usage_scratch */
	struct egress *e;
	struct flow *f;
	__s64 count;

	if (!p || !src || !t)
		return VERDICT_DROP_INTERNAL;
	key.saddr = p->saddr;
	key.sport = p->sport;
	key.proto = PROTO_UDP;
	key.direction = DIRECTION_OUT | DIRECTION_MAPPING;
	f = flow_find(&key);
	if (f && mapping_valid(src, f->saddr, f->sport)) {
		if (!p->error)
			f->seen = now_ns();
		t->saddr = f->saddr;
		t->sport = f->sport;
		return VERDICT_CONTINUE;
	}
	if (f)
		flow_evict(&key);
	e = egress_of(src->egress_ip);
	count = usage_count(&key, usage_of_client(&key, external_mark(src)), (void *)&key);
	return e && count >= (__s64)e->count << (BLOCK_BITS - 1) ? VERDICT_DROP_QUOTA : VERDICT_DROP_NO_FLOW;
}

/*
 * Fills the source of t for a flow of a mapped source; the mapping is opened if none exists. An
 * ICMP error opens and refreshes nothing.
 */
static __always_inline enum verdict mapping_out(const struct packet *p, struct flow_key *key, const struct source *src,
						struct tuple *t)
{
	enum verdict v = mapping_find(p, src, t);

	if (v != VERDICT_DROP_NO_FLOW || p->error)
		return v;
	key->daddr = 0;
	key->dport = 0;
	key->direction = DIRECTION_OUT | DIRECTION_MAPPING;
	v = flow_open_client(p, key, src, 0, t);
	flow_key_of(key, p, DIRECTION_OUT);
	return v;
}

/*
 * Translates, by an open mapping, a UDP packet from the overlay that has no flow. Only addresses of
 * accepted clusters may send such a packet. It opens no flow and refreshes nothing, so that no
 * remote cluster can fill the table or keep a mapping alive; the pod's answer does.
 */
__noinline int mapping_in(const struct packet *p, struct tuple *t)
{
	struct flow_key key = { .proto = PROTO_UDP, .direction = DIRECTION_IN | DIRECTION_MAPPING };
	const struct source *src;
	struct flow *f;

	if (!p || !t || p->proto != PROTO_UDP || p->error)
		return 0;
	key.daddr = p->daddr;
	key.dport = p->dport;
	if (flow_reclaim(&key, now_ns(), 0) != RECLAIM_KEPT)
		return 0;
	f = flow_find(&key);
	if (!f)
		return 0;
	src = source_lookup(f->daddr);
	if (!src || !(src->flags & SOURCE_OPEN) || !mapping_valid(src, p->daddr, p->dport) || !route_lookup(p->saddr))
		return 0;
	t->saddr = p->saddr;
	t->sport = p->sport;
	t->daddr = f->daddr;
	t->dport = f->dport;
	return 1;
}
