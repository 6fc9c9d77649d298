package node

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/dataplane"
)

// Without globalnet nothing is translated but a node's own source and a service's address. The same tables say so: a pod is
// its own global IP, used 1:1, a node's is its fabric address, a service's its ClusterIP. Flows are kept as ever: an answer
// must come from the address that was asked, and an edge tells the far one where a service's flow is.

// plain fills the tables of a cluster without globalnet.
func (b *builder) plain() {
	b.plainNodes()
	b.plainPods()
	b.plainServices()
}

// plainNodes gives the node's own processes its fabric address, because the node's own is not routed back from other
// clusters, and leads fabric addresses to their nodes: on a node its own, on a gateway all.
func (b *builder) plainNodes() {
	s := &b.out.State
	for name, index := range b.index {
		if index != b.self && !s.Settings.Gateway {
			continue
		}
		fabric, err := b.objs.Config.FabricAddress(s.Settings.Cluster, index)
		if err != nil {
			b.problem("node %s has no fabric address, so its own processes are not connected: %v", name, err)
			continue
		}
		v := dataplane.Global{Kind: dataplane.GlobalPod, Node: index}
		if index == b.self {
			v.Pod = s.Settings.Address
			for _, a := range append(slices.Clone(b.host.Addresses), s.Settings.Address) {
				if a.IsValid() {
					s.Sources[a] = dataplane.Source{Own: fabric, Host: true}
				}
			}
		}
		s.Globals[fabric] = v
	}
}

// plainPods makes each pod its own global IP: on its node with the way to it, on a gateway as an address of that node.
func (b *builder) plainPods() {
	s := &b.out.State
	if s.Settings.Gateway {
		for address, name := range b.objs.Places {
			if index := b.index[name]; index != 0 && index != b.self {
				s.Globals[address] = dataplane.Global{Kind: dataplane.GlobalPod, Node: index}
			}
		}
	}
	b.localPods(func(p *corev1.Pod, address netip.Addr) dataplane.Source {
		s.Globals[address] = dataplane.Global{Kind: dataplane.GlobalPod, Node: b.self, Pod: address}
		return dataplane.Source{Own: address}
	})
}

// plainServices exposes exported Services under their ClusterIPs. The ClusterIP of one that is not exported is no address of
// ours to other clusters: packets for it are dropped at the gateway (drop-not-own).
func (b *builder) plainServices() {
	names := make([]types.NamespacedName, 0, len(b.objs.Exports))
	for name := range b.objs.Exports {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	for _, name := range names {
		service := b.objs.Services[name]
		if service == nil {
			continue // the agent says so on the export
		}
		for _, text := range service.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() { // "None" is none
				b.expose(name, service, ip)
			}
		}
	}
}
