// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * Programs on a pod's own device (the node's end of its veth pair) if its datapath is hybrid or
 * fast, or the clusterset has ClusterSetIPs. Ingress: packets of known flows, in fast mode of new
 * flows too, enter the overlay here; those to a ClusterSetIP that this cluster serves go to one of
 * its pods; everything else takes the stack and, if it is for another cluster, edge_out. Egress:
 * translates the answers of that pod back, unless the pod's own end does (pod_end), and records
 * what the stack has let pass to the pod.
 */
#include "edge.h"
#include "bypass.h"
#include "mapping.h"
#include "selftest.h"

/*
 * Reports whether a packet fits into every wire. One that does not gets its answer from the
 * stack.
 */
static __always_inline int fits_wires(struct __sk_buff *skb, const struct node_settings *s, const struct packet *p)
{
	return s->mss && segment_len(skb, HOOK_POD_OUT, p) <= s->mss + sizeof(struct ipv4) + sizeof(struct tcp);
}

/*
 * Finds the flow of a packet, or opens it in fast mode. Returns 0 if the packet may not bypass the
 * stack.
 */
static __always_inline int bypass_out(const struct packet *p, enum datapath datapath, const struct node_settings *s,
				      struct tuple *t, __u16 *node, __u16 *cluster, __u64 now)
{
	const struct source *src;
	struct flow_key key;
	struct flow *f;

	flow_key_of(&key, p, DIRECTION_OUT);
	f = flow_find(&key);
	if (f) {
		if (flow_to_own_vip(&key, f, s->cluster) || vip_chooses_again(&key, f, p, VIP_HAIRPIN))
			return 0;
		if (datapath == DATAPATH_HYBRID && !passed_fresh(f, now))
			return 0;
		flow_use_out(&key, f, p, s, now, t, node, cluster);
		return 1;
	}
	if (datapath != DATAPATH_FAST || !packet_opens_flow(p))
		return 0;
	src = bpf_map_lookup_elem(&sources, &p->saddr);
	*t = (struct tuple){}; /* vip_out() may have failed: a mapping has no destination */
	if (!src || (!is_vip(p->daddr) && !route_lookup(p->daddr)))
		return 0; /* no mapping for what goes elsewhere */
	if ((mapping_applies(p, src) && mapping_out(p, &key, src, t) != VERDICT_CONTINUE) ||
	    flow_destination(p, t, cluster) != VERDICT_CONTINUE)
		return 0;
	*node = 0;
	return flow_open_client(p, &key, src, *cluster, t) == VERDICT_CONTINUE;
}

enum vip_port {
	VIP_PORT_LOW = 512,	/* to 1023: shown of clients' ports below 1024 */
	VIP_PORT_FIRST = 16384, /* to 32767: of the others. Linux's ephemeral ports begin at 32768 */
	VIP_PORTS = 32768 - VIP_PORT_FIRST,
	VIP_PORT_TRIES = 32,
};

/*
 * The source port that this cluster's own service sees in a connection to its ClusterSetIP. Not the
 * client's: the client may use that port for a connection to the pod or the ClusterIP itself, or to
 * another ClusterSetIP of the service, which conntrack and pod_in could not tell from this one. A
 * port below 1024 stays below (RFC 4787 REQ-3a), and that of SCTP cannot change. The answers are
 * known by these ports (vip_may_answer()).
 */
static __always_inline __be16 vip_port(const struct flow_key *key, __u32 try)
{
	__u32 hash;

	if (key->proto == PROTO_SCTP)
		return key->sport;
	if (bpf_ntohs(key->sport) < 1024)
		return key->sport | bpf_htons(VIP_PORT_LOW);
	hash = hash_mix(hash_mix(key->saddr, key->daddr), ((__u32)key->sport << 16 | key->dport) + try);
	return bpf_htons(VIP_PORT_FIRST + hash % VIP_PORTS);
}

