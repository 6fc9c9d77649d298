/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/*
 * ClusterSetIPs (KEP-1645): which cluster serves a new connection, and if it is this one, which
 * pod. The choice stays in the flow entry, whose destination is then the address of the service in
 * that cluster, or of the pod. A flow whose cluster is this one is translated at the client's own
 * device and continues in the node's stack to the pod. A source without such a device takes the
 * service's global IP, by way of a gateway (hairpin).
 */
#pragma once
#include "encap.h"
#include "flow.h"
#include "lb.h"

/* Reports whether an address is in the range of ClusterSetIPs. */
static __always_inline int is_vip(__be32 address)
{
	__u32 zero = 0;
	const struct vip_range *r = bpf_map_lookup_elem(&vip_ranges, &zero);

	return r && r->mask && (address & r->mask) == r->address;
}

/*
 * Reports whether a flow goes to a ClusterSetIP and is translated to a pod of this cluster (own:
 * its index), or to a ClusterIP, at the client's own device. One to the service's global IP has
 * another source address. f: the entry of key, of DIRECTION_OUT.
 */
static __always_inline int flow_to_own_vip(const struct flow_key *key, const struct flow *f, __u16 own)
{
	return f->cluster == own && f->primary && f->daddr != key->daddr &&
	       (f->saddr == key->saddr || f->daddr == key->saddr);
}

/* The global IP of the service with a ClusterIP of this cluster; 0: none. */
static __always_inline __be32 vip_hairpin(__be32 cluster_ip)
{
	const __be32 *global = bpf_map_lookup_elem(&vip_backings, &cluster_ip);

	return global ? *global : 0;
}

enum vip_use {
	VIP_OWN = 1,	 /* this cluster's service may be the target: one of its pods, else its ClusterIP */
	VIP_PEEK = 2,	 /* no connection follows: session affinity does not record the pick */
	VIP_HAIRPIN = 4, /* this cluster's service may be the target, at its global IP */
};

/* Reports whether a gateway of this cluster reaches a remote one. */
static __always_inline int vip_reaches(const struct node_settings *s, __u32 cluster, __u32 hash)
{
	__u32 pick = lb_pick_gateway(gateway_hash(s, hash), cluster, 0, now_ns());

	return pick && !(pick & PICK_DOUBTFUL);
}

/* Position of a cluster among the targets plus 1; 0: it does not serve the port. */
static __always_inline __u32 vip_find(const struct vip *v, __u32 cluster)
{
	for (int i = 0; i < VIP_TARGETS; i++) {
		if (i >= v->count)
			break;
		if (v->targets[i].cluster == cluster)
			return i + 1;
	}
	return 0;
}

/* The target of a position below v->count. The mask is for the verifier, which loses the bounds. */
static __always_inline const struct vip_target *vip_target_at(const struct vip *v, __u32 n)
{
	asm volatile("" : "+r"(n));
	return &v->targets[n & (VIP_TARGETS - 1)];
}

/* Reports whether new connections may go to a target. use: enum vip_use. */
__noinline int vip_usable(const struct vip *v, __u32 n, __u32 hash, __u32 use)
{
	const struct node_settings *s = get_settings();
	const struct vip_target *t;

	if (!v || !s || n >= v->count)
		return 0;
	t = vip_target_at(v, n);
	if (t->cluster != s->cluster)
		return vip_reaches(s, t->cluster, hash);
	return (use & VIP_OWN) || ((use & VIP_HAIRPIN) && vip_hairpin(t->address));
}

/* The position in a slot. */
static __always_inline __u32 vip_slot(const struct vip *v, __u32 hash)
{
	__u32 slot = hash % VIP_SLOTS;

	asm volatile("" : "+r"(slot));
	return slot < VIP_SLOTS ? v->slots[slot] : VIP_NO_TARGET;
}

/* Reports whether a position is that of another cluster. */
static __always_inline int vip_is_remote(const struct node_settings *s, const struct vip *v, __u32 n)
{
	return n < v->count && vip_target_at(v, n)->cluster != s->cluster;
}

