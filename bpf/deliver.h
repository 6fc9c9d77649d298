/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Delivery to a pod of this node, from the overlay or, on a gateway, the cable. */
#pragma once
#include "rx.h"
#include "answer.h"
#include "bypass.h"
#include "flow.h"
#include "mapping.h"
#include "nat.h"

/*
 * Reports whether the service behind a global address with GLOBAL_RESTRICTED is exported to the
 * cluster of a client.
 */
__noinline __u32 exported_to(__be32 service, __be32 client)
{
	const struct audience *audience = bpf_map_lookup_elem(&audiences, &service);
	const struct route *route = route_lookup(client);

	return audience && route && has_bit(audience->clusters, route->cluster);
}

/*
 * Reports whether a packet is answered that a service refuses. A service that is not exported to
 * the sender's cluster stays silent, whatever its ports; so does an address of another kind, whose
 * tables may just change. Each cluster has a rate of its own.
 */
static __always_inline int may_refuse(struct __sk_buff *skb, const struct packet *p, enum verdict v, __u64 now,
				      __u32 cluster)
{
	struct global *g = bpf_map_lookup_elem(&globals2, &p->daddr);
	__u64 *full = bpf_map_lookup_elem(&refusals, &cluster);

	return g && g->kind == GLOBAL_SERVICE && full && is_answered(skb, p, v) &&
	       (!(g->flags & GLOBAL_RESTRICTED) || exported_to(p->daddr, p->saddr)) &&
	       bucket_take(full, now, answer_interval, answer_burst);
}

/* Gives the outer headers, which keep all else, the length of the frame. */
static __always_inline int resize_outer(struct __sk_buff *skb, enum hook hook)
{
	struct ipv4 *ip = ctx_at(skb, hook, ETH_LEN, sizeof(*ip) + sizeof(struct udp));
	struct udp *udp = (void *)(ip + 1);
	__u32 frame = skb->len;
	__be16 len = bpf_htons(frame - ETH_LEN);

	if (!ip)
		return -1;
	ip->check = ~csum_fold((__u16)~ip->check + (__u16)~ip->len + (__u32)len);
	ip->len = len;
	udp->len = bpf_htons(frame - ETH_LEN - sizeof(*ip));
	return 0;
}

/*
 * Turns a packet from the overlay or a cable that is dropped into its answer, which takes the way
 * of a pod's answers: a TCP segment without a flow gets a reset, a packet that a service refuses a
 * reset or a port unreachable. VERDICT_CONTINUE: it is complete but for its MAC addresses, and
 * fwd->to is where it goes. The hook is always one of tc: only the caller knows which.
 */
static __noinline enum verdict answer_sender(struct __sk_buff *skb, const struct packet *p, struct fwd *fwd,
					     enum verdict v)
{
	const struct node_settings *s = get_settings();
	const struct route *route;
	__u64 now = now_ns();

	if (!p || !fwd || !s)
		return VERDICT_DROP_INTERNAL;
	if (v == VERDICT_DROP_NO_FLOW ? !tcp_is_answered(skb, p) || !(p->tcp_flags & TCP_ACK) : !verdict_refuses(v))
		return v;
	route = route_lookup(p->saddr);
	if (!route || (v != VERDICT_DROP_NO_FLOW && !may_refuse(skb, p, v, now, route->cluster)) ||
	    encap_find_exit(s, route->cluster, flow_hash(p), now, &fwd->to) != VERDICT_CONTINUE ||
	    make_answer(skb, p, v))
		return v;
	if (p->proto == PROTO_UDP && resize_outer(skb, HOOK_UPLINK_IN))
		return VERDICT_DROP_INTERNAL;
	v = encap_turn(skb, HOOK_UPLINK_IN, &fwd->to, 0, route->cluster == s->cluster ? OVERLAY_SWITCH : 0);
	if (v != VERDICT_CONTINUE)
		return v;
	return encap_fits(skb, HOOK_UPLINK_IN, &fwd->to, 0) ? VERDICT_CONTINUE : VERDICT_DROP_TOO_BIG;
}

/* Drops a packet from the overlay or a cable, and sends the answer if there is one. */
static __always_inline int drop_answered(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
					 const struct rx *rx, struct fwd *fwd, enum verdict v)
{
	enum verdict failed = answer_sender(skb, p, fwd, v);

	if (failed != VERDICT_CONTINUE)
		return finish(skb, rx->hook, failed);
	count_verdict(skb, rx->hook, v);
	return encap_send(skb, s, &fwd->to);
}

#define SHOWN_PORT_TRIES 16

