/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * Probes: sending, reflecting, taking the answer. A probe begins as any frame with the probe mark on its way out of
 * pelago0 whose IPv4 destination is the peer's outer address: from the daemon's prober, or a clone of a packet in hand
 * when the prober is late or dead. So failover needs no user space.
 */
#pragma once
#include "count.h"
#include "path.h"

/* The mark of a clone. Its sender promises no further probe. */
static __always_inline __u32 clone_mark(const struct node_settings *s)
{
	return s->probe_mark ^ 1;
}

/* An idle path is not probed more often because of a packet now and then: it is in use from the second one on. */
#define USED_GRAIN (100 * MILLISECOND)

/* Probes of a long path are spread over its round-trip time, so that the ring holds all that are under way. */
static __always_inline __u64 interval_of(const struct path *p)
{
	__u64 spread = p->srtt / (PROBE_RING / 2);

	return spread > LIVENESS_INTERVAL ? spread : LIVENESS_INTERVAL;
}

/* Notes that a packet takes the path. */
static __always_inline void use_path(struct path *p, __u64 now)
{
	if (now - p->used > USED_GRAIN)
		p->used = now;
}

/* Whether a packet that takes the path is to have a probe beside it: whoever should send one is late. */
static __always_inline int overdue(const struct path *p, __u64 now)
{
	__u64 sent, wait;

	if (!p->probed && heard_lately(p, now))
		return 0;
	/* The prober gets half of an interval more; nodes have none. */
	wait = interval_of(p);
	wait += p->probed ? wait / 2 : 0;
	sent = p->ring[p->sequence % PROBE_RING].sent;
	return now >= sent && now - sent >= wait;
}

/*
 * Notes that a packet takes the path, which its outer headers name already, and sends a probe beside it if one is
 * overdue. Invalidates pointers into the packet, and skb->mark, which the senders set.
 */
static __always_inline void take_path(struct __sk_buff *skb, const struct node_settings *s, const struct target *to)
{
	struct path *p = path_to(to->hop.address);
	__u64 now = now_ns();

	if (!p)
		return;
	use_path(p, now);
	if (!overdue(p, now))
		return;
	skb->mark = clone_mark(s);
	bpf_clone_redirect(skb, s->edge, 0);
}

/* Where the peer's probes go. 0: nowhere. */
static __always_inline int probe_target(const struct node_settings *s, __be32 address, __u32 hash, struct target *to)
{
	struct peer *peer = bpf_map_lookup_elem(&peers, &address);
	struct cluster *c;
	__u32 index;

	if (!peer)
		return 0;
	if (peer->kind == PEER_NODE)
		return to_node(s, peer->node, to);
	index = peer->cluster;
	c = bpf_map_lookup_elem(&clusters, &index);
	if (!c)
		return 0;
	for (int i = 0; i < MAX_GATEWAYS; i++) {
		if (i >= c->count)
			break;
		if (c->gateways[i].hop.address == address)
			return to_remote(s, &c->gateways[i], hash, to);
	}
	return 0;
}

#define PROBE_ID (OUTER_LEN - sizeof(struct eth))
_Static_assert(PROBE_BODY == OUTER_LEN, "the body has the place of the inner packet");

/* A number that nobody guesses, for the answer to repeat. The first half is not 0. */
static __always_inline void make_nonce(__u32 *nonce)
{
	nonce[0] = bpf_get_prandom_u32() | 1;
	nonce[1] = bpf_get_prandom_u32();
}

/* Takes the next slot of the ring. Of the probe that had it the answer is no longer waited for. */
static __always_inline void next_probe(struct path *path, struct probe_id *id)
{
	__u32 sequence = __sync_fetch_and_add(&path->sequence, 1) + 1;
	struct probe_slot *slot = &path->ring[sequence % PROBE_RING];
	__u32 sample = sequence > PROBE_RING && slot->nonce[0] ? 65536 : 0;

	path->loss = path->loss - path->loss / 32 + sample / 32;
	path->probes++;
	make_nonce(id->nonce);
	id->sequence = sequence;
	slot->nonce[0] = id->nonce[0];
	slot->nonce[1] = id->nonce[1];
	slot->sent = bpf_ktime_get_ns();
}

static __always_inline struct large_probe *large_probe_to(__be32 address)
{
	return bpf_map_lookup_elem(&large_probes, &address);
}

