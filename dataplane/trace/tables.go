package trace

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Tables are what the programs of a node decide by.
type Tables struct {
	State dataplane.State
	Paths map[netip.Addr]liveness.Path
	// Unreachable are the remote clusters of which no gateway answers this one.
	Unreachable dataplane.ClusterSet
	// Lossy are those that it reaches only over lossy paths; LossyAt is the same for the other
	// gateways of this cluster.
	Lossy   dataplane.ClusterSet
	LossyAt map[netip.Addr]dataplane.ClusterSet
	// Confirmed is how long ago the daemon last confirmed the tables.
	Confirmed time.Duration
	// Size is that of the traced packet, bytes; MTU is that of devices, by index. What is unknown
	// is not checked.
	Size int
	MTU  map[uint32]int
	// PortsInUse counts the client flows by source and destination after translation, without the
	// source's port.
	PortsInUse map[Packet]int
	// Mappings maps a local address and UDP port to those that other clusters see.
	Mappings map[netip.AddrPort]netip.AddrPort

	trail *trail // of the step that is made; nil: nothing is recorded
}

func (t Tables) pathRank(peer netip.Addr) bpf.PelagoRank {
	if p, ok := t.Paths[peer]; ok {
		return p.Rank()
	}
	return bpf.PelagoRankRANK_GOOD
}

// gatewayRank is lb_gateway_rank() of bpf/lb.h.
func (t Tables) gatewayRank(node, cluster uint16) bpf.PelagoRank {
	if node == t.State.Settings.Node {
		if t.State.Settings.Leaving {
			return bpf.PelagoRankRANK_GONE
		}
		if t.Unreachable.Has(cluster) {
			return bpf.PelagoRankRANK_BAD
		}
		if t.Lossy.Has(cluster) {
			return bpf.PelagoRankRANK_LOSSY
		}
		return bpf.PelagoRankRANK_GOOD
	}
	hop, ok := t.State.Nodes[node]
	if !ok {
		return bpf.PelagoRankRANK_NONE
	}
	r := t.pathRank(hop.Address)
	if p, ok := t.Paths[hop.Address]; ok && r < bpf.PelagoRankRANK_BAD {
		if !p.Reaches(cluster) {
			return bpf.PelagoRankRANK_BAD
		}
		if t.LossyAt[hop.Address].Has(cluster) {
			return max(r, bpf.PelagoRankRANK_LOSSY)
		}
	}
	return r
}

// pick returns the candidate with the highest weight if its rank is good, else that with the best
// rank. doubtful: no rank is better than bad.
func pick[T any](candidates []T, weight func(T) uint32, quality func(T) bpf.PelagoRank) (picked T, doubtful, ok bool) {
	if len(candidates) == 0 {
		return picked, false, false
	}
	heavier := func(a, b T) int { return cmp.Compare(weight(b), weight(a)) }
	sorted := slices.SortedStableFunc(slices.Values(candidates), heavier)
	if quality(sorted[0]) == bpf.PelagoRankRANK_GOOD {
		return sorted[0], false, true
	}
	picked = slices.MinFunc(sorted, func(a, b T) int { return cmp.Compare(quality(a), quality(b)) })
	return picked, quality(picked) >= bpf.PelagoRankRANK_BAD, true
}

func (t Tables) gatewayHash(hash uint32) uint32 {
	if t.State.Settings.Single {
		return 0
	}
	return hash
}

// pickGateway is lb_pick_gateway() of bpf/lb.h.
func (t Tables) pickGateway(hash uint32, cluster, except uint16) (node uint16, doubtful bool) {
	others := slices.DeleteFunc(slices.Clone(t.State.Gateways), func(n uint16) bool { return n == except })
	node, doubtful, _ = pick(others,
		func(n uint16) uint32 { return dataplane.Mix(hash, uint32(n)) | 1 },
		func(n uint16) bpf.PelagoRank { return t.gatewayRank(n, cluster) })
	t.note("gateways", 0, "nodes %v; picked for cluster %d: %d", t.State.Gateways, cluster, node)
	return node, doubtful
}

func (t Tables) toNode(index uint16) *Header {
	hop, ok := t.State.Nodes[index]
	if !ok {
		if index != 0 {
			t.note("nodes", index, "none")
		}
		return nil
	}
	s := t.State.Settings
	t.note("nodes", index, "%s, path %s", hop.Address, t.pathRank(hop.Address))
	t.leads(Place{Cluster: s.Cluster, Node: index}, t.pathRank(hop.Address), hop.Ifindex)
	return &Header{Source: s.Address, Destination: hop.Address, Port: dataplane.OverlayPort, Token: s.Overlay.Current}
}

// toCluster is encap_to_cluster() of bpf/encap.h; nil: no gateway is known, or no tunnel leads to
// it.
func (t Tables) toCluster(cluster uint16, hash uint32) (h *Header, doubtful bool) {
	hash = t.gatewayHash(hash)
	if hash != 0 {
		hash ^= uint32(bpf.PelagoSeedSEED_REMOTE)
	}
	g, doubtful, ok := pick(t.State.Clusters[cluster],
		func(g dataplane.RemoteGateway) uint32 { return dataplane.Mix(hash, uint32(g.Node)) | 1 },
		func(g dataplane.RemoteGateway) bpf.PelagoRank { return t.pathRank(g.Hop.Address) })
	if !ok || g.Hop.Ifindex == 0 && len(g.Tunnels) == 0 {
		t.note("clusters", cluster, "%d gateways, none with a wire", len(t.State.Clusters[cluster]))
		return nil, doubtful
	}
	s := t.State.Settings
	ifindex := g.Hop.Ifindex
	if ifindex == 0 {
		ifindex = g.Tunnels[0] // the MTU of all is the same
	}
	t.note("clusters", cluster, "%d gateways; picked: node %d at %s, path %s", len(t.State.Clusters[cluster]), g.Node, g.Hop.Address, t.pathRank(g.Hop.Address))
	t.leads(Place{Cluster: cluster, Node: g.Node}, t.pathRank(g.Hop.Address), ifindex)
	return &Header{Source: s.CableAddress, Destination: g.Hop.Address, Port: g.Port, Cable: true, Token: s.Cable.Current}, doubtful
}

