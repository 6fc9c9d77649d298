/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes: sending, reflecting, receiving replies. A probe starts as a frame with the probe mark on
 * egress of pelago0 whose IPv4 destination is the outer address of the peer: from the daemon's
 * prober, or a clone of a packet when the prober is late or dead. So failover needs no user space.
 */
#pragma once
#include "ctx.h"
#include "encap.h"

/* The mark of a clone. A clone carries no next-probe interval. */
static __always_inline __u32 probe_clone_mark(const struct node_settings *s)
{
	return s->probe_mark ^ 1;
}

/* `used` of a path is written at most this often. */
#define USED_GRAIN (100 * MILLISECOND)

/* Records that a packet takes the path. */
static __always_inline void path_use(struct path_line *l, __be32 address, __u64 now)
{
	struct path *p;

	if (now - l->used <= USED_GRAIN)
		return;
	l->used = now;
	p = path_lookup(address);
	if (p)
		p->used = now;
}

/*
 * Records that a packet takes the path, named by its outer headers, and sends an overdue probe with
 * it. Invalidates packet pointers and skb->mark, which the callers set afterwards.
 */
static __always_inline void path_take(struct __sk_buff *skb, const struct node_settings *s, const struct encap *to,
				      __u64 now)
{
	struct path_line *l = path_line_lookup(to->slot);

	if (!l || (!path_line_fresh(l, to->hop.address, now) && !path_line_load(to->slot, to->hop.address, now)))
		return;
	path_use(l, to->hop.address, now);
	if (skb->gso_size || now < path_clone_at(l, skb->len))
		return;
	skb->mark = probe_clone_mark(s);
	bpf_clone_redirect(skb, s->edge, 0);
}

/* The encapsulation of probes to a peer. Returns 0 if none exists. */
static __always_inline int probe_encap(const struct node_settings *s, __be32 address, __u32 hash, struct encap *to)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &address);
	struct cluster *c;
	__u32 index;

	if (!peer)
		return 0;
	if (peer->kind == PEER_NODE)
		return encap_to_node(s, peer->node, to);
	index = peer->cluster;
	c = bpf_map_lookup_elem(&clusters, &index);
	if (!c)
		return 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= c->count)
			break;
		if (c->gateways[i].hop.address == address)
			return encap_to_remote(s, index, &c->gateways[i], hash, to);
	}
	return 0;
}

#define PROBE_ID (OUTER_LEN - sizeof(struct eth))
_Static_assert(PROBE_BODY == OUTER_LEN, "the body has the place of the inner packet");

/*
 * Makes a nonce that an off-path attacker cannot predict. It is not a secret: bpf_get_prandom_u32
 * is no cryptographic generator; the token is the secret. The first half is never 0.
 */
static __always_inline void make_nonce(__u32 *nonce)
{
	nonce[0] = bpf_get_prandom_u32() | 1;
	nonce[1] = bpf_get_prandom_u32();
}

/* Takes the next slot of the ring. A probe that still occupies it counts as lost. */
static __always_inline void probe_next_slot(struct path *path, struct probe_id *id)
{
	__u32 sequence = __sync_fetch_and_add(&path->sequence, 1) + 1;
	struct probe_slot *slot = &path->ring[sequence % PROBE_RING];
	__u64 now = bpf_ktime_get_ns();

	path_note_loss(path, sequence > PROBE_RING && slot->nonce[0] ? 65536 : 0, now);
	path->probes++;
	make_nonce(id->nonce);
	id->sequence = sequence;
	slot->nonce[0] = id->nonce[0];
	slot->nonce[1] = id->nonce[1];
	slot->sent = now;
}

static __always_inline struct large_probe *large_probe_to(__be32 address)
{
	return bpf_map_lookup_elem(&large_probes, &address);
}

/*
 * Turns a frame as long as a packet into a large probe: it grows by the overlay header, as that
 * packet would. Its first word after the Ethernet header is the next-probe interval, which ends up
 * at the start of the body. *o and *id are the caller's, to save stack.
 */