/*
 * Makes a large probe of a frame that is as long as a packet to be sent: it grows by the overlay's header, as that packet
 * would. The frame's first word behind the Ethernet header is the promise, which then stands where the body begins. *o and *id
 * are the caller's for the sake of its stack.
 */
static __always_inline int grow_probe(struct __sk_buff *skb, const struct target *to, __u8 flags, struct outer *o,
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
	make_outer(o, to, size + ENCAP_LEN, 0, to->port);
	set_header(&o->overlay, to->token, PACKET_PROBE, 0, flags | PROBE_LARGE);
	return bpf_skb_store_bytes(skb, 0, o, PROBE_ID, 0) || bpf_skb_store_bytes(skb, PROBE_ID, id, sizeof(*id), 0);
}

/*
 * Makes a probe of a frame on its way out of pelago0. The prober's becomes a full one; it has its length and its body
 * already; one that is longer becomes a large one. A clone becomes a short one: its outer headers are those of the packet, so all that is to be written is source port,
 * type, flags and number. It stays as long as it is, since the kernel does not cut encapsulated packets.
 */
static __noinline int probe_out(struct __sk_buff *skb, const struct node_settings *s)
{
	int is_short = s && skb->mark == clone_mark(s);
	struct probe_id id;
	struct target to = {};
	struct outer o = {};
	struct path *path;
	__be32 address;
	__u8 flags;

	if (!s || bpf_skb_load_bytes(skb, ETH_LEN + IPV4_DADDR, &address, sizeof(address)))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_MALFORMED);
	path = path_to(address);
	if (!path || (!path->probed && !is_short) || !probe_target(s, address, path->sequence, &to))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_UNKNOWN_PEER);
	flags = suspect(path, now_ns()) ? PROBE_DEAF : 0;
	if (!is_short && skb->len > PROBE_FRAME) {
		if (grow_probe(skb, &to, flags, &o, &id))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
		count(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
		return send_from_stack(skb, s, &to);
	}
	if (is_short) {
		set_header(&o.overlay, to.token, PACKET_PROBE, 0, flags | PROBE_SHORT);
		/* The answer comes back to the port that the probe left from. */
		if (bpf_skb_store_bytes(skb, PROBE_ID - sizeof(o.overlay), &o.overlay, sizeof(o.overlay), 0) ||
		    bpf_skb_store_bytes(skb, ETH_LEN + sizeof(struct ipv4), &to.port, sizeof(to.port), 0))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	} else {
		if (skb->len != PROBE_FRAME)
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_MALFORMED);
		make_outer(&o, &to, PROBE_FRAME - ETH_LEN, 0, to.port);
		set_header(&o.overlay, to.token, PACKET_PROBE, 0, flags);
		if (bpf_skb_store_bytes(skb, 0, &o, PROBE_ID, 0))
			return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	}
	next_probe(path, &id);
	if (bpf_skb_store_bytes(skb, PROBE_ID, &id, sizeof(id), 0))
		return finish(skb, HOOK_EDGE_OUT, VERDICT_DROP_INTERNAL);
	count(skb, HOOK_EDGE_OUT, VERDICT_PROBE);
	return send_from_stack(skb, s, &to);
}

struct probe_headers {
	struct ipv4 ip;
	struct udp udp;
	struct overlay_header overlay;
};

/* Writes into a probe's body what its sender wants to know. */
static __always_inline int tell(void *ctx, enum hook hook, const struct node_settings *s, struct path *path)
{
	struct probe *body = packet_at(ctx, hook, PROBE_BODY, sizeof(*body));
	__u32 zero = 0;
	struct standing *own = bpf_map_lookup_elem(&standings, &zero);

	if (!body || !own)
		return -1;
	if (path)
		path->promised = body->promised;
	body->ready = s->ready && !s->leaving;
	body->generation = s->generation;
	body->age = (bpf_ktime_get_ns() - own->confirmed) / SECOND;
	for (int i = 0; i < CLUSTER_WORDS; i++)
		body->unreachable[i] = own->unreachable[i];
	return 0;
}

/*
 * Makes the answer of a probe, to be sent back where it came from. The checksum of the IPv4 header stays right.
 * VERDICT_PROBE: made.
 */
