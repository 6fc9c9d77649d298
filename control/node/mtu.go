package node

import (
	"fmt"
	"net/netip"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
)

// defaultMTU is the Ethernet MTU, taken until a peer is known.
const defaultMTU = 1500

// underlayMTU is the smallest of the uplinks' MTUs. Other nodes' and clusters' underlays are taken to be like this node's; where
// they are not, large probes find it out.
func underlayMTU(hops map[netip.Addr]dataplane.Hop) (int, error) {
	mtu := 0
	seen := map[uint32]bool{}
	for _, h := range hops {
		if seen[h.Ifindex] {
			continue
		}
		seen[h.Ifindex] = true
		m, err := netdev.UplinkMTU(h.Ifindex)
		if err != nil {
			return 0, err
		}
		if mtu == 0 || m < mtu {
			mtu = m
		}
	}
	if mtu == 0 {
		mtu = defaultMTU
	}
	return mtu, nil
}

// limited is the MTU of pelago0, at most mtu, with which packets fit through the wire of every gateway that they may meet: of
// this cluster and of the others.
func limited(objs Objects, mtu int) int {
	if !encrypted(objs.Config) {
		return mtu
	}
	for i := range objs.NodeIndexes {
		if s := &objs.NodeIndexes[i].Status; s.Gateway {
			mtu = cable.Limit(s.Wire, mtu)
		}
	}
	for p := range routedPeers(objs.Peers) {
		for _, g := range p.Spec.Gateways {
			mtu = cable.Limit(g.Identity, mtu)
		}
	}
	return mtu
}

// cableLimits are the clusters on the way to which this gateway's large probes were lost, with the size that passes to all of
// their gateways. Until one of these has answered a large probe, what was found before the daemon began anew holds.
func cableLimits(objs Objects, sizes map[netip.Addr]probe.Size) map[string]int32 {
	var out map[string]int32
	known := map[string]bool{}
	for p, g := range remoteGateways(objs.Peers) {
		a, err := cableAddress(objs.Config, g)
		size, ok := sizes[a]
		if err != nil || !ok {
			continue
		}
		known[p.Name] = true
		if size.BlackHole() {
			out = lower(out, p.Name, int32(size.Passes))
		}
	}
	before := ownIndex(objs).Status.PathMTU
	for p := range routedPeers(objs.Peers) {
		if mtu, ok := before[p.Name]; ok && !known[p.Name] {
			out = lower(out, p.Name, mtu)
		}
	}
	return out
}

// limits are the remote clusters, by index, on the way to which packets are lost that pelago0 lets through: by this node's own
// probes, to the gateways of its cluster and, at a gateway, to the remote ones, and by what the other gateways say. A packet may
// take any of them, so the smallest holds.
func limits(objs Objects, sizes map[netip.Addr]probe.Size) map[uint16]int {
	var out map[uint16]int
	own := cableLimits(objs, sizes)
	others := map[string]*pelagov1alpha1.NodeIndex{} // gateways
	for i := range objs.NodeIndexes {
		if n := &objs.NodeIndexes[i]; n.Name != objs.Name && n.Status.Gateway {
			others[n.Name] = n
		}
	}
	inside := 0 // what passes to all of them; 0: whatever they are sent
	for i := range objs.Nodes {
		if n := &objs.Nodes[i]; others[n.Name] != nil {
			address, _ := internalIP(n) // of one without an address nothing is known
			if size := sizes[address]; size.BlackHole() && (inside == 0 || size.Passes < inside) {
				inside = size.Passes
			}
		}
	}
	for p := range routedPeers(objs.Peers) {
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

// lower notes mtu where nothing is noted, or something larger.
func lower[K string | uint16, V int | int32](m map[K]V, key K, mtu V) map[K]V {
	if m == nil {
		m = map[K]V{}
	}
	if old, ok := m[key]; !ok || mtu < old {
		m[key] = mtu
	}
	return m
}

// smallest is the size of packets that pass to every remote cluster.
func smallest(host Host) int {
	mtu := host.MTU
	for _, limit := range host.Limits {
		mtu = min(mtu, limit)
	}
	return mtu
}

// lost says in words that large packets vanish on a way, and what to do; empty if they do not. overhead is by how many bytes a pod's
// packet is longer on the uplinks.
func lost(size probe.Size, overhead int) string {
	if !size.BlackHole() {
		return ""
	}
	return fmt.Sprintf("packets of more than %d bytes are lost on the way (with headers %d; the uplinks allow %d), so pods are told to send none: "+
		"let packets of %d bytes pass on every link between the nodes, or set the MTU of the uplinks to %d",
		size.Passes, size.Passes+overhead, size.Full+overhead, size.Full+overhead, size.Passes+overhead)
}
