package tables

import (
	"net/netip"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// LimitMTU returns the MTU of pelago0, at most mtu, with which packets fit through the wires of all
// gateways of this cluster and the others.
func LimitMTU(objs Objects, mtu int) int {
	if !Encrypted(objs.Config) {
		return mtu
	}
	for i := range objs.NodeIndexes {
		if s := &objs.NodeIndexes[i].Status; s.Gateway {
			mtu = cable.Limit(s.Wire, mtu)
		}
	}
	for p := range RoutedPeers(objs.Peers) {
		for _, g := range p.Spec.Gateways {
			mtu = cable.Limit(g.Identity, mtu)
		}
	}
	return mtu
}

// CableLimits returns, for each remote cluster towards which large probes are lost, the largest
// packet in bytes that reaches all its gateways from this one. Until a gateway of a cluster has
// answered a large probe, the previous process's value is used.
func CableLimits(objs Objects, sizes map[netip.Addr]liveness.Size) map[string]int32 {
	var out map[string]int32
	known := map[string]bool{}
	for p, g := range RemoteGateways(objs.Peers) {
		a, err := CableAddress(objs.Config, g)
		size, ok := sizes[a]
		if err != nil || !ok {
			continue
		}
		known[p.Name] = true
		if size.BlackHole() {
			out = lower(out, p.Name, int32(size.Passes))
		}
	}
	before := OwnIndex(objs).Status.PathMTU
	for p := range RoutedPeers(objs.Peers) {
		if mtu, ok := before[p.Name]; ok && !known[p.Name] {
			out = lower(out, p.Name, mtu)
		}
	}
	return out
}

// RouteLimits returns, by index of a remote cluster, the largest packet in bytes if it is smaller
// than the MTU of pelago0. It combines this node's probes to the gateways of its cluster and, at a
// gateway, to the remote ones, with what the other gateways report in their NodeIndexes. A packet
// may take any of these paths, so the smallest value counts.
func RouteLimits(objs Objects, sizes map[netip.Addr]liveness.Size) map[uint16]int {
	var out map[uint16]int
	own := CableLimits(objs, sizes)
	others := map[string]*pelagov1alpha1.NodeIndex{} // gateways
	for i := range objs.NodeIndexes {
		if n := &objs.NodeIndexes[i]; n.Name != objs.Name && n.Status.Gateway {
			others[n.Name] = n
		}
	}
	inside := 0 // the largest packet that reaches all of them; 0: no limit
	for i := range objs.Nodes {
		if n := &objs.Nodes[i]; others[n.Name] != nil {
			address, _ := InternalIP(n) // of one without an address nothing is known
			if size := sizes[address]; size.BlackHole() && (inside == 0 || size.Passes < inside) {
				inside = size.Passes
			}
		}
	}
	for p := range RoutedPeers(objs.Peers) {
		cluster := uint16(p.Spec.ClusterIndex)
		if inside > 0 {
			out = lower(out, cluster, inside)
		}
		if mtu, ok := own[p.Name]; ok {
			out = lower(out, cluster, int(mtu))
		}
		for _, n := range others {
			if mtu, ok := n.Status.PathMTU[p.Name]; ok {
				out = lower(out, cluster, int(mtu))
			}
		}
	}
	return out
}

// lower sets m[key] to mtu if it is absent or larger.
func lower[K string | uint16, V int | int32](m map[K]V, key K, mtu V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	if old, ok := m[key]; !ok || mtu < old {
		m[key] = mtu
	}
	return m
}

// smallest returns the largest packet in bytes that reaches every remote cluster.
func smallest(host Host) int {
	mtu := host.MTU
	for _, limit := range host.Limits {
		mtu = min(mtu, limit)
	}
	return mtu
}
