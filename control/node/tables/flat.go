package tables

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/dataplane"
)

// Without globalnet, only a node's own source address and a service's address are translated. The
// tables are the same: the global IP of a pod is its own address, that of a node its fabric
// address, that of a service its ClusterIP. Flows are still tracked: replies must come from the
// address that was contacted, and an edge tells the remote edge which node has a service's flow.

// flat fills the tables of a cluster without globalnet.
func (b *builder) flat() {
	b.flatNodes()
	b.flatPods()
	b.externals()
	b.flatServices()
}

// flatNodes maps the source addresses of the node's own processes to its fabric address, because
// node addresses are not routed from other clusters. It also maps fabric addresses to nodes: on a
// gateway those of all nodes, on other nodes only their own.
func (b *builder) flatNodes() {
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
			b.hostSources(dataplane.Source{Own: fabric, Host: true})
		}
		s.Globals[fabric] = v
	}
}

// flatPods enters each pod as its own global IP: on its node with its device, on a gateway with its
// node.
func (b *builder) flatPods() {
	s := &b.out.State
	if s.Settings.Gateway {
		for address, name := range b.objs.PodNodes {
			if index := b.index[name]; index != 0 && index != b.self {
				s.Globals[address] = dataplane.Global{Kind: dataplane.GlobalPod, Node: index}
			}
		}
	}
	b.localPods(func(p *corev1.Pod, address netip.Addr) dataplane.Source {
		if ranges := b.objs.Config.PodCIDRs; len(ranges) > 0 && !slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(address) }) {
			b.out.Outside = append(b.out.Outside, fmt.Sprintf("pod %s/%s at %s", p.Namespace, p.Name, address))
			if _, ok := b.host.Devices[address]; ok { // else localPods reports it
				b.leaveOut(p, false, fmt.Sprintf("its address %s is outside of the registered pod ranges %s: join again with --clustercidr "+
					"and ranges that contain the present ones and this address", address, ranges))
			}
		}
		s.Globals[address] = dataplane.Global{Kind: dataplane.GlobalPod, Node: b.self, Pod: address}
		return dataplane.Source{Own: address}
	})
}

// flatServices exposes exported Services under their ClusterIPs. Packets from other clusters to the
// ClusterIP of one that is not exported are dropped at the gateway (drop-not-own).
func (b *builder) flatServices() {
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
			continue // the agent reports it on the export
		}
		for _, text := range service.Spec.ClusterIPs {
			if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() { // "None" is none
				b.expose(name, service, ip)
			}
		}
	}
}
