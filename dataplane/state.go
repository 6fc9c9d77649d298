// Package dataplane holds the desired state of the kernel as plain values: State is the content of
// the maps, Diff the steps from one State to another. It is pure and imports the standard library
// only. Package control/node builds a State from API objects; package loader writes it to the
// kernel and reads it back.
package dataplane

import (
	"net/netip"
	"slices"
	"strconv"
)

// Sizes that the kernel side is built for (bpf/types.h, bpf/maps.h).
const (
	MaxGateways = 16  // of one cluster
	MaxBlocks   = 252 // of one egress IP on one node
	MaxTunnels  = 4   // to one remote gateway
	MaxClusters = 1024
	RTTBuckets  = 24 // of a path's histogram
	BlockPorts  = 256
	OverlayPort = 4800 // UDP, of the overlay inside a cluster
	MaxSources  = 4096 // local addresses of a node
	MaxTargets  = 128  // clusters that serve a port of a ClusterSetIP
	VIPSlots    = 509  // of a port of a ClusterSetIP
)

// DefaultPinPath is the directory in which maps and links are pinned.
const DefaultPinPath = "/sys/fs/bpf/pelago"

// State is the desired content of every map that user space writes. The zero value is "nothing".
// All addresses are IPv4.
type State struct {
	Settings Settings
	// Routes maps a prefix to the index of its cluster: the prefixes of remote clusters, and this
	// one's global range (hairpin).
	Routes map[netip.Prefix]uint16
	// Nodes of this cluster by index, this one included.
	Nodes map[uint16]Hop
	// Gateways of this cluster by node index, sorted; all of them are active, unless
	// Settings.Single.
	Gateways []uint16
	// Clusters are the remote clusters by index.
	Clusters map[uint16][]RemoteGateway
	// Peers are the outer addresses from which overlay and cable packets are taken.
	Peers map[netip.Addr]Peer
	// Sources are the local addresses: those of pods and of the node, which may open flows, and of
	// endpoints outside the cluster.
	Sources map[netip.Addr]Source
	// Externals are the prefixes of hosts outside the cluster, and of its ClusterIPs where they are
	// routed (gateways only). An address in Sources takes precedence.
	Externals map[netip.Prefix]Source
	// Endpoints are the devices of local pods that get programs, so that packets may bypass the
	// node's stack or go to a ClusterSetIP.
	Endpoints map[netip.Addr]Endpoint
	// Egresses are the blocks in which this node opens flows, by egress IP: first ports, sorted.
	Egresses map[netip.Addr][]uint16
	// Globals are this cluster's global addresses.
	Globals map[netip.Addr]Global
	// Audiences are the clusters that may open flows to a restricted global address.
	Audiences map[netip.Addr]ClusterSet
	// Blocks leads from a port block to the index of its node (gateways only).
	Blocks map[BlockKey]uint16
	// Services are the exported ports, and those of ClusterSetIPs that this cluster serves
	// (ServeVIP).
	Services map[ServiceKey]Service
	// VIPPods are the ports of the backends in Services that serve ClusterSetIPs or exported UDP
	// ports; 0: it serves at several. Their flows are compared with it.
	VIPPods map[VIPPod]uint16
	// VIPRange is the range of ClusterSetIPs, VIPs are those in use, by port.
	VIPRange netip.Prefix
	VIPs     map[ServiceKey]VIP
	// Hairpins are the global IPs of this cluster's services among the targets of VIPs, by
	// ClusterIP. Sources without an entry in Endpoints reach them there.
	Hairpins map[netip.Addr]netip.Addr
}

// Settings describes this node.
type Settings struct {
	Address netip.Addr // on the overlay
	// on the cable: Address with the vxlan wire, else the node's fabric address
	CableAddress netip.Addr
	Node         uint16 // index
	Cluster      uint16 // index
	Gateway      bool
	MSS          uint16 // TCP MSS that fits into every wire; 0: not clamped
	Overlay      Tokens
	Cable        Tokens
	CablePort    uint16 // UDP; 0: no vxlan cable on this node
	Edge         uint32 // interface index of pelago0
	Generation   uint32
	Ready        bool
	Single       bool // all flows take one gateway of a cluster while it is good (First)
	Leaving      bool // a gateway being drained: peers use others, it keeps switching
}

// Tokens are the current and the previous secret of a wire, 24 bits each; 0 means none.
type Tokens struct {
	Current, Old uint32
}

// Hop is how an outer packet gets to a node or gateway.
type Hop struct {
	Address netip.Addr
	Next    netip.Addr // next hop on the uplink; Address itself if on-link; invalid: the uplink has no Ethernet header
	Ifindex uint32     // the uplink; 0: an encrypted wire, see RemoteGateway.Tunnels
}

