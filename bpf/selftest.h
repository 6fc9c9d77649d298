/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * The self-test of the node: the daemon injects a datagram at a pod's device, as if the pod had
 * sent it to another cluster, and reads from `selftests` which program received it from where. It
 * opens no flow and never leaves the node by an uplink.
 */
#pragma once
#include "ctx.h"
#include "parse.h"

/*
 * The self-test that a UDP datagram with its header at offset l4 belongs to; 0 if none. The marker
 * is drawn for each datagram, so that no pod can forge a result. Other datagrams to this port cost
 * a look-up. Invalidates pointers into the packet.
 */
static __always_inline struct selftest *selftest_at(struct __sk_buff *skb, __u32 l4, __be16 dport)
{
	struct selftest *t;
	__u32 zero = 0;
	__be32 *marker;

	if (dport != bpf_htons(SELFTEST_PORT))
		return 0;
	t = bpf_map_lookup_elem(&selftests, &zero);
	if (!t || !t->marker)
		return 0;
	marker = skb_at(skb, l4 + sizeof(struct udp), sizeof(*marker));
	return marker && *marker == t->marker ? t : 0;
}

static __always_inline struct selftest *selftest_of(struct __sk_buff *skb, const struct packet *p)
{
	return p->proto == PROTO_UDP && !p->fragment ? selftest_at(skb, p->l4, p->dport) : 0;
}