static __always_inline int probe_make_large(struct __sk_buff *skb, const struct encap *to, __u8 flags, struct outer *o,
					    struct probe_id *id)
{
	struct large_probe *large = large_probe_to(to->hop.address);
	__u32 size = skb->len - ETH_LEN;

	if (!large)
		return -1;
	make_nonce(id->nonce);
	id->sequence = size;
	large->nonce[0] = id->nonce[0];
	large->nonce[1] = id->nonce[1];
	large->sent = bpf_ktime_get_ns();
	large->size = size;
	if (bpf_skb_adjust_room(skb, ENCAP_LEN, BPF_ADJ_ROOM_MAC, 0))
		return -1;
	encap_make_outer(o, to, size + ENCAP_LEN, 0, to->port);
	overlay_set(&o->overlay, to->token, PACKET_PROBE, 0, flags | PROBE_LARGE);
	return bpf_skb_store_bytes(skb, 0, o, PROBE_ID, 0) || bpf_skb_store_bytes(skb, PROBE_ID, id, sizeof(*id), 0);
}

/*
 * Sends a GSO probe, which never leaves the node: a TCP packet of two segments from the daemon is
 * encapsulated as if the peer named by its IPv4 destination had sent it, and redirected to the
 * ingress of the uplink that leads there. So it takes the way of a burst that GRO has merged:
 * through the node's firewall, since only the kernel's vxlan receiver can decapsulate it
 * (hand_over() in deliver.h). Small packets do not take that way, so probes of paths do not see
 * whether it is open. Not for encrypted wires, and not for
 * uplinks without an Ethernet header.
 */
static __noinline int gso_probe_send(struct __sk_buff *skb, const struct node_settings *s)
{
	__u32 type_at =
		ETH_LEN + sizeof(struct ipv4) + sizeof(struct udp) + __builtin_offsetof(struct overlay_header, type);
	struct packet p = {};
	struct encap to = {};
	__u8 type = PACKET_PROBE;
	__be32 address;

	if (!s || bpf_skb_load_bytes(skb, ETH_LEN + IPV4_DADDR, &address, sizeof(address)))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_MALFORMED);
	if (!large_probe_to(address) || !probe_encap(s, address, 0, &to))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_UNKNOWN_PEER);
	if (to.wire || !to.hop.ifindex || !to.hop.next)
		return ACTION_DROP;
	if (to.port != bpf_htons(OVERLAY_PORT))
		to.port = bpf_htons(s->cable_port);
	to.hop.address = to.source;
	to.source = address;
	if (encap_push(skb, &p, &to, 0, 0, 0, 0) || bpf_skb_store_bytes(skb, type_at, &type, sizeof(type), 0))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	count_verdict(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
	skb->mark = s->probe_mark;
	return bpf_redirect(to.hop.ifindex, BPF_F_INGRESS);
}

/*
 * Turns a frame on egress of pelago0 into a probe. The prober's frame has its final length and body
 * and becomes a full probe, a longer one a large probe. A clone becomes a short probe: it has outer
 * headers already and gets source port, type, flags and number. It keeps its length, since the
 * kernel cannot shorten encapsulated packets.
 */
static __noinline int probe_send(struct __sk_buff *skb, const struct node_settings *s)
{
	int is_short = s && skb->mark == probe_clone_mark(s);
	struct probe_id id;
	struct encap to = {};
	struct outer o = {};
	struct path *path;
	__be32 address;
	__u8 flags;

	if (!s || bpf_skb_load_bytes(skb, ETH_LEN + IPV4_DADDR, &address, sizeof(address)))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_MALFORMED);
	path = path_lookup(address);
	if (!path || (!path->probed && !is_short) || !probe_encap(s, address, path->sequence, &to))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_UNKNOWN_PEER);
	flags = now_ns() > path_suspect_at(path) ? PROBE_NO_REPLY : 0;
	if (!is_short && skb->len > PROBE_FRAME) {
		if (probe_make_large(skb, &to, flags, &o, &id))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
		count_verdict(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
		return encap_send_from_stack(skb, s, &to);
	}
	if (is_short) {
		overlay_set(&o.overlay, to.token, PACKET_PROBE, 0, flags | PROBE_SHORT);
		/* The reply goes to the source port. */
		if (bpf_skb_store_bytes(skb, PROBE_ID - sizeof(o.overlay), &o.overlay, sizeof(o.overlay), 0) ||
		    bpf_skb_store_bytes(skb, ETH_LEN + sizeof(struct ipv4), &to.port, sizeof(to.port), 0))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	} else {
		if (skb->len != PROBE_FRAME && skb->len != PROBE_FRAME_OLD)
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_MALFORMED);
		encap_make_outer(&o, &to, skb->len - ETH_LEN, 0, to.port);
		overlay_set(&o.overlay, to.token, PACKET_PROBE, 0, flags);
		if (bpf_skb_store_bytes(skb, 0, &o, PROBE_ID, 0))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	}
	probe_next_slot(path, &id);
	path_line_load(to.slot, address, now_ns());
	if (bpf_skb_store_bytes(skb, PROBE_ID, &id, sizeof(id), 0))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	count_verdict(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
	return encap_send_from_stack(skb, s, &to);
}

