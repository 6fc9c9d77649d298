// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * The uplink. Ingress: overlay and cable packets are checked, then switched (gateway) or translated back and handed
 * to the kernel's vxlan receiver behind pelago0 (edge), which settles GSO and checksum state that the stack must be
 * able to trust. Egress: the guard against overlay packets that are not ours.
 */
#include "count.h"
#include "flow.h"
#include "lb.h"
#include "nat.h"
#include "overlay.h"
#include "path.h"

/* What uplink_in knows of a packet besides its inner tuple. */
struct arrival {
	__u16 node; /* index in the header */
	__u8 flags; /* enum overlay_flag */
	__u8 from_cable;
	__u16 peer_node; /* PEER_NODE: index of the sender */
	__u16 pad;
};

#define OVERLAY_AT (ETH_LEN + sizeof(struct ipv4) + sizeof(struct udp))

static __always_inline int switch_to(struct __sk_buff *skb, const struct node_settings *s, const struct target *to,
				     __u16 node, __u8 flags, enum verdict good)
{
	enum verdict v = turn_outer(skb, s, to, node, flags);

	if (v != VERDICT_SWITCHED)
		return finish(skb, HOOK_UPLINK_IN, v);
	if (!fits(skb, to->hop.ifindex, 0))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_TOO_BIG);
	count(skb, HOOK_UPLINK_IN, good);
	return send_to(skb, s, &to->hop);
}

/* Passes a packet once to another gateway of this cluster, which is to find the node. */
static __always_inline int bounce(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				  const struct arrival *a, enum verdict otherwise)
{
	__u32 zero = 0, gateway;
	struct gateway_set *g = bpf_map_lookup_elem(&gateways, &zero);
	struct target to = {};

	gateway = g && !(a->flags & OVERLAY_BOUNCED) ? pick_gateway(g, flow_hash(p), s->node) : 0;
	if (!to_node(s, gateway, &to))
		return finish(skb, HOOK_UPLINK_IN, otherwise);
	return switch_to(skb, s, &to, 0, a->flags | OVERLAY_BOUNCED | OVERLAY_SWITCH, VERDICT_BOUNCED);
}

#define TCP_FLAGS_WORD 12

/*
 * Answers a TCP segment for which no flow exists with a reset (RFC 9293 3.10.7.1), so that the sender does not wait for
 * its timers. Addresses and ports change places, which leaves every checksum as it is; the payload stays on, which a
 * reset may have. Segments that carry no ACK, and GSO packets, are only dropped: the sender tries again.
 */
static __always_inline int reset(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p)
{
	struct prefix prefix = { .length = 32, .address = p->saddr };
	__u32 check = p->l4 + __builtin_offsetof(struct tcp, check);
	__be32 addresses[2] = { p->daddr, p->saddr }, seq, ack, none = 0;
	__be16 ports[2] = { p->dport, p->sport }, old, new;
	struct target to = {};
	struct route *route;

	if (p->proto != PROTO_TCP || p->fragment || p->error || (p->tcp_flags & TCP_RST) || !(p->tcp_flags & TCP_ACK) ||
	    skb->gso_segs > 1)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_FLOW);
	route = bpf_map_lookup_elem(&routes, &prefix);
	if (!route || find_exit(s, route->cluster, flow_hash(p), &to) != VERDICT_SENT)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_FLOW);
	if (bpf_skb_load_bytes(skb, p->l4 + 4, &seq, 4) || bpf_skb_load_bytes(skb, p->l4 + 8, &ack, 4) ||
	    bpf_skb_load_bytes(skb, p->l4 + TCP_FLAGS_WORD, &old, 2))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	new = (old & bpf_htons(0xf000)) | bpf_htons(TCP_RST);
	if (bpf_skb_store_bytes(skb, p->l3 + IPV4_SADDR, addresses, sizeof(addresses), 0) ||
	    bpf_skb_store_bytes(skb, p->l4, ports, sizeof(ports), 0) || bpf_l4_csum_replace(skb, check, seq, ack, 4) ||
	    bpf_l4_csum_replace(skb, check, ack, none, 4) || bpf_l4_csum_replace(skb, check, old, new, 2) ||
	    bpf_skb_store_bytes(skb, p->l4 + 4, &ack, 4, 0) || bpf_skb_store_bytes(skb, p->l4 + 8, &none, 4, 0) ||
	    bpf_skb_store_bytes(skb, p->l4 + TCP_FLAGS_WORD, &new, 2, 0))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	return switch_to(skb, s, &to, 0, 0, VERDICT_DROP_NO_FLOW);
}