/* A client whose connections choose a cluster. */
struct vip_client {
	struct affinity_key key;
	__u32 hash;			       /* of the connection */
	union {				       /* to save stack */
		__u32 use;		       /* enum vip_use */
		struct affinity_choice choice; /* afterwards: what is stored */
	};
};

/*
 * Chooses the target of a new connection; returns its position plus 1. With session affinity the
 * client's previous cluster, else that of the slot, else any that is reachable. If no cluster is
 * reachable, that of the slot all the same, as for gateways. 0: none.
 */
static __always_inline __u32 vip_choose(const struct node_settings *s, const struct vip *v, const struct vip_client *c)
{
	__u32 doubtful = 0, hash = v->affinity ? hash_mix(c->key.client, c->key.vip.address) : c->hash;

	if (v->affinity) {
		const struct affinity_choice *former = bpf_map_lookup_elem(&affinities, &c->key);
		__u32 n = former && now_ns() - former->used < v->affinity * SECOND ? vip_find(v, former->cluster) : 0;

		if (n && vip_usable(v, n - 1, hash, c->use))
			return n;
	}
	for (__u32 i = 0; i < VIP_TRIES; i++) {
		__u32 n = vip_slot(v, hash + i * STEP_SLOT);

		if (vip_usable(v, n, hash, c->use))
			return n + 1;
		if (!doubtful && vip_is_remote(s, v, n))
			doubtful = n + 1;
	}
	for (__u32 i = 0; i < VIP_TARGETS; i++) {
		__u32 n;

		if (i >= v->count)
			break;
		n = (hash + i) % v->count;
		if (vip_usable(v, n, hash, c->use))
			return n + 1;
		if (!doubtful && vip_is_remote(s, v, n))
			doubtful = n + 1;
	}
	return doubtful;
}

/*
 * Replaces the ClusterIP in *t by a ready pod of this cluster, and the port by the pod's. The
 * ClusterIP stays if the tables have no pod: SCTP whose port would change, or tables of an older
 * version.
 */
__noinline int vip_pick_pod(const struct packet *p, struct tuple *t)
{
	struct service_key key = {};
	const struct backend *pod;
	const struct service *s;

	if (!p || !t)
		return 0;
	key.address = p->daddr;
	key.port = p->dport;
	key.proto = p->proto;
	s = bpf_map_lookup_elem(&services, &key);
	pod = s ? lb_pick_backend(&key, s, p, 0, now_ns()) : 0;
	if (pod) {
		t->daddr = pod->address;
		t->dport = pod->port;
	}
	return 0;
}

/*
 * Picks the target of a packet that opens a flow. VERDICT_CONTINUE: it is in *to. use: enum
 * vip_use.
 */
__noinline enum verdict vip_pick(const struct packet *p, __u32 use, struct vip_target *to)
{
	const struct node_settings *s = get_settings();
	struct vip_client c = {};
	struct vip *v;
	__u32 n;

	if (!p || !to || !s)
		return VERDICT_DROP_INTERNAL;
	c.key.vip.address = p->daddr;
	c.key.vip.port = p->dport;
	c.key.vip.proto = p->proto;
	c.key.client = p->saddr;
	c.hash = flow_hash(p);
	c.use = use;
	v = bpf_map_lookup_elem(&vips2, &c.key.vip);
	if (!v)
		return VERDICT_DROP_NO_SERVICE;
	n = vip_choose(s, v, &c);
	if (!n || n > VIP_TARGETS)
		return VERDICT_DROP_NO_BACKEND;
	*to = *vip_target_at(v, n - 1);
	if (to->cluster == s->cluster && !(use & VIP_OWN)) {
		to->address = vip_hairpin(to->address);
		if (!to->address)
			return VERDICT_DROP_NO_BACKEND;
	}
	if (v->affinity && !(use & VIP_PEEK)) {
		c.choice = (struct affinity_choice){ .used = now_ns(), .cluster = to->cluster };
		bpf_map_update_elem(&affinities, &c.key, &c.choice, BPF_ANY);
	}
	return VERDICT_CONTINUE;
}