static __noinline enum verdict reflect(void *ctx, enum hook hook, const struct node_settings *s, __u32 flags)
{
	struct probe_headers *head;
	struct path *path;
	__be32 peer;
	__be16 port;

	head = s ? packet_at(ctx, hook, ETH_LEN, sizeof(*head)) : 0;
	if (!head)
		return VERDICT_DROP_MALFORMED;
	peer = head->ip.saddr;
	path = path_to(peer);
	if (path) {
		path->heard = bpf_ktime_get_ns();
		path->promised = 0;
		path->deaf = !path->probed && (flags & PROBE_DEAF);
		if (!path->probed && !path->deaf)
			path->answered = path->sequence; /* it gets answers, so the path works both ways */
	}
	if (!(flags & PROBE_SHORT) && tell(ctx, hook, s, path))
		return VERDICT_DROP_MALFORMED;
	head = packet_at(ctx, hook, ETH_LEN, sizeof(*head));
	if (!head)
		return VERDICT_DROP_MALFORMED;
	head->ip.saddr = head->ip.daddr;
	head->ip.daddr = peer;
	port = head->udp.source;
	head->udp.source = head->udp.dest;
	head->udp.dest = port;
	head->udp.check = 0;
	head->overlay.type = PACKET_PROBE_REPLY;
	return VERDICT_PROBE;
}

/* Sends an answer that reflect() made by the device that the probe came from. */
static __always_inline int send_back(struct __sk_buff *skb, enum hook hook, const struct node_settings *s)
{
	skb->mark = s->cookie;
	count(skb, hook, VERDICT_PROBE);
	if (hook == HOOK_WIRE_IN)
		return bpf_redirect(skb->ifindex, 0);
	return bpf_redirect_neigh(skb->ifindex, 0, 0, 0);
}

/* RFC 6298 2.2 and 2.3, with nanoseconds for clock ticks. */
static __always_inline void note_rtt(struct path *p, __u64 rtt)
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
 * Takes the answer to a large probe. It came back as long as it went, so what it stands for passes both ways. It says
 * nothing of round-trip times and liveness, nor does its loss.
 */
static __always_inline int large_answer(struct __sk_buff *skb, enum hook hook, __be32 peer, const struct probe_id *id)
{
	struct large_probe *large = large_probe_to(peer);

	if (!large || !id->nonce[0] || large->nonce[0] != id->nonce[0] || large->nonce[1] != id->nonce[1] ||
	    large->size != id->sequence || skb->len != OUTER_LEN + large->size)
		return finish(skb, hook, VERDICT_DROP_BAD_TOKEN);
	large->nonce[0] = 0;
	count(skb, hook, VERDICT_PROBE);
	return ACTION_DROP;
}

/*
 * Takes the answer to a probe. It must name the nonce that stands in its slot; any other is dropped, so a forged, late
 * or repeated one proves nothing. cluster: of the remote gateway that answers, 0 for one of this cluster.
 */
static __noinline int probe_answer(struct __sk_buff *skb, enum hook hook, __be32 peer, __u32 cluster, __u32 flags)
{
	struct path *path = path_to(peer);
	__u64 now = bpf_ktime_get_ns();
	struct probe_slot *slot;
	struct probe_id id;
	struct probe *body;

	if (bpf_skb_load_bytes(skb, PROBE_ID, &id, sizeof(id)))
		return finish(skb, hook, VERDICT_DROP_MALFORMED);
	if (flags & PROBE_LARGE)
		return large_answer(skb, hook, peer, &id);
	if (!path)
		return finish(skb, hook, VERDICT_DROP_BAD_TOKEN);
	slot = &path->ring[id.sequence % PROBE_RING];
	if (!id.nonce[0] || slot->nonce[0] != id.nonce[0] || slot->nonce[1] != id.nonce[1] || slot->sent > now)
		return finish(skb, hook, VERDICT_DROP_BAD_TOKEN);
	if (!(flags & PROBE_SHORT)) {
		body = packet_at(skb, hook, PROBE_BODY, sizeof(*body));
		if (!body)
			return finish(skb, hook, VERDICT_DROP_MALFORMED);
		path->ready = body->ready;
		path->generation = body->generation;
		path->age = body->age;
		for (int i = 0; i < CLUSTER_WORDS; i++)
			path->unreachable[i] = body->unreachable[i];
	}
	slot->nonce[0] = 0;
	if ((__s32)(id.sequence - path->answered) > 0)
		path->answered = id.sequence;
	note_rtt(path, now - slot->sent);
	path->seen = now;
	path->replies++;
	if (cluster)
		note_reach(cluster, 1);
	count(skb, hook, VERDICT_PROBE);
	return ACTION_DROP;
}