#define SHOWN_PORT_TRIES 16

/*
 * Opens the flow of a remote client to a pod of this node. Two flows may come to show the pod one tuple (two VIPs on
 * one pod port, one client port): the later one is shown under another source port.
 */
__noinline enum verdict open_server_flow(const struct packet *p, const struct flow_key *key, const struct backend *b,
					 __u16 cluster, struct tuple *t)
{
	struct flow primary, answer, *winner;
	struct flow_key answer_key;
	const struct source *local;
	__u64 now = now_ns();
	int err = -1;

	if (!p || !key || !b || !t)
		return VERDICT_DROP_INTERNAL;
	t->saddr = p->saddr;
	t->daddr = b->address;
	t->sport = p->sport;
	t->dport = b->port;
	local = bpf_map_lookup_elem(&sources, &b->address);
	make_flow(&primary, &answer, key, t, FLOW_SERVER, cluster, local ? device_of(local) : DEVICE_ANY, now);
	key_of_other(&answer_key, key, &primary);
	for (int i = 0; i < SHOWN_PORT_TRIES; i++) {
		if (i) {
			t->sport = bpf_htons(1024 + mix(flow_hash(p), i) % (65536 - 1024));
			primary.sport = t->sport;
			answer_key.dport = t->sport;
		}
		err = claim(&answer_key, &answer, now, 1);
		if (err != -EEXIST)
			break;
	}
	if (err)
		return err == -EEXIST ? VERDICT_DROP_TUPLE_CLASH : VERDICT_DROP_FLOWS_FULL;
	if (!insert(key, &primary, now)) {
		take_slot(key, now);
		return VERDICT_DELIVERED;
	}
	bpf_map_delete_elem(&flows, &answer_key);
	winner = find_flow(key);
	if (!winner)
		return VERDICT_DROP_FLOWS_FULL;
	t->daddr = winner->daddr;
	t->sport = winner->sport;
	t->dport = winner->dport;
	return VERDICT_DELIVERED;
}

/* The index of the far node, told by an answer: kept where the next request looks for it. */
static __always_inline void learn_node(const struct flow_key *key, struct flow *f, __u16 node)
{
	struct flow_key primary_key;
	struct flow *primary;

	if (!node || f->role != FLOW_CLIENT || f->node == node)
		return;
	f->node = node;
	key_of_other(&primary_key, key, f);
	primary = find_flow(&primary_key);
	if (primary)
		primary->node = node;
}

/* Hands a translated packet to the kernel's vxlan receiver: our header fields off, this node's cookie in. */
static __always_inline int hand_over(struct __sk_buff *skb, const struct node_settings *s, const struct arrival *a)
{
	struct overlay_header h = {};
	__be16 port = bpf_htons(OVERLAY_PORT);

	h.vxlan_flags = OVERLAY_VNI_FLAG;
	h.type = s->cookie >> 16;
	h.node[0] = s->cookie >> 8;
	h.node[1] = s->cookie;
	if (bpf_skb_store_bytes(skb, OVERLAY_AT, &h, sizeof(h), BPF_F_RECOMPUTE_CSUM))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	if (a->from_cable &&
	    bpf_skb_store_bytes(skb, ETH_LEN + sizeof(struct ipv4) + 2, &port, 2, BPF_F_RECOMPUTE_CSUM))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	return finish(skb, HOOK_UPLINK_IN, VERDICT_DELIVERED);
}