// RemoteGateway is a gateway of a remote cluster.
type RemoteGateway struct {
	Hop     Hop
	Node    uint16   // index in its own cluster
	Port    uint16   // UDP port of its cable
	Tunnels []uint32 // encrypted wire: the devices that lead to it, at most MaxTunnels
}

// Paths returns the peers whose liveness the node tracks, by outer address; true: it probes them.
// Every node probes the gateways of its cluster, every gateway those of the other clusters;
// gateways listen for the probes of all nodes as well.
func (s State) Paths() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	if s.Settings.Gateway {
		for _, hop := range s.Nodes {
			out[hop.Address] = false
		}
		for _, gateways := range s.Clusters {
			for _, g := range gateways {
				out[g.Hop.Address] = true
			}
		}
	}
	for _, index := range s.Gateways {
		if hop, ok := s.Nodes[index]; ok && index != s.Settings.Node {
			out[hop.Address] = true
		}
	}
	return out
}

// PeerKind is the wire on which a peer may send.
type PeerKind uint8

// Kinds of peers.
const (
	PeerNode    PeerKind = 1 // a node of this cluster, on the overlay
	PeerGateway PeerKind = 2 // a gateway of a remote cluster, on the cable
)

// Peer is who sends from an outer address.
type Peer struct {
	Kind    PeerKind
	Cluster uint16 // PeerGateway: index of its cluster
	Node    uint16 // index in its cluster
}

// Source is what a local address may use.
type Source struct {
	Egress  netip.Addr // egress IP; invalid: none
	Own     netip.Addr // global IP of a headless pod, used 1:1; invalid: none
	Ifindex uint32     // device towards the pod; 0: not checked
	Host    bool       // an address of the node itself
	// External: hosts outside the cluster. Ifindex is the device that leads to them; their packets
	// must come from it.
	External bool
	// Routed: other clusters may send to the prefix.
	Routed bool
	// Mapped: its UDP has endpoint-independent mappings (RFC 4787 REQ-1). All sources with one
	// egress IP have the same value. Open: accepted clusters may send to these mappings unsolicited
	// (REQ-8).
	Mapped, Open bool
}

// Source returns what a local address may use: its entry in Sources, else that of the longest
// prefix of Externals.
func (s State) Source(a netip.Addr) (src Source, ok bool) {
	if src, ok = s.Sources[a]; ok {
		return src, true
	}
	best := -1
	for p, e := range s.Externals {
		if p.Contains(a) && p.Bits() > best {
			src, best = e, p.Bits()
		}
	}
	return src, best >= 0
}

// Mapped are the egress IPs whose sources have mappings.
func (s State) Mapped() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, src := range s.Sources {
		if src.Mapped {
			out[src.Egress] = true
		}
	}
	return out
}