// route returns the longest prefix that contains an address; ok reports whether one does.
func (t Tables) route(a netip.Addr) (cluster uint16, ok bool) {
	best := netip.Prefix{}
	for p, c := range t.State.Routes {
		if p.Contains(a) && p.Bits() > best.Bits() {
			best, cluster = p, c
		}
	}
	if !best.IsValid() {
		t.note("routes", a, "none")
		return 0, false
	}
	t.note("routes", best, "cluster %d", cluster)
	return cluster, true
}

// atClusterIP is the address of this cluster's service for a client with a device in Endpoints (see
// ownPod), atGlobalIP for others; an invalid one: it may not be picked.
func atClusterIP(clusterIP netip.Addr) netip.Addr { return clusterIP }

func (t Tables) atGlobalIP(clusterIP netip.Addr) netip.Addr { return t.State.Hairpins[clusterIP] }

// pickTarget is vip_pick() of bpf/vip.h for a client without a former cluster. own returns the
// address of this cluster's service.
func (t Tables) pickTarget(p Packet, own func(clusterIP netip.Addr) netip.Addr) (to dataplane.VIPTarget, ok bool) {
	v := t.State.VIPs[p.service()]
	t.note("vips", p.service().Describe(), "%s", v.Describe())
	hash := p.hash()
	if v.Affinity > 0 {
		hash = dataplane.Mix(be32(p.Source.Addr()), be32(p.Destination.Addr()))
	}
	var positions []int
	for i := range uint32(bpf.PelagoVipSlotVIP_TRIES) {
		if len(v.Slots) > 0 {
			positions = append(positions, int(v.Slots[(hash+i*uint32(bpf.PelagoSlotStepSTEP_SLOT))%dataplane.VIPSlots]))
		}
	}
	for i := range uint32(len(v.Targets)) {
		positions = append(positions, int((hash+i)%uint32(len(v.Targets))))
	}
	for _, n := range positions {
		if n >= len(v.Targets) {
			continue
		}
		target := v.Targets[n]
		if target.Cluster == t.State.Settings.Cluster {
			if target.Address = own(target.Address); target.Address.IsValid() {
				return target, true
			}
			continue
		}
		if gateway, doubtful := t.pickGateway(t.gatewayHash(hash), target.Cluster, 0); gateway != 0 && !doubtful {
			return target, true
		}
		if !ok {
			to, ok = target, true
		}
	}
	return to, ok
}

// ownPod is vip_pick_pod() of bpf/vip.h for a client without a former pod: the pod of this cluster
// for a packet to a ClusterSetIP, else clusterIP.
func (t Tables) ownPod(p Packet, clusterIP netip.AddrPort) netip.AddrPort {
	s := t.State.Services[p.service()]
	if len(s.Backends) == 0 {
		return clusterIP
	}
	t.note("services", p.service().Describe(), "%d pods of this cluster", len(s.Backends))
	return p.backend(s, 0)
}

// pickNode is lb_pick_node() of bpf/lb.h; 0: none.
func pickNode(s dataplane.Service, hash uint32, except uint16) uint16 {
	for i := uint32(0); i < uint32(bpf.PelagoSlotTriesNODE_TRIES) && len(s.Table) > 0; i++ {
		if node := s.Table[(hash+i*uint32(bpf.PelagoSlotStepSTEP_SLOT))%uint32(len(s.Table))]; node != 0 && node != except {
			return node
		}
	}
	return 0
}

// pickLiveNode is lb_pick_live_node() of bpf/lb.h; 0: none.
func (t Tables) pickLiveNode(s dataplane.Service, hash uint32, except uint16) uint16 {
	for i := uint32(0); i < uint32(bpf.PelagoSlotTriesLIVE_TRIES) && len(s.Table) > 0; i++ {
		node := s.Table[(hash+i*uint32(bpf.PelagoSlotStepSTEP_SLOT))%uint32(len(s.Table))]
		hop, ok := t.State.Nodes[node]
		if node != 0 && node != except && (node == t.State.Settings.Node || ok && !t.Paths[hop.Address].Dead()) {
			return node
		}
	}
	return 0
}

// mapping is what other clusters see of the UDP port of a mapped source, if there is a mapping:
// mapping_valid() of bpf/mapping.h.
func (t Tables) mapping(src dataplane.Source, local netip.AddrPort) (shown netip.AddrPort, ok bool) {
	shown, ok = t.Mappings[local]
	ok = ok && src.Mapped && shown.Addr() == src.Egress && slices.Contains(t.State.Egresses[src.Egress], shown.Port()&^(dataplane.BlockPorts-1))
	if ok {
		t.note("flows", local, "a mapping to %s", shown)
	}
	return shown, ok
}

// mappedIn is the local address and port behind an egress IP and port that accepts packets of any
// address: mapping_in() of bpf/mapping.h.
func (t Tables) mappedIn(p Packet) (netip.AddrPort, bool) {
	for local, shown := range t.Mappings {
		if src, ok := t.State.Source(local.Addr()); ok && src.Open && shown == p.Destination && p.Protocol == dataplane.ProtocolUDP {
			if _, ok := t.mapping(src, local); ok {
				return local, true
			}
		}
	}
	return netip.AddrPort{}, false
}