/*
 * A new flow for a service that has no ready backend here, because this node's view and the picking gateway's differ or
 * a sticky index is out of date: it goes once to another node. A gateway picks that itself.
 */
static __always_inline int pass_on(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				   const struct arrival *a, const struct service_key *key,
				   const struct service *service)
{
	struct target to = {};
	__u32 node;

	if (!s->gateway)
		return bounce(skb, s, p, a, VERDICT_DROP_NO_BACKEND);
	node = (a->flags & OVERLAY_BOUNCED) ? 0 : pick_node(key, service, service_hash(service, p, p->saddr), s->node);
	if (!to_node(s, node, &to))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_BACKEND);
	return switch_to(skb, s, &to, 0, (a->flags & ~OVERLAY_SWITCH) | OVERLAY_BOUNCED, VERDICT_BOUNCED);
}

/* The edge on its way in. */
static __always_inline int deliver(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				   const struct arrival *a)
{
	struct prefix prefix = { .length = 32, .address = p->saddr };
	struct flow *f, *other = 0;
	struct backend pod = {};
	struct tuple t = {};
	struct flow_key key;
	struct route *route;
	struct global *g;
	enum verdict v;

	key_of(&key, p, DIRECTION_IN);
	f = find_flow(&key);
	/* A new connection on the tuple of one that is over: the backend of then may no longer be one. */
	if (f && f->role == FLOW_SERVER && reopens(&key, f, p, &other) && remove_flow(&key, f))
		f = 0;
	if (f) {
		touch(f, p, now_ns());
		learn_node(&key, f, a->node);
		t.saddr = f->saddr;
		t.daddr = f->daddr;
		t.sport = f->sport;
		t.dport = f->dport;
		goto translated;
	}
	g = bpf_map_lookup_elem(&globals, &p->daddr);
	if (!g)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NOT_OWN);
	if (!opens_flow(p))
		return reset(skb, s, p);
	route = bpf_map_lookup_elem(&routes, &prefix);
	if (!route)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_SPOOFED_SOURCE);
	if (g->kind == GLOBAL_POD) {
		if (!g->pod)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_BACKEND);
		pod.address = g->pod;
		pod.port = p->dport;
	} else if (g->kind == GLOBAL_SERVICE) {
		struct service_key service_key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &service_key);
		const struct backend *b;

		if (!service)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_SERVICE);
		b = pick_backend(&service_key, service, service_hash(service, p, p->saddr));
		if (!b)
			return pass_on(skb, s, p, a, &service_key, service);
		pod = *b;
	} else {
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_FLOW);
	}
	v = open_server_flow(p, &key, &pod, route->cluster, &t);
	if (v != VERDICT_DELIVERED)
		return finish(skb, HOOK_UPLINK_IN, v);
translated:
	if (rewrite(skb, p, &t, DIRECTION_IN))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	return hand_over(skb, s, a);
}

/* A gateway with a packet for an address of its own cluster: finds the node. */
static __always_inline int switch_in(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				     const struct arrival *a)
{
	struct global *g = bpf_map_lookup_elem(&globals, &p->daddr);
	struct target to = {};
	__u32 node = 0;

	if (!g)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NOT_OWN);
	if (g->kind == GLOBAL_EGRESS) {
		struct block_key key = { .address = p->daddr, .block = bpf_ntohs(p->dport) >> BLOCK_BITS };
		struct block *b = bpf_map_lookup_elem(&blocks, &key);

		if (!b)
			return bounce(skb, s, p, a, VERDICT_DROP_UNKNOWN_BLOCK);
		node = b->node;
	} else if (g->kind == GLOBAL_POD) {
		node = g->node;
	} else if (a->node == s->node || to_node(s, a->node, &to)) {
		node = a->node; /* sticky, and still a node */
	} else {
		struct service_key key = { .address = p->daddr, .port = p->dport, .proto = p->proto };
		struct service *service = bpf_map_lookup_elem(&services, &key);

		if (!service)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_SERVICE);
		node = pick_node(&key, service, service_hash(service, p, p->saddr),
				 (a->flags & OVERLAY_BOUNCED) ? a->peer_node : 0);
		if (!node)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_BACKEND);
	}
	if (node == s->node)
		return deliver(skb, s, p, a);
	if (!to_node(s, node, &to))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_UNKNOWN_NODE);
	return switch_to(skb, s, &to, a->node, a->flags & ~OVERLAY_SWITCH, VERDICT_SWITCHED);
}