// Masqueraded returns the destinations outside the cluster, sorted, and the ranges of ClusterIPs
// that are routed. Packets forwarded from pelago0 to either get an address of the node as source,
// so that replies come back to the node that has the flow.
func (s State) Masqueraded() (beside, clusterIPs []netip.Prefix) {
	var all []netip.Prefix
	for p, e := range s.Externals {
		switch {
		case e.Routed && e.External:
			all = append(all, p)
		case e.Routed:
			clusterIPs = append(clusterIPs, p)
		}
	}
	for a, e := range s.Sources {
		if e.External {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	slices.SortFunc(all, comparePrefix)
	slices.SortFunc(clusterIPs, comparePrefix)
	for _, p := range all { // of two that overlap the larger one comes first
		if n := len(beside); n == 0 || !beside[n-1].Overlaps(p) {
			beside = append(beside, p)
		}
	}
	return beside, clusterIPs
}

// Datapath is the way of packets between the local pods and the overlay.
type Datapath uint8

// Datapaths.
const (
	Strict Datapath = 0 // all packets pass through the node's stack
	Hybrid Datapath = 1 // packets of established connections bypass it, except one now and then
	Fast   Datapath = 2 // all packets bypass it, conntrack and policies included
)

// Datapaths by name.
var datapaths = []string{"strict", "hybrid", "fast"}

func (d Datapath) String() string {
	if int(d) < len(datapaths) {
		return datapaths[d]
	}
	return strconv.Itoa(int(d))
}

// Endpoint is a pod's own device.
type Endpoint struct {
	Ifindex  uint32  // the node's end of the veth pair
	MAC      [6]byte // of the pod's end
	Datapath Datapath
}

// GlobalKind is the kind of a global address.
type GlobalKind uint8

// Kinds of global addresses.
const (
	GlobalEgress  GlobalKind = 1
	GlobalService GlobalKind = 2
	GlobalPod     GlobalKind = 3
	// GlobalExternal is an endpoint outside the cluster; the gateway that receives a new flow is
	// its edge.
	GlobalExternal GlobalKind = 4
)

// Global is one of this cluster's global addresses.
type Global struct {
	Kind GlobalKind
	Node uint16 // GlobalPod: index of the pod's node
	// GlobalPod on this node: the pod; GlobalExternal on a gateway: the endpoint; else invalid
	Pod netip.Addr
	// Restricted: only the clusters of State.Audiences open flows to it.
	Restricted bool
}

// ClusterSet is a set of cluster indexes.
type ClusterSet [MaxClusters / 64]uint64

// Add adds a cluster.
func (c *ClusterSet) Add(cluster uint16) { c[int(cluster)/64%len(c)] |= 1 << (cluster % 64) }

// Has reports whether a cluster is in the set.
func (c ClusterSet) Has(cluster uint16) bool { return c[int(cluster)/64%len(c)]>>(cluster%64)&1 != 0 }

// BlockKey names a port block.
type BlockKey struct {
	Address netip.Addr
	First   uint16 // first port
}

// ServiceKey names an exported port, or one of a ClusterSetIP.
type ServiceKey struct {
	Address  netip.Addr
	Port     uint16
	Protocol uint8 // IANA number: 6 TCP, 17 UDP
}

// Service is an exported port.
type Service struct {
	// Backends are the ready pods on this node and, on a gateway, the ready endpoints outside the
	// cluster, sorted. Of a ClusterSetIP: those of the cluster.
	Backends []netip.AddrPort
	// Table leads from a slot to a node index (gateways only); see Maglev.
	Table []uint16
	// Affinity is the time for which a client keeps its backend, in seconds; 0: none.
	Affinity uint32
}

// VIP is a port of a ClusterSetIP (KEP-1645).
type VIP struct {
	// Targets are the clusters that serve it, at most MaxTargets, sorted by cluster.
	Targets []VIPTarget
	// Slots maps a slot to a position in Targets, in proportion to the weights; empty: no target
	// has a weight. See VIPTable.
	Slots []uint8
	// Affinity is the time for which a client keeps its cluster, in seconds; 0: none.
	Affinity uint32
}

// VIPPod is a ready pod of this cluster that serves a port of a ClusterSetIP, or a ready backend on
// this node of an exported UDP port.
type VIPPod struct {
	VIP ServiceKey
	Pod netip.Addr
}

// ServeVIP has pods of this cluster serve a port of a ClusterSetIP, for clients with an entry in
// Endpoints. Without any, these take the ClusterIP of the target.
func (s *State) ServeVIP(port ServiceKey, v Service) {
	if len(v.Backends) > 0 {
		s.enter(port, v)
		s.list(port, v)
	}
}

// Serve enters an exported port.
func (s *State) Serve(port ServiceKey, v Service) {
	s.enter(port, v)
	if port.Protocol == ProtocolUDP {
		s.list(port, v)
	}
}

func (s *State) enter(port ServiceKey, v Service) {
	if s.Services == nil {
		s.Services = map[ServiceKey]Service{}
	}
	s.Services[port] = v
}

// list enters the backends of a port in VIPPods.
func (s *State) list(port ServiceKey, v Service) {
	if s.VIPPods == nil {
		s.VIPPods = map[VIPPod]uint16{}
	}
	for i, b := range v.Backends { // sorted
		if i > 0 && v.Backends[i-1].Addr() == b.Addr() {
			s.VIPPods[VIPPod{port, b.Addr()}] = 0
		} else {
			s.VIPPods[VIPPod{port, b.Addr()}] = b.Port()
		}
	}
}

// VIPTarget is a cluster that serves a port of a ClusterSetIP. This cluster's own is at its
// ClusterIP (see ServeVIP, State.Hairpins), a remote one at an address that State.Routes leads to.
type VIPTarget struct {
	Cluster uint16 // index
	Address netip.Addr
}

// Backings are the ClusterIPs of this cluster that serve a ClusterSetIP, with their Hairpins.
func (s State) Backings() map[netip.Addr]netip.Addr {
	out := map[netip.Addr]netip.Addr{}
	for _, v := range s.VIPs {
		for _, t := range v.Targets {
			if t.Cluster == s.Settings.Cluster {
				out[t.Address] = s.Hairpins[t.Address]
			}
		}
	}
	return out
}