struct probe_headers {
	struct ipv4 ip;
	struct udp udp;
	struct overlay_header overlay;
};

/* Fills the body of a reply. */
static __always_inline int probe_fill_reply(void *ctx, enum hook hook, const struct node_settings *s, struct path *path)
{
	struct probe *body = ctx_at(ctx, hook, PROBE_BODY, sizeof(*body));
	__u32 zero = 0;
	struct advertised *own = bpf_map_lookup_elem(&standings, &zero);
	struct probe_losses *losses;
	struct cluster_set *lossy;

	if (!body || !own)
		return -1;
	if (path)
		path->next_probe = body->next_probe;
	body->ready = s->ready && !s->leaving;
	body->generation = s->generation;
	body->age = (bpf_ktime_get_ns() - own->confirmed) / SECOND;
	for (int i = 0; i < CLUSTER_WORDS; i++)
		body->unreachable[i] = own->unreachable[i];
	losses = ctx_at(ctx, hook, PROBE_FRAME_OLD, sizeof(*losses));
	lossy = bpf_map_lookup_elem(&own_losses, &zero);
	if (losses && lossy)
		losses->lossy = *lossy;
	return 0;
}

/* Turns a probe into its reply. Swapping addresses keeps the IPv4 checksum. */
static __noinline enum verdict probe_reflect(void *ctx, enum hook hook, const struct node_settings *s, __u32 flags)
{
	struct probe_headers *head;
	struct path *path;
	__be32 peer;
	__be16 port;

	head = s ? ctx_at(ctx, hook, ETH_LEN, sizeof(*head)) : 0;
	if (!head)
		return VERDICT_DROP_MALFORMED;
	peer = head->ip.saddr;
	path = path_lookup(peer);
	if (path) {
		path->heard = bpf_ktime_get_ns();
		path->next_probe = 0;
		path->no_reply = !path->probed && (flags & PROBE_NO_REPLY);
		if (!path->probed && !path->no_reply)
			path->answered = path->sequence; /* the peer gets replies: the path works both ways */
	}
	if (!(flags & PROBE_SHORT) && probe_fill_reply(ctx, hook, s, path))
		return VERDICT_DROP_MALFORMED;
	head = ctx_at(ctx, hook, ETH_LEN, sizeof(*head));
	if (!head)
		return VERDICT_DROP_MALFORMED;
	head->ip.saddr = head->ip.daddr;
	head->ip.daddr = peer;
	port = head->udp.source;
	head->udp.source = head->udp.dest;
	head->udp.dest = port;
	head->udp.check = 0;
	head->overlay.type = PACKET_PROBE_REPLY;
	return VERDICT_CONTINUE;
}