/* A gateway with a packet of its own cluster for a remote one. */
static __always_inline int switch_out(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p,
				      const struct arrival *a, __u16 cluster)
{
	struct target to = {};

	/* The sender is a node of ours, but its packet must also come from an address of ours. */
	if (!bpf_map_lookup_elem(&globals, &p->saddr))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_SPOOFED_SOURCE);
	if (!to_cluster(s, cluster, flow_hash(p), &to))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NO_GATEWAY);
	return switch_to(skb, s, &to, a->node, a->flags, VERDICT_SWITCHED);
}

/* Sends a probe back where it came from, with what the sender wants to know. */
static __always_inline int reflect(struct __sk_buff *skb, const struct node_settings *s)
{
	struct {
		struct udp udp;
		struct overlay_header h;
		struct probe probe;
	} *data = packet_at(skb, ETH_LEN + sizeof(struct ipv4), sizeof(*data));
	__be32 addresses[2];
	__be16 port;

	if (!data)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_MALFORMED);
	port = data->udp.source;
	data->udp.source = data->udp.dest;
	data->udp.dest = port;
	data->udp.check = 0;
	data->h.type = PACKET_PROBE_REPLY;
	data->probe.ready = s->ready;
	data->probe.generation = s->generation;
	if (bpf_skb_load_bytes(skb, ETH_LEN + IPV4_SADDR, &addresses[1], 4) ||
	    bpf_skb_load_bytes(skb, ETH_LEN + IPV4_DADDR, &addresses[0], 4) ||
	    bpf_skb_store_bytes(skb, ETH_LEN + IPV4_SADDR, addresses, sizeof(addresses), 0))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_INTERNAL);
	skb->mark = s->cookie;
	count(skb, HOOK_UPLINK_IN, VERDICT_PROBE);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* Takes the answer to the outstanding probe; any other is dropped, so a forged or late one proves nothing. */
static __always_inline int probe_answer(struct __sk_buff *skb, __be32 peer)
{
	struct path *path = bpf_map_lookup_elem(&paths, &peer);
	struct probe probe;
	__u64 now = bpf_ktime_get_ns();

	if (bpf_skb_load_bytes(skb, OVERLAY_AT + sizeof(struct overlay_header), &probe, sizeof(probe)))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_MALFORMED);
	if (!path || !probe.nonce || path->nonce != probe.nonce || path->sent > now)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_BAD_TOKEN);
	path->nonce = 0;
	path->seen = now;
	path->rtt = now - path->sent;
	path->replies++;
	path->ready = probe.ready;
	path->generation = probe.generation;
	count(skb, HOOK_UPLINK_IN, VERDICT_PROBE);
	return ACTION_DROP;
}