/*
 * Fills the translation of an answer of a pod to itself, as client of a ClusterSetIP that it
 * serves. Returns 0 for other packets. Overwrites *key: a key of its own exceeds the stack.
 */
static __always_inline int vip_out_answer(struct packet *p, const struct node_settings *s, struct flow_key *key,
					  struct tuple *t)
{
	struct flow *f;

	flow_key_of(key, p, DIRECTION_IN);
	f = flow_find(key);
	if (!f || f->cluster != s->cluster || f->daddr != p->saddr)
		return 0;
	flow_touch(f, p, now_ns());
	*t = (struct tuple){ .saddr = f->saddr, .daddr = f->daddr, .sport = f->sport, .dport = f->dport };
	return 1;
}

/*
 * Fills the translation of a packet to a ClusterSetIP if this cluster's own service has, or gets,
 * the connection. Returns 0 if the packet goes to another cluster, or is dropped by edge_out.
 */
static __always_inline int vip_out(struct packet *p, const struct node_settings *s, __u32 device, struct tuple *t)
{
	struct source pod = { .own_ip = p->saddr, .ifindex = device };
	struct vip_target to = {};
	struct flow_key key;
	enum verdict v = VERDICT_DROP_TUPLE_CLASH;
	struct flow *f;

	/* An error that quotes a packet to another pod: the flow is that pod's. */
	if (p->error && p->quoted_peer != p->saddr)
		return 0;
	if (p->fragment == LATER_FRAGMENT && fragment_load(p) != VERDICT_CONTINUE)
		return 0;
	flow_key_of(&key, p, DIRECTION_OUT);
	f = flow_find(&key);
	if (f && vip_chooses_again(&key, f, p, VIP_OWN) && flow_evict(&key))
		f = 0;
	if (f) {
		if (!flow_to_own_vip(&key, f, s->cluster))
			return 0;
		flow_touch(f, p, now_ns());
		t->saddr = f->saddr;
		t->daddr = f->daddr;
		t->sport = f->sport;
		t->dport = f->dport;
		return 1;
	}
	if (vip_out_answer(p, s, &key, t))
		return 1;
	flow_key_of(&key, p, DIRECTION_OUT);
	if (!packet_opens_flow(p) || vip_pick(p, VIP_OWN, &to) != VERDICT_CONTINUE || to.cluster != s->cluster)
		return 0;
	t->daddr = to.address;
	t->dport = p->dport;
	vip_pick_pod(p, t);
	if (t->daddr == p->saddr)
		pod.own_ip = p->daddr; /* its own backend: it would drop packets from itself */
	for (__u32 try = 0; try < VIP_PORT_TRIES && v == VERDICT_DROP_TUPLE_CLASH; try++) {
		t->saddr = 0; /* not that of a mapping */
		p->sport = vip_port(&key, try);
		v = flow_open_client(p, &key, &pod, s->cluster, t);
	}
	p->sport = key.sport;
	return v == VERDICT_CONTINUE;
}