/* Sends a reply by the device that the probe came in by. */
static __always_inline int probe_send_back(struct __sk_buff *skb, enum hook hook, const struct node_settings *s)
{
	skb->mark = s->cookie;
	count_verdict(skb, hook, VERDICT_PROBE);
	if (hook == HOOK_WIRE_IN)
		return bpf_redirect(skb->ifindex, 0);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* RFC 6298 2.2 and 2.3, in nanoseconds. */
static __always_inline void path_note_rtt(struct path *p, __u64 rtt)
{
	__u32 sample = rtt > ~0U ? ~0U : rtt, bucket = 0;
	__u64 us = rtt / 1000;

	p->rtt = rtt;
	if (!p->replies) {
		p->srtt = sample;
		p->rttvar = sample / 2;
	} else {
		__u32 off = sample > p->srtt ? sample - p->srtt : p->srtt - sample;

		p->rttvar = p->rttvar - p->rttvar / 4 + off / 4;
		p->srtt = p->srtt - p->srtt / 8 + sample / 8;
	}
	for (int i = 0; i < RTT_BUCKETS - 1; i++) {
		if (us < 1ULL << i)
			break;
		bucket++;
	}
	if (bucket < RTT_BUCKETS)
		p->histogram[bucket]++;
}

/*
 * Receives the reply to a large probe, which is as long as the probe, so its size passes both ways.
 * It affects neither round-trip times nor liveness.
 */
static __always_inline int probe_take_large_reply(struct __sk_buff *skb, enum hook hook, __be32 peer,
						  const struct probe_id *id)
{
	struct large_probe *large = large_probe_to(peer);

	if (!large || !id->nonce[0] || large->nonce[0] != id->nonce[0] || large->nonce[1] != id->nonce[1] ||
	    large->size != id->sequence || skb->len != OUTER_LEN + large->size)
		return finish(skb, hook, VERDICT_DROP_STALE_PROBE);
	large->nonce[0] = 0;
	count_verdict(skb, hook, VERDICT_PROBE);
	return ACTION_DROP;
}

/*
 * Receives the reply to a probe. It must carry the nonce of its slot, so a forged, late or repeated
 * one is dropped. cluster: that of the remote gateway, 0 for one of this cluster.
 */
static __noinline int probe_take_reply(struct __sk_buff *skb, enum hook hook, __be32 peer, __u32 cluster, __u32 flags)
{
	struct path *path = path_lookup(peer);
	__u64 now = bpf_ktime_get_ns();
	struct probe_slot *slot;
	struct probe_id id;
	struct probe *body;
	struct probe_losses *losses;
	__u64 sent;

	if (bpf_skb_load_bytes(skb, PROBE_ID, &id, sizeof(id)))
		return finish(skb, hook, VERDICT_DROP_MALFORMED);
	if (flags & PROBE_LARGE)
		return probe_take_large_reply(skb, hook, peer, &id);
	if (!path)
		return finish(skb, hook, VERDICT_DROP_STALE_PROBE);
	slot = &path->ring[id.sequence % PROBE_RING];
	sent = *(volatile __u64 *)&slot->sent; /* once: the daemon may take the slot for the next probe */
	if (!id.nonce[0] || slot->nonce[0] != id.nonce[0] || slot->nonce[1] != id.nonce[1] || sent > now)
		return finish(skb, hook, VERDICT_DROP_STALE_PROBE);
	if (!(flags & PROBE_SHORT)) {
		body = ctx_at(skb, hook, PROBE_BODY, sizeof(*body));
		if (!body)
			return finish(skb, hook, VERDICT_DROP_MALFORMED);
		path->ready = body->ready;
		path->generation = body->generation;
		path->age = body->age;
		for (int i = 0; i < CLUSTER_WORDS; i++)
			path->unreachable[i] = body->unreachable[i];
		losses = cluster ? 0 : ctx_at(skb, hook, PROBE_FRAME_OLD, sizeof(*losses));
		if (losses)
			bpf_map_update_elem(&gateway_losses, &peer, &losses->lossy, BPF_ANY);
	}
	slot->nonce[0] = 0;
	if (now > path_gone_at(path))
		path_note_return(path);
	if ((__s32)(id.sequence - path->answered) > 0)
		path->answered = id.sequence;
	path_note_rtt(path, now - sent);
	path->seen = now;
	path->replies++;
	if (cluster && path->ready)
		advertise_reach(cluster, 1, path->lossy ? LOSS_UNKNOWN : 0);
	count_verdict(skb, hook, VERDICT_PROBE);
	return ACTION_DROP;
}
