package tables

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// What the node needs to work is never routed to another cluster, whatever range a peer has: with
// its API server behind pelago0 a node would be lost, and could not even be notified that the range
// is gone. The agent refuses such a peer (control/agent/peering); this holds without it.

// maxNeeded bounds the needed addresses in one range. Each of them divides the range, into at most
// 31 parts; a range with more of them is not routed.
const maxNeeded = 64

// KubernetesService is the Service of the cluster's own API server.
var KubernetesService = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// APIServers are the addresses of the cluster's own API server, as it publishes them.
func APIServers(slices []discoveryv1.EndpointSlice) (out []netip.Addr) {
	for _, s := range slices {
		for _, e := range s.Endpoints {
			for _, text := range e.Addresses {
				if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
					out = append(out, a)
				}
			}
		}
	}
	return out
}

// needed returns the addresses that no range of a peer takes, sorted: API server, hub and resolvers
// (Host.Needed), nodes, and the next hops towards them.
func (b *builder) needed() []netip.Addr {
	out := slices.Concat(b.host.Needed, APIServers(b.objs.Slices[KubernetesService]))
	for i := range b.objs.Nodes {
		for _, a := range b.objs.Nodes[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
				out = append(out, ip)
			}
		}
	}
	for i := range b.objs.Nodes {
		if a, ok := InternalIP(&b.objs.Nodes[i]); ok && b.host.Hops[a].Next.IsValid() {
			out = append(out, b.host.Hops[a].Next)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// routable returns the parts of a peer's range without the addresses that this node needs, and
// without those of the peer's own gateways, which its cable is to reach. needed is sorted.
func (b *builder) routable(p *pelagov1alpha1.Peer, prefix netip.Prefix, needed []netip.Addr) []netip.Prefix {
	var inside []netip.Addr
	first, _ := slices.BinarySearchFunc(needed, prefix.Masked().Addr(), netip.Addr.Compare)
	for _, a := range needed[first:] {
		if !prefix.Contains(a) {
			break
		}
		inside = append(inside, a)
	}
	own := len(inside)
	for _, g := range p.Spec.Gateways {
		for _, text := range []string{g.Address, g.PrivateAddress, g.PublicAddress} {
			if a, err := netip.ParseAddr(text); err == nil && prefix.Contains(a) {
				inside = append(inside, a)
			}
		}
	}
	if own > 0 {
		b.problem("peer %s: range %s contains %s, which this node needs (API server, hub, resolver, node or next hop): not routed to the peer; "+
			"give that cluster other ranges, or use globalnet", p.Name, prefix, texts(inside[:own]))
	}
	if len(inside) > maxNeeded {
		b.problem("peer %s: range %s contains more than %d addresses that this node needs: it is not routed", p.Name, prefix, maxNeeded)
		return nil
	}
	return without(prefix, inside)
}

// without divides a range into the largest ranges that contain none of the addresses.
func without(p netip.Prefix, addresses []netip.Addr) []netip.Prefix {
	inside := slices.DeleteFunc(slices.Clone(addresses), func(a netip.Addr) bool { return !p.Contains(a) })
	switch {
	case len(inside) == 0:
		return []netip.Prefix{p}
	case p.IsSingleIP():
		return nil
	}
	lower := netip.PrefixFrom(p.Addr(), p.Bits()+1)
	half := p.Addr().As4()
	half[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper := netip.PrefixFrom(netip.AddrFrom4(half), p.Bits()+1)
	return append(without(lower, inside), without(upper, inside)...)
}

// maxTexts bounds the addresses that a message names.
const maxTexts = 8

func texts(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses[:min(len(addresses), maxTexts)] {
		out = append(out, a.String())
	}
	if len(addresses) > maxTexts {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}