SEC("tc")
int pod_out(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	__u16 node = 0, cluster = 0;
	struct packet p = {};
	struct selftest *test;
	struct endpoint *pod;
	struct tuple t = {};
	struct ipv4 *ip;
	__u64 now;
	int vip;

	if (!s || !s->ready || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	ip = ctx_at(skb, HOOK_POD_OUT, ETH_LEN, sizeof(*ip));
	if (!ip)
		return ACTION_NEXT;
	pod = bpf_map_lookup_elem(&endpoints, &ip->saddr);
	vip = is_vip(ip->daddr);
	if (!pod || pod->ifindex != skb->ifindex || (pod->datapath == DATAPATH_STRICT && !vip) ||
	    parse_skb(skb, ETH_LEN, &p) != VERDICT_CONTINUE)
		return ACTION_NEXT;
	test = selftest_of(skb, &p);
	if (test) {
		test->pod = skb->ifindex;
		return ACTION_NEXT; /* to edge_out, whatever the datapath */
	}
	if (vip && vip_out(&p, s, skb->ifindex, &t)) {
		if (p.fragment == FIRST_FRAGMENT)
			fragment_store(&p);
		if (rewrite(skb, &p, &t, DIRECTION_OUT))
			return finish(skb, HOOK_POD_OUT, VERDICT_DROP_INTERNAL);
		if (t.daddr != p.saddr)
			return finish(skb, HOOK_POD_OUT, VERDICT_OWN_SERVICE);
		count_verdict(skb, HOOK_POD_OUT, VERDICT_OWN_SERVICE);
		bpf_skb_change_type(skb, PACKET_HOST); /* on a bridge the frame was to another device */
		return deliver_to_pod(skb, HOOK_POD_OUT, pod);
	}
	now = now_ns();
	ip = ctx_at(skb, HOOK_POD_OUT, ETH_LEN, sizeof(*ip));
	if (pod->datapath == DATAPATH_STRICT || !ip || !may_bypass(&p, ip, pod->datapath) || !fits_wires(skb, s, &p) ||
	    !bypass_out(&p, pod->datapath, s, &t, &node, &cluster, now))
		return ACTION_NEXT;
	ip = ctx_at(skb, HOOK_POD_OUT, ETH_LEN, sizeof(*ip));
	if (!ip)
		return finish(skb, HOOK_POD_OUT, VERDICT_DROP_INTERNAL);
	ttl_decrement(ip);
	return edge_send(skb, s, HOOK_POD_OUT, &p, &t, node, cluster, now);
}

/*
 * Reports whether a packet answers a new connection of the pod to the ClusterIP itself, on the
 * tuple of a closed connection to the ClusterSetIP: a closed connection gets no more SYN-ACKs, and
 * a reopened flow is a new entry. A FIN from the client alone does not close it: the server may
 * have seen neither it nor the ACK before it.
 */
static __always_inline int vip_in_ended(const struct flow_key *key, const struct flow *f, const struct packet *p)
{
	struct flow_key other_key;
	const struct flow *other;

	if (p->proto != PROTO_TCP || p->error || (p->tcp_flags & (TCP_SYN | TCP_ACK)) != (TCP_SYN | TCP_ACK))
		return 0;
	if (f->tcp & (TCP_SEEN_FIN | TCP_SEEN_RST))
		return 1;
	flow_key_other(&other_key, key, f);
	other = bpf_map_lookup_elem(&flows, &other_key);
	return other && (other->tcp & TCP_SEEN_RST);
}

/* The headers of a packet to a pod: IPv4, and if that has no options the ports. */
struct to_pod {
	struct ipv4 ip;
	__be16 ports[2];
};

/*
 * Reports whether a packet to a pod may be an answer of a pod of this cluster to a client of a
 * ClusterSetIP: by its port (vip_port()), so that most packets cost no look-up. An ICMP error may
 * come from a router.
 */
static __always_inline int vip_may_answer(const struct to_pod *h)
{
	__u16 port = bpf_ntohs(h->ports[1]);

	if ((h->ip.proto != PROTO_TCP && h->ip.proto != PROTO_UDP) || h->ip.version_ihl != 0x45 ||
	    (h->ip.frag & bpf_htons(0x1fff)))
		return 1;
	return port < 1024 ? port >= VIP_PORT_LOW : port >= VIP_PORT_FIRST && port < VIP_PORT_FIRST + VIP_PORTS;
}

/*
 * Translates back what this cluster's own service answers to a client of its ClusterSetIP, ICMP
 * errors included. VERDICT_CONTINUE: the packet is no such answer.
 */
static __always_inline enum verdict vip_in(struct __sk_buff *skb, const struct node_settings *s, struct packet *p)
{
	struct flow_key key;
	struct tuple t;
	struct flow *f;

	if (p->fragment == LATER_FRAGMENT && fragment_load(p) != VERDICT_CONTINUE)
		return VERDICT_CONTINUE;
	flow_key_of(&key, p, DIRECTION_IN);
	f = flow_find(&key);
	if (!f || f->cluster != s->cluster)
		return VERDICT_CONTINUE;
	if (vip_in_ended(&key, f, p)) {
		flow_evict(&key);
		return VERDICT_CONTINUE;
	}
	if (p->fragment == FIRST_FRAGMENT)
		fragment_store(p);
	flow_touch(f, p, now_ns());
	t = (struct tuple){ .saddr = f->saddr, .daddr = f->daddr, .sport = f->sport, .dport = f->dport };
	return rewrite(skb, p, &t, DIRECTION_IN) ? VERDICT_DROP_INTERNAL : VERDICT_OWN_SERVICE;
}

/* Records for hybrid mode that the stack has let a packet of a flow pass to the pod. */
static __always_inline void record_passed(struct __sk_buff *skb, const struct packet *p)
{
	struct flow_key out_key, in_key;
	struct flow *out, *in;

	out_key = (struct flow_key){
		.saddr = p->daddr,
		.daddr = p->saddr,
		.sport = p->dport,
		.dport = p->sport,
		.proto = p->proto,
		.direction = DIRECTION_OUT,
	};
	out = flow_find(&out_key);
	if (!out)
		return;
	flow_key_other(&in_key, &out_key, out);
	in = flow_find(&in_key);
	if (in && in->passed == PASSED_PENDING)
		passed_record(skb, p, in, out);
}

SEC("tc")
int pod_in(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	__u32 device = skb->ifindex;
	struct packet p = {};
	struct endpoint *pod;
	struct to_pod *h;
	enum verdict v;
	int answers;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	h = ctx_at(skb, HOOK_POD_IN, ETH_LEN, sizeof(*h));
	if (!h)
		return ACTION_NEXT;
	pod = bpf_map_lookup_elem(&endpoints, &h->ip.daddr);
	if (!pod)
		return ACTION_NEXT;
	answers = (vip_may_answer(h) || bpf_map_lookup_elem(&vip_backings, &h->ip.saddr)) &&
		  !bpf_map_lookup_elem(&pod_ends, &device);
	if ((!answers && pod->datapath != DATAPATH_HYBRID) || parse_skb(skb, ETH_LEN, &p) != VERDICT_CONTINUE)
		return ACTION_NEXT;
	v = answers ? vip_in(skb, s, &p) : VERDICT_CONTINUE;
	if (v != VERDICT_CONTINUE)
		return finish(skb, HOOK_POD_IN, v);
	if (pod->datapath == DATAPATH_HYBRID && !p.error && !p.fragment)
		record_passed(skb, &p);
	return ACTION_NEXT;
}

/*
 * Ingress of the pod's own end, in its network namespace: translates answers back where nothing
 * runs afterwards. pod_in cannot where a CNI redirects packets past the node's end, and runs before
 * the programs of the CNI where it does not.
 */
SEC("tc")
int pod_end(struct __sk_buff *skb)
{
	struct node_settings *s = get_settings();
	struct packet p = {};
	struct to_pod *h;
	enum verdict v;

	if (!s || skb->protocol != bpf_htons(ETH_P_IP))
		return ACTION_NEXT;
	h = ctx_at(skb, HOOK_POD_IN, ETH_LEN, sizeof(*h));
	if (!h || !(vip_may_answer(h) || bpf_map_lookup_elem(&vip_backings, &h->ip.saddr)) ||
	    parse_skb(skb, ETH_LEN, &p) != VERDICT_CONTINUE)
		return ACTION_NEXT;
	v = vip_in(skb, s, &p);
	return v == VERDICT_CONTINUE ? ACTION_NEXT : finish(skb, HOOK_POD_IN, v);
}