/*
 * The device of the pod, node or host outside the cluster with an address. Not inlined, to keep its
 * variables off the stack frame of flow_open_server().
 */
static __noinline __u32 device_at(__be32 address)
{
	const struct source *local = source_lookup(address);

	return local ? device_of(local) : DEVICE_ANY;
}

/*
 * Opens the flow of a remote client to a pod of this node. If the pod already sees another flow
 * with the same tuple (two VIPs on one pod port, one client port), the new one gets another source
 * port.
 */
__noinline enum verdict flow_open_server(const struct packet *p, const struct flow_key *of, const struct backend *b,
					 __u16 cluster, struct tuple *t)
{
	struct flow_key answer_key __attribute__((aligned(8))); /* before, a struct usage_scratch */
	struct flow_key key;
	struct flow f, *winner;
	__u64 now = now_ns();
	int err = -1;

	if (!p || !of || !b || !t)
		return VERDICT_DROP_INTERNAL;
	key = *of;
	if (!usage_permits(cluster, usage_count(&key, cluster, (void *)&answer_key), now, (void *)&answer_key))
		return VERDICT_DROP_QUOTA;
	flow_make_answer(&f, &key, FLOW_SERVER, cluster, device_at(b->address), now);
	t->saddr = p->saddr;
	t->daddr = b->address;
	t->sport = p->sport;
	t->dport = b->port;
	flow_key_answer(&answer_key, &key, t);
	for (int i = 0; i < SHOWN_PORT_TRIES; i++) {
		if (i) {
			t->sport = bpf_htons(1024 + hash_mix(flow_hash(p), i) % (65536 - 1024));
			answer_key.dport = t->sport;
		}
		err = flow_claim(&answer_key, &f, now, 1);
		if (err != -EEXIST || p->proto == PROTO_SCTP)
			break;
	}
	if (err)
		return flow_failed(err, VERDICT_DROP_TUPLE_CLASH);
	flow_make_primary(&f, t);
	err = flow_claim(&key, &f, now, 0);
	if (!err) {
		usage_add(&key, cluster, 1, (void *)&answer_key);
		flow_take_slot(&key, now);
		return VERDICT_CONTINUE;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = flow_find(&key);
	if (!winner)
		return flow_failed(err, VERDICT_DROP_TUPLE_CLASH);
	t->daddr = winner->daddr;
	t->sport = winner->sport;
	t->dport = winner->dport;
	return VERDICT_CONTINUE;
}

/*
 * Reports whether an answer from a node other than the stored one moves the flow to that node. A
 * retransmitted SYN may have opened the connection on a second node, whose SYN-ACK comes late; and
 * the node of the previous connection on the tuple may still send. So TCP stays with the node whose
 * SYN-ACK the client has acknowledged; until then with the first one, unless the client has reset
 * it or left it unanswered for a second. A node that is gone needs no move: a gateway picks another
 * one, which resets a connection that it does not know. f: the answer entry.
 */
static __always_inline int flow_moves(const struct flow *f, const struct flow *primary, const struct packet *p,
				      __u64 now)
{
	if (p->proto != PROTO_TCP)
		return 1;
	if (primary->tcp & TCP_SEEN_ACK)
		return !f->node;
	if ((p->tcp_flags & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK))
		return 0;
	return !f->node || (primary->tcp & TCP_SEEN_RST) || now > f->seen + SECOND;
}

/*
 * Stores the index of the far node, learnt from an answer, in the primary entry for the next
 * request.
 */
static __always_inline void flow_learn_node(const struct flow_key *key, struct flow *f, const struct packet *p,
					    __u16 node, __u64 now)
{
	struct flow_key primary_key;
	struct flow *primary;

	if (!node || f->role != FLOW_CLIENT || f->node == node)
		return;
	flow_key_other(&primary_key, key, f);
	primary = flow_find(&primary_key);
	if (!primary || !flow_moves(f, primary, p, now))
		return;
	f->node = node;
	primary->node = node;
}

/*
 * Decapsulates a non-GSO packet, or one over 64 KiB, and injects it into pelago0. The mark proves
 * to edge_in that it was validated: nothing runs in between, and a veth pair clears the mark of a
 * pod's packets. Redirection clears skb->priority. The checksum state is kept, minus the level that
 * a device may have verified for the outer UDP header; the outer ECN field is merged into the inner
 * one (RFC 6040 section 4.2, normal mode). pod: the device of the pod if the packet bypasses the
 * stack, else 0.
 */
static __always_inline int deliver_direct(struct __sk_buff *skb, const struct node_settings *s, const struct rx *rx,
					  const struct endpoint *pod)
{
	struct eth *eth;
	struct ipv4 *outer = ctx_at(skb, rx->hook, ETH_LEN, sizeof(*outer));
	int congested = outer && (outer->tos & ECN_MASK) == ECN_CE;

	if (bpf_skb_adjust_room(skb, -ENCAP_LEN, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_NO_CSUM_RESET | BPF_F_ADJ_ROOM_FIXED_GSO))
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	bpf_csum_level(skb, BPF_CSUM_LEVEL_DEC); /* fails unless the checksum is one that a device verified */
	if (congested && !bpf_skb_ecn_set_ce(skb))
		return finish(skb, rx->hook, VERDICT_DROP_MALFORMED);
	if (pod) {
		count_verdict(skb, rx->hook, VERDICT_DELIVERED);
		return deliver_to_pod(skb, rx->hook, pod);
	}
	eth = ctx_at(skb, rx->hook, 0, sizeof(*eth));
	if (!eth)
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	__builtin_memcpy(eth->dst, pelago_mac, sizeof(eth->dst));
	eth->proto = bpf_htons(ETH_P_IP);
	skb->mark = s->cookie;
	count_verdict(skb, rx->hook, VERDICT_DELIVERED);
	return bpf_redirect(s->edge, BPF_F_INGRESS);
}

/* What hand_over() writes over the overlay header and the inner Ethernet header. */
struct handed_over {
	struct overlay_header overlay;
	struct eth eth;
};
ASSERT_SIZE(struct handed_over, 22);

/*
 * Hands a translated GSO packet to the kernel's vxlan receiver, which settles its GSO state
 * (bpf_skb_adjust_room() leaves the tunnel's GSO type), with the proof that edge_in checks: the low
 * 24 bits of the cookie as VNI, and another secret as skb->priority. A veth pair clears that field,
 * so no pod can set it; it survives the local socket and the receiver, and no CNI uses it there.
 * skb->mark does not qualify: Calico and kube-proxy clear and match bits of it on the way, and
 * policy routing selects by it. The secret is in the source MAC address as well, since GRO after
 * the receiver does not compare priorities: it keeps packets with and without the proof apart.
 * source: the inner source. A hairpinned packet gets it as outer source, too: with the node's own
 * address there, the reverse path filter of pelago0 would drop it. note:
 * BYPASS_ALLOWED, GSO_PROBE or 0.
 */
static __always_inline int hand_over(struct __sk_buff *skb, const struct node_settings *s, const struct rx *rx,
				     __be32 source, __u8 note, enum verdict good)
{
	__be16 port = bpf_htons(OVERLAY_PORT);
	struct handed_over h = {};

	h.overlay.vxlan_flags = OVERLAY_VNI_FLAG;
	h.overlay.type = s->cookie >> 16;
	h.overlay.node[0] = s->cookie >> 8;
	h.overlay.node[1] = s->cookie;
	__builtin_memcpy(h.eth.dst, pelago_mac, sizeof(h.eth.dst));
	h.eth.src[0] = 0x02;
	h.eth.src[1] = note;
	__builtin_memcpy(&h.eth.src[2], &s->probe_mark, sizeof(s->probe_mark));
	h.eth.proto = bpf_htons(ETH_P_IP);
	if (bpf_skb_store_bytes(skb, OVERLAY_AT, &h, sizeof(h), BPF_F_RECOMPUTE_CSUM))
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	if (rx->from_cable &&
	    bpf_skb_store_bytes(skb, ETH_LEN + sizeof(struct ipv4) + 2, &port, 2, BPF_F_RECOMPUTE_CSUM))
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	if (rx->hook == HOOK_HAIRPIN &&
	    (bpf_l3_csum_replace(skb, ETH_LEN + IPV4_CHECK, s->address, source, sizeof(source)) ||
	     bpf_skb_store_bytes(skb, ETH_LEN + IPV4_SADDR, &source, sizeof(source), 0)))
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	skb->priority = s->probe_mark;
	return finish(skb, rx->hook, good);
}

/*
 * Hands a GSO probe over as a GSO packet of the peer. It was redirected to the uplink's ingress
 * without its MAC addresses, so the kernel has marked it PACKET_OTHERHOST.
 */
static __always_inline int gso_probe_hand_over(struct __sk_buff *skb, const struct node_settings *s,
					       const struct rx *rx, __be32 peer)
{
	struct large_probe *large = large_probe_to(peer);

	if (!large)
		return finish(skb, rx->hook, VERDICT_DROP_UNKNOWN_PEER);
	large->gso_handed++;
	skb->mark = 0;
	bpf_skb_change_type(skb, PACKET_HOST);
	return hand_over(skb, s, rx, peer, GSO_PROBE, VERDICT_PROBE);
}

/*
 * Bounces a new flow to another node, once, if its service has no ready backend here: this node and
 * the gateway that picked it disagree, or a sticky node index is stale. A gateway picks the node
 * itself.
 */
static __always_inline enum verdict deliver_elsewhere(const struct node_settings *s, const struct packet *p,
						      const struct rx *rx, const struct service_key *key,
						      const struct service *service, struct fwd *fwd)
{
	__u32 node = 0;

	if (!s->gateway)
		return fwd_bounce(s, p, rx, VERDICT_DROP_NO_BACKEND, fwd);
	if (!(rx->flags & OVERLAY_BOUNCED))
		node = lb_pick_live_node(p, rx->client, s->node, rx->now) ?:
			       lb_pick_node(key, service, service_hash(service, p, rx->client), s->node);
	if (!encap_to_node(s, node, &fwd->to))
		return VERDICT_DROP_NO_BACKEND;
	fwd->node = 0;
	fwd->flags = (rx->flags & ~OVERLAY_SWITCH) | OVERLAY_BOUNCED;
	return VERDICT_BOUNCED;
}

/*
 * The device of the pod if the packet may bypass the stack on its way there, else 0. f: its flow
 * entry, 0 if it is new.
 */
static __always_inline struct endpoint *bypass_in(struct __sk_buff *skb, const struct packet *p, const struct rx *rx,
						  struct flow *f, __be32 address)
{
	struct endpoint *pod = bpf_map_lookup_elem(&endpoints, &address);
	__u32 mtu = 0, len;
	struct ipv4 *ip;

	if (!pod || pod->datapath == DATAPATH_STRICT)
		return 0;
	ip = ctx_at(skb, rx->hook, OUTER_LEN, sizeof(*ip));
	if (!ip || !may_bypass(p, ip, pod->datapath))
		return 0;
	/* Redirection to a peer checks no MTU. */
	len = segment_len(skb, rx->hook, p);
	if (len > MTU_AT_LEAST && (bpf_check_mtu(skb, pod->ifindex, &mtu, 0, 0) < 0 || len > mtu))
		return 0;
	if (pod->datapath == DATAPATH_HYBRID && (!f || !passed_fresh(f, now_ns())))
		return 0;
	return pod;
}

#define SERVER_CHECK (SECOND / 2)

/*
 * Reports whether a UDP flow of a remote client goes to a backend that is no longer one, or to an
 * address that is no longer exported. UDP has no end of a connection, so such a flow would last as
 * long as its client sends. Checked every half second, on packets that may open it again; one that
 * passes is refreshed. of, f: its primary entry.
 */
__noinline int server_ended(const struct flow_key *of, struct flow *f, const struct packet *p)
{
	struct vip_pod_key key = {};
	__u64 now = now_ns();
	const struct global *g;
	const __be16 *port;
	int ended;

	if (!of || !f || !p || p->proto != PROTO_UDP || f->role != FLOW_SERVER || now - f->seen <= SERVER_CHECK ||
	    !packet_opens_flow(p))
		return 0;
	key.vip.address = of->daddr;
	key.vip.port = of->dport;
	key.vip.proto = of->proto;
	key.pod = f->daddr;
	g = bpf_map_lookup_elem(&globals2, &key.vip.address);
	if (!g) {
		ended = !external_routed(key.vip.address);
	} else if (g->kind != GLOBAL_SERVICE) {
		ended = g->pod && g->pod != key.pod;
	} else {
		port = bpf_map_lookup_elem(&vip_pods, &key);
		ended = !port || (*port && *port != f->dport);
	}
	if (!ended)
		f->seen = now;
	return ended;
}

/*
 * Translates a packet and delivers it to a pod of this node. *fwd is the decision for what is
 * bounced or answered.
 */
static __always_inline int deliver(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				   const struct rx *rx, struct fwd *fwd)
{
	struct flow *f, *other = 0;
	struct endpoint *to;
	struct backend pod = {};
	struct tuple t = {};
	struct flow_key key;
	const struct route *route;
	struct global *g;
	enum verdict v;

	flow_key_of(&key, p, DIRECTION_IN);
	f = flow_find(&key);
	/* A new connection on the tuple of a closed one: the old backend may no longer be one. */
	if (f && f->role == FLOW_SERVER && (flow_reopens(&key, f, p, &other) || server_ended(&key, f, p)) &&
	    flow_evict(&key))
		f = 0;
	if (f) {
		__u64 now = now_ns();

		if (!p->error) /* one proves no node that has the flow */
			flow_learn_node(&key, f, p, rx->node, now);
		flow_touch(f, p, now); /* afterwards: it sets `seen` */
		t.saddr = f->saddr;
		t.daddr = f->daddr;
		t.sport = f->sport;
		t.dport = f->dport;
		goto translated;
	}
	g = bpf_map_lookup_elem(&globals2, &p->daddr);
	if (!g && !external_routed(p->daddr))
		return finish(skb, rx->hook, VERDICT_DROP_NOT_OWN);
	/*
	 * A gateway has proven of which cluster the source is. Flows that exist are removed when a
	 * cluster loses the service.
	 */
	if (g && (g->flags & GLOBAL_RESTRICTED) && !exported_to(p->daddr, p->saddr))
		return finish(skb, rx->hook, VERDICT_DROP_NOT_EXPORTED);
	if (g && g->kind == GLOBAL_EGRESS && mapping_in(p, &t))
		goto translated;
	if (!packet_opens_flow(p))
		return drop_answered(skb, s, p, rx, fwd, VERDICT_DROP_NO_FLOW);
	route = route_lookup(p->saddr);
	if (!route)
		return finish(skb, rx->hook, VERDICT_DROP_SPOOFED_SOURCE);
	if (!g || g->kind == GLOBAL_POD || g->kind == GLOBAL_EXTERNAL) {
		pod.address = g ? g->pod : p->daddr;
		if (!pod.address)
			return finish(skb, rx->hook, VERDICT_DROP_NO_BACKEND);
		pod.port = p->dport;
	} else if (g->kind == GLOBAL_SERVICE) {
		struct service_key service_key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &service_key);
		const struct backend *b;

		if (!service)
			return drop_answered(skb, s, p, rx, fwd, VERDICT_DROP_NO_SERVICE);
		b = lb_pick_backend(&service_key, service, p, rx->client, rx->now);
		if (!b) {
			v = deliver_elsewhere(s, p, rx, &service_key, service, fwd);
			return v == VERDICT_BOUNCED ? fwd_send(skb, s, rx, fwd, v) :
						      drop_answered(skb, s, p, rx, fwd, v);
		}
		pod = *b;
	} else {
		return finish(skb, rx->hook, VERDICT_DROP_NO_FLOW);
	}
	if (p->proto == PROTO_SCTP && pod.port != p->dport)
		return finish(skb, rx->hook, VERDICT_DROP_PROTOCOL);
	v = flow_open_server(p, &key, &pod, route->cluster, &t);
	if (v != VERDICT_CONTINUE)
		return finish(skb, rx->hook, v);
translated:
	to = bypass_in(skb, p, rx, f, t.daddr);
	if (rewrite(skb, p, &t, DIRECTION_IN))
		return finish(skb, rx->hook, VERDICT_DROP_INTERNAL);
	/*
	 * Not gso_segs, which encap_push() has cleared in what is hairpinned. The kernel's UDP
	 * receiver would drop a GSO packet over 64 KiB, whose UDP length is 0; in one from a
	 * device that does not segment, the tunnel's GSO type stays.
	 */
	return skb->gso_size && skb->len - ETH_LEN <= IPV4_MAX ?
		       hand_over(skb, s, rx, t.saddr, to ? BYPASS_ALLOWED : 0, VERDICT_DELIVERED) :
		       deliver_direct(skb, s, rx, to);
}

/* Forwards or delivers a validated packet. */
static __always_inline int rx_packet(struct __sk_buff *skb, const struct node_settings *s, struct rx *rx)
{
	struct fwd fwd = {};
	struct packet p = {};
	enum verdict v;

	v = parse_skb(skb, OUTER_LEN, &p);
	if (v != VERDICT_CONTINUE)
		return finish(skb, rx->hook, v);
	if (p.fragment) {
		__be16 ports[2];

		if (!(rx->flags & OVERLAY_FRAGMENT) ||
		    bpf_skb_load_bytes(skb, OUTER_LEN - sizeof(struct eth) + 8, ports, sizeof(ports)))
			return finish(skb, rx->hook, VERDICT_DROP_FRAGMENT);
		p.sport = ports[0];
		p.dport = ports[1];
	}
	rx->client = encap_read_client(skb, rx->hook);
	v = fwd_decide(s, &p, rx, &fwd);
	if (v == VERDICT_DELIVERED)
		return deliver(skb, s, &p, rx, &fwd);
	if (v == VERDICT_SWITCHED || v == VERDICT_BOUNCED)
		return fwd_send(skb, s, rx, &fwd, v);
	return drop_answered(skb, s, &p, rx, &fwd, v);
}