/*
 * Reports whether a flow whose cluster is unreachable can move to another cluster that is
 * reachable. If none exists, the flow keeps its cluster, port and node: they are valid again
 * after the outage.
 */
static __always_inline int vip_moves(const struct packet *p, __u32 cluster, __u32 use)
{
	const struct node_settings *s = get_settings();
	struct vip_target to = {};

	if (!s)
		return 0;
	if (vip_pick(p, use | VIP_PEEK, &to) != VERDICT_CONTINUE)
		return 1;
	return to.cluster != cluster && (to.cluster == s->cluster || vip_reaches(s, to.cluster, 0));
}

enum vip_flow {
	VIP_FLOW_STAYS = 0,
	VIP_FLOW_ENDED = 1, /* its connection is over, or its cluster or pod no longer serves the port */
	VIP_FLOW_CUT = 2,   /* its cluster is not reached */
};

/*
 * Reports whether the cluster, and if it is this one the pod, of a flow still serves a port of a
 * ClusterSetIP and is reached.
 */
__noinline int vip_reach(const struct flow_key *of, const struct flow *f)
{
	const struct node_settings *s = get_settings();
	struct vip_pod_key key = {};
	const __be16 *port;
	struct vip *v;
	__u32 n;

	if (!of || !f || !s)
		return VIP_FLOW_STAYS;
	key.vip.address = of->daddr;
	key.vip.port = of->dport;
	key.vip.proto = of->proto;
	v = bpf_map_lookup_elem(&vips2, &key.vip);
	n = v ? vip_find(v, f->cluster) : 0;
	if (!n || n > VIP_TARGETS)
		return VIP_FLOW_ENDED;
	if (f->cluster != s->cluster)
		return vip_reaches(s, f->cluster, 0) ? VIP_FLOW_STAYS : VIP_FLOW_CUT;
	if (!flow_to_own_vip(of, f, s->cluster) || f->daddr == vip_target_at(v, n - 1)->address)
		return VIP_FLOW_STAYS; /* at the global IP, or the ClusterIP */
	key.pod = f->daddr;
	port = bpf_map_lookup_elem(&vip_pods, &key);
	return port && *port == f->dport ? VIP_FLOW_STAYS : VIP_FLOW_ENDED;
}

/* The state of a flow to a ClusterSetIP, for vip_chooses_again(). */
__noinline int vip_flow_state(const struct flow_key *of, const struct flow *f, const struct packet *p)
{
	struct flow *other = 0;

	if (!of || !f || !p || p->error)
		return VIP_FLOW_STAYS;
	if (p->proto == PROTO_TCP) {
		if (!packet_opens_flow(p))
			return VIP_FLOW_STAYS;
		if (flow_reopens(of, f, p, &other))
			return VIP_FLOW_ENDED;
	} else if (now_ns() - f->seen <= SECOND) {
		return VIP_FLOW_STAYS;
	}
	return vip_reach(of, f);
}

/*
 * Reports whether the flow of a packet to a ClusterSetIP must choose its cluster again. TCP: on a
 * SYN, if the connection on the tuple is over or its cluster, or this cluster's pod, no longer
 * serves the port; a handshake interrupted by the failure of a cluster continues with another one.
 * Other protocols: if it no longer serves the port, which is checked once a second. use: enum
 * vip_use.
 */
static __always_inline int vip_chooses_again(const struct flow_key *key, const struct flow *f, const struct packet *p,
					     __u32 use)
{
	int state = f->primary && f->daddr != key->daddr ? vip_flow_state(key, f, p) : VIP_FLOW_STAYS;

	return state == VIP_FLOW_CUT ? vip_moves(p, f->cluster, use) : state;
}
