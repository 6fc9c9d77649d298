// SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause
//go:build ignore

/*
 * ClusterSetIPs of processes in the node's host network, which have no device in `endpoints`:
 * cgroup programs (BPF_PROG_TYPE_CGROUP_SOCK_ADDR) replace the address of a socket call by that of
 * one of this cluster's pods, so that the packets are like any other to the pod, whoever takes
 * them there. A call that goes to another cluster keeps the ClusterSetIP; edge_out picks the
 * cluster. A program returns 1: the call goes on.
 */
#include "vip.h"

/* A socket and one of its addresses. */
static __always_inline struct socket_key socket_key_of(void *ctx, __u8 proto, __be32 address, __be16 port)
{
	return (struct socket_key){
		.socket = bpf_get_socket_cookie(ctx),
		.address = address,
		.port = port,
		.proto = proto,
	};
}

/* Reports whether a socket of the node itself, not of a pod, calls for an address. */
static __always_inline int socket_of_host(struct bpf_sock_addr *ctx)
{
	return host_netns && bpf_get_netns_cookie(ctx) == host_netns;
}

/* Reports whether a pod still serves a port of a ClusterSetIP. */
static __always_inline int socket_pod_serves(const struct service_key *vip, const struct backend *pod)
{
	struct vip_pod_key key = { .vip = *vip, .pod = pod->address };
	const __be16 *port = bpf_map_lookup_elem(&vip_pods, &key);

	return port && (*port == pod->port || !*port);
}

/*
 * Picks the pod for a ClusterSetIP in p, into *to. Returns 0 if another cluster is to serve it, or
 * none can. seed: differs between the calls of a client without session affinity.
 */
static __always_inline int socket_pick(const struct node_settings *s, struct packet *p, __u32 seed, struct tuple *to)
{
	struct vip_target target = {};

	p->sport = (__be16)seed;
	if (vip_pick(p, VIP_OWN, &target) != VERDICT_CONTINUE || target.cluster != s->cluster)
		return 0;
	to->daddr = target.address;
	to->dport = p->dport;
	vip_pick_pod(p, to);
	return 1;
}

/* Remembers which ClusterSetIP a socket means by an address, for recvmsg() and getpeername(). */
static __always_inline void socket_remember(void *ctx, const struct packet *p, const struct tuple *to)
{
	struct socket_key key = socket_key_of(ctx, p->proto, to->daddr, to->dport);
	struct backend vip = { .address = p->daddr, .port = p->dport };

	bpf_map_update_elem(&socket_vips, &key, &vip, BPF_ANY);
}

/* connect(): of TCP, and of UDP sockets, which keep the pod until they connect again. */
static __always_inline int socket_connect(struct bpf_sock_addr *ctx, __be32 *address)
{
	struct node_settings *s = get_settings();
	struct packet p = { .daddr = *address, .dport = (__be16)ctx->user_port, .proto = ctx->protocol };
	struct tuple to = {};

	if (!s || !s->ready || (p.proto != PROTO_TCP && p.proto != PROTO_UDP) || !is_vip(p.daddr) ||
	    !socket_of_host(ctx) || !socket_pick(s, &p, bpf_get_prandom_u32(), &to))
		return 0;
	socket_remember(ctx, &p, &to);
	*address = to.daddr;
	ctx->user_port = to.dport;
	return 1;
}

/* The address that a socket knows another one by, in recvmsg() and getpeername(). */
static __always_inline int socket_name(struct bpf_sock_addr *ctx, __be32 *address)
{
	struct socket_key key;
	const struct backend *vip;

	if (!socket_of_host(ctx)) /* first: every datagram of every pod gets here */
		return 0;
	key = socket_key_of(ctx, ctx->protocol, *address, (__be16)ctx->user_port);
	vip = bpf_map_lookup_elem(&socket_vips, &key);
	if (!vip)
		return 0;
	*address = vip->address;
	ctx->user_port = vip->port;
	return 1;
}

/* Reports whether an address of IPv6 is one of IPv4 (RFC 4291, section 2.5.5.2). */
static __always_inline int is_mapped(struct bpf_sock_addr *ctx)
{
	return !ctx->user_ip6[0] && !ctx->user_ip6[1] && ctx->user_ip6[2] == bpf_htonl(0xffff);
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip4;

	if (socket_connect(ctx, &address))
		ctx->user_ip4 = address;
	return 1;
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip6[3];

	if (is_mapped(ctx) && socket_connect(ctx, &address))
		ctx->user_ip6[3] = address;
	return 1;
}

/*
 * sendmsg() of UDP with an address, also with one of IPv4 by a socket of IPv6: the socket keeps its
 * pod as long as that serves the port.
 */
SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	struct node_settings *s = get_settings();
	struct packet p = { .daddr = ctx->user_ip4, .dport = (__be16)ctx->user_port, .proto = PROTO_UDP };
	struct service_key vip = {};
	struct socket_key key;
	struct backend *former, pod = {};
	struct tuple to = {};

	if (!s || !s->ready || !is_vip(p.daddr) || !socket_of_host(ctx))
		return 1;
	vip.address = p.daddr;
	vip.port = p.dport;
	vip.proto = p.proto;
	key = socket_key_of(ctx, p.proto, p.daddr, p.dport);
	former = bpf_map_lookup_elem(&socket_backends, &key);
	if (former && socket_pod_serves(&vip, former)) {
		to.daddr = former->address;
		to.dport = former->port;
	} else {
		if (!socket_pick(s, &p, bpf_get_prandom_u32(), &to))
			return 1;
		pod.address = to.daddr;
		pod.port = to.dport;
		bpf_map_update_elem(&socket_backends, &key, &pod, BPF_ANY);
		socket_remember(ctx, &p, &to);
	}
	ctx->user_ip4 = to.daddr;
	ctx->user_port = to.dport;
	return 1;
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip4;

	if (socket_name(ctx, &address))
		ctx->user_ip4 = address;
	return 1;
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip6[3];

	if (is_mapped(ctx) && socket_name(ctx, &address))
		ctx->user_ip6[3] = address;
	return 1;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip4;

	if (socket_name(ctx, &address))
		ctx->user_ip4 = address;
	return 1;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	__be32 address = ctx->user_ip6[3];

	if (is_mapped(ctx) && socket_name(ctx, &address))
		ctx->user_ip6[3] = address;
	return 1;
}