SEC("tc")
int uplink_in(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct overlay_header h;
	struct arrival a = {};
	struct packet p = {};
	struct route *route;
	struct peer *peer;
	__be32 outer_source;
	enum verdict v;
	struct ipv4 *ip;
	struct udp *udp;
	__u32 token;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	ip = packet_at(skb, ETH_LEN, sizeof(*ip) + sizeof(*udp));
	if (!ip || ip->version_ihl != 0x45 || ip->proto != PROTO_UDP || ip->daddr != s->address ||
	    (ip->frag & bpf_htons(IP_MF | IP_OFFSET)))
		return ACTION_NEXT;
	udp = (void *)(ip + 1);
	if (udp->dest != bpf_htons(OVERLAY_PORT)) {
		if (!s->cable_port || udp->dest != s->cable_port)
			return ACTION_NEXT;
		a.from_cable = 1;
	}
	outer_source = ip->saddr;
	peer = bpf_map_lookup_elem(&peers, &outer_source);
	if (!peer || peer->kind != (a.from_cable ? PEER_GATEWAY : PEER_NODE))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_UNKNOWN_PEER);
	if (bpf_skb_load_bytes(skb, OVERLAY_AT, &h, sizeof(h)))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_MALFORMED);
	if (h.vxlan_flags != OVERLAY_VNI_FLAG || h.version_flags >> 4 != OVERLAY_VERSION)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_BAD_VERSION);
	token = header_token(&h);
	if (a.from_cable ? token != s->cable_token && (!s->cable_token_old || token != s->cable_token_old) :
			   token != s->overlay_token && (!s->overlay_token_old || token != s->overlay_token_old))
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_BAD_TOKEN);
	/* A gateway that would reflect probes without complete tables would draw packets that it cannot switch. */
	if (!s->ready)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NOT_READY);
	if (h.type == PACKET_PROBE)
		return reflect(skb, s);
	if (h.type == PACKET_PROBE_REPLY)
		return probe_answer(skb, outer_source);
	if (h.type != PACKET_FORWARD)
		return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_BAD_TYPE);
	a.node = header_node(&h);
	a.flags = h.version_flags & 0x0f;
	a.peer_node = peer->node;
	v = parse_ipv4(skb, OUTER_LEN, &p);
	if (v != VERDICT_SENT)
		return finish(skb, HOOK_UPLINK_IN, v);
	if (p.fragment) {
		__be16 ports[2];

		if (!(a.flags & OVERLAY_FRAGMENT) ||
		    bpf_skb_load_bytes(skb, OUTER_LEN - sizeof(struct eth) + 8, ports, sizeof(ports)))
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_FRAGMENT);
		p.sport = ports[0];
		p.dport = ports[1];
	}
	if (a.from_cable) {
		struct prefix source = { .length = 32, .address = p.saddr };

		if (!s->gateway)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_NOT_GATEWAY);
		route = bpf_map_lookup_elem(&routes, &source);
		if (!route || route->cluster != peer->cluster)
			return finish(skb, HOOK_UPLINK_IN, VERDICT_DROP_SPOOFED_SOURCE);
		return switch_in(skb, s, &p, &a);
	}
	if (s->gateway) {
		struct prefix destination = { .length = 32, .address = p.daddr };

		if (a.flags & OVERLAY_SWITCH)
			return switch_in(skb, s, &p, &a);
		route = bpf_map_lookup_elem(&routes, &destination);
		if (route)
			return switch_out(skb, s, &p, &a, route->cluster);
	}
	return deliver(skb, s, &p, &a);
}

/*
 * The guard: an overlay or cable packet leaves this node only if one of our programs, or the daemon's prober, marked it.
 * Without it any pod could send to a node's overlay port, and CNI masquerading would lend it the node's address.
 */
SEC("tc")
int uplink_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct ipv4 *ip;
	struct udp *udp;
	__be32 to;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	if (skb->mark == s->cookie) {
		skb->mark = 0; /* nobody else is to see it */
		return ACTION_NEXT;
	}
	ip = packet_at(skb, ETH_LEN, sizeof(*ip) + sizeof(*udp));
	if (!ip || ip->proto != PROTO_UDP || (ip->frag & bpf_htons(IP_OFFSET)))
		return ACTION_NEXT;
	/* With IP options the ports lie elsewhere; no receiver of ours takes such packets. */
	if (ip->version_ihl != 0x45)
		return ACTION_NEXT;
	udp = (void *)(ip + 1);
	if (udp->dest != bpf_htons(OVERLAY_PORT) && (!s->cable_port || udp->dest != s->cable_port))
		return ACTION_NEXT;
	to = ip->daddr;
	if (!bpf_map_lookup_elem(&peers, &to))
		return ACTION_NEXT;
	return finish(skb, HOOK_UPLINK_OUT, VERDICT_DROP_INJECTED);
}
