package tables

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
)

// builder collects a Result.
type builder struct {
	objs  Objects
	host  Host
	out   Result
	acks  map[types.UID]bool
	index map[string]uint16 // node name → index
	// clusters are the indexes of remote clusters by id.
	clusters map[string]uint16
	// prefixes are those that are routed to a remote cluster, by its id.
	prefixes map[string][]netip.Prefix
	// globals are the global IPs of services; nil: not collected yet.
	globals map[types.NamespacedName]netip.Addr
	self    uint16
	// audiences are the clusters that values of annotation pelago.io/export-to name; exports are
	// the exported services of pods.
	audiences map[string]dataplane.ClusterSet
	exports   map[types.NamespacedName][]types.NamespacedName
	// hosts are the node's own addresses in the sources, without the one by which others know it.
	hosts []netip.Addr
}

// Desired is the tables of this node. Nothing is routed (State.Routes is empty) until the node has
// an index.
func Desired(objs Objects, host Host) Result {
	host.Maglev.Begin()
	host.Slices.begin()
	b := &builder{objs: objs, host: host, acks: map[types.UID]bool{}, index: map[string]uint16{}, clusters: map[string]uint16{}, prefixes: map[string][]netip.Prefix{},
		audiences: map[string]dataplane.ClusterSet{}}
	b.out.Needed = host.Needed
	b.out.Owners, b.out.Datapath = map[netip.Addr]types.UID{}, host.Datapath
	b.out.State = dataplane.State{
		Settings: dataplane.Settings{
			Cluster: objs.Config.ClusterIndex, Overlay: host.Overlay, Cable: host.Cable, Edge: host.Edge,
			MSS: uint16(max(0, smallest(host)-40)), // IPv4 20 + TCP 20 (RFC 9293 3.7.1)
		},
		Routes: map[netip.Prefix]uint16{}, Nodes: map[uint16]dataplane.Hop{}, Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers: map[netip.Addr]dataplane.Peer{}, Sources: map[netip.Addr]dataplane.Source{},
		Endpoints: host.Endpoints, Egresses: map[netip.Addr][]uint16{}, Globals: map[netip.Addr]dataplane.Global{},
		Blocks: map[dataplane.BlockKey]uint16{}, Services: map[dataplane.ServiceKey]dataplane.Service{},
	}
	for _, n := range objs.NodeIndexes {
		b.index[n.Name] = uint16(n.Spec.Index)
	}
	b.self = b.index[objs.Name]
	if b.self == 0 {
		b.problem("node %s has no NodeIndex yet: the agent gives it one; is pelago-agent running?", objs.Name)
		return b.out
	}
	b.nodes()
	b.peers()
	if objs.Config.Globalnet() {
		for _, p := range objs.Config.GlobalCIDRs {
			b.out.State.Routes[p] = objs.Config.ClusterIndex // hairpin
		}
		b.sources()
		b.blocks()
		b.externals()
		b.ingress()
	} else {
		b.flat()
	}
	b.vips()
	b.limitSources()
	if b.out.Gateway {
		b.out.Wire, b.out.Rotation, b.out.PathMTU = host.Wire.Identity, host.Wire.Rotation, host.PathMTU
		for uid := range b.acks {
			b.out.Acks = append(b.out.Acks, string(uid))
		}
		slices.Sort(b.out.Acks)
	}
	b.out.State.Settings.Single = objs.Config.SingleGateway
	b.out.State.Settings.Ready = b.out.State.Settings.Address.IsValid()
	return b.out
}

// Placed reports whether this node has what its tables are made for: an index and an address.
func Placed(objs Objects) bool {
	_, ok := InternalIP(OwnNode(objs))
	return ok && OwnIndex(objs).Name != ""
}

// OuterAddresses lists the addresses whose next hops Host.Hops must have.
func OuterAddresses(objs Objects) []netip.Addr {
	var out []netip.Addr
	for i := range objs.Nodes {
		if a, ok := InternalIP(&objs.Nodes[i]); ok && objs.Nodes[i].Name != objs.Name {
			out = append(out, a)
		}
	}
	for i := range objs.Peers {
		for _, g := range objs.Peers[i].Spec.Gateways {
			if a, err := netip.ParseAddr(g.Address); err == nil {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

func (b *builder) problem(format string, args ...any) {
	b.out.Problems = append(b.out.Problems, fmt.Sprintf(format, args...))
}

// usable reports whether the programs can work on the device that leads to a peer.
func (b *builder) usable(hop dataplane.Hop, peer string) bool {
	if why, unusable := b.host.Unusable[hop.Ifindex]; unusable {
		b.unreached("node %s leaves out %s at %s: %s", b.objs.Name, peer, hop.Address, why)
		return false
	}
	for _, other := range b.host.Others[hop.Address] {
		if why, unusable := b.host.Unusable[other]; unusable {
			b.unreached("node %s drops what %s at %s sends by another of its paths: %s", b.objs.Name, peer, hop.Address, why)
		}
	}
	return true
}

func (b *builder) unreached(format string, args ...any) {
	b.problem(format, args...)
	b.out.Unreached = append(b.out.Unreached, b.out.Problems[len(b.out.Problems)-1])
}

func (b *builder) nodes() {
	s := &b.out.State
	serving := []uint16{}
	statuses := map[string]*pelagov1alpha1.NodeIndexStatus{}
	for i := range b.objs.NodeIndexes {
		statuses[b.objs.NodeIndexes[i].Name] = &b.objs.NodeIndexes[i].Status
	}
	wanted := WantedGateways(b.objs)
	for i := range b.objs.Nodes {
		n := &b.objs.Nodes[i]
		index, address, ok := b.index[n.Name], netip.Addr{}, false
		if address, ok = InternalIP(n); !ok {
			b.problem("node %s has no IPv4 InternalIP", n.Name)
			continue
		}
		if n.Name == b.objs.Name {
			s.Settings.Address, s.Settings.CableAddress, s.Settings.Node = address, address, index
			b.out.Gateway = wanted[n.Name]
			s.Settings.Gateway = b.out.Gateway || b.host.Draining
			// The tunnels of an earlier process have ended with it: flows return once those of this
			// one are connected.
			s.Settings.Leaving = !b.out.Gateway && b.host.Draining || b.out.Gateway && b.host.Wire.Fleeting && !b.host.Settled
			switch {
			case s.Settings.Gateway && Encrypted(b.objs.Config):
				// If none exists, the wire has reported the problem.
				s.Settings.CableAddress, _ = b.objs.Config.FabricAddress(b.objs.Config.ClusterIndex, index)
			case s.Settings.Gateway:
				s.Settings.CablePort = b.objs.Config.CablePort
			}
			if b.out.Gateway {
				s.Gateways = append(s.Gateways, index)
				if st := statuses[n.Name]; st != nil && st.Serving {
					serving = append(serving, index)
				}
			}
			continue
		}
		if index == 0 {
			continue // the agent has not given it an index yet
		}
		hop, ok := b.host.Hops[address]
		if !ok {
			b.problem("node %s has no route to %s of node %s", b.objs.Name, address, n.Name)
			continue
		}
		if !b.usable(hop, "node "+n.Name) {
			continue
		}
		s.Nodes[index] = hop
		s.Peers[address] = dataplane.Peer{Kind: dataplane.PeerNode, Node: index}
		if st := statuses[n.Name]; wanted[n.Name] && st != nil && st.Ready && st.Gateway {
			s.Gateways = append(s.Gateways, index)
			if st.Serving {
				serving = append(serving, index)
			}
		}
	}
	if len(serving) > 0 {
		s.Gateways = serving // remote gateways do not know the others yet
	}
	slices.Sort(s.Gateways)
	if len(s.Gateways) > dataplane.MaxGateways {
		b.problem("%d gateways: only the %d with the lowest node index are used", len(s.Gateways), dataplane.MaxGateways)
		s.Gateways = s.Gateways[:dataplane.MaxGateways]
	}
}

func (b *builder) peers() {
	s := &b.out.State
	needed := b.needed()
	for p := range RoutedPeers(b.objs.Peers) {
		cluster := uint16(p.Spec.ClusterIndex)
		b.clusters[p.Name] = cluster
		for _, text := range p.Spec.Subnets {
			prefix, err := netip.ParsePrefix(text)
			if err != nil || !prefix.Addr().Is4() {
				b.problem("peer %s: subnet %q is no IPv4 prefix", p.Name, text)
				continue
			}
			for _, part := range b.routable(p, prefix.Masked(), needed) {
				s.Routes[part] = cluster
				b.prefixes[p.Name] = append(b.prefixes[p.Name], part)
			}
		}
		if !s.Settings.Gateway {
			continue
		}
		var gateways []dataplane.RemoteGateway
		for _, g := range p.Spec.Gateways {
			address, err := CableAddress(b.objs.Config, g)
			if errors.Is(err, errNoAddress) {
				continue
			}
			if err != nil {
				b.problem("peer %s: gateway %s: %v", p.Name, g.Name, err)
				continue
			}
			remote := dataplane.RemoteGateway{Hop: dataplane.Hop{Address: address, Next: address}, Node: uint16(g.NodeIndex), Port: dataplane.OverlayPort}
			if Encrypted(b.objs.Config) {
				if remote.Tunnels = tunnels(b.host.Wire.Tunnels[address]); len(remote.Tunnels) == 0 {
					continue // it does not answer yet
				}
			} else {
				hop, ok := b.host.Hops[address]
				if !ok {
					b.problem("node %s has no route to %s, gateway %s of cluster %s", b.objs.Name, address, g.Name, p.Name)
					continue
				}
				if !b.usable(hop, fmt.Sprintf("gateway %s of cluster %s", g.Name, p.Name)) {
					continue
				}
				remote.Hop, remote.Port = hop, uint16(g.Port)
			}
			gateways = append(gateways, remote)
			s.Peers[address] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: cluster, Node: uint16(g.NodeIndex)}
		}
		slices.SortFunc(gateways, func(a, b dataplane.RemoteGateway) int { return cmp.Compare(a.Node, b.Node) })
		if len(gateways) > dataplane.MaxGateways {
			b.problem("peer %s has %d gateways: only %d are used", p.Name, len(gateways), dataplane.MaxGateways)
			gateways = gateways[:dataplane.MaxGateways]
		}
		if len(gateways) > 0 {
			s.Clusters[cluster] = gateways
		}
	}
	if !s.Settings.Gateway {
		return
	}
	for address, p := range b.host.DrainingPeers {
		if _, known := s.Peers[address]; !known {
			s.Peers[address] = p
		}
	}
}

// sources assigns an egress to every local pod and to the node itself.
func (b *builder) sources() {
	s := &b.out.State
	table := topology.NewEgressTable(b.objs.ClusterEgress, b.objs.EgressIPs, b.objs.IngressIPs)
	uid := string(OwnNode(b.objs).UID)
	usable := map[pelagov1alpha1.EgressPool][]topology.PortRange{}
	portsOf := func(pool pelagov1alpha1.EgressPool) []topology.PortRange {
		if _, ok := usable[pool]; !ok {
			usable[pool] = topology.UsablePorts(b.objs.PortBlocks, uid, pool)
		}
		return usable[pool]
	}
	source := func(choice topology.EgressChoice, key string) dataplane.Source {
		if choice.Rank == topology.HeadlessPod {
			return dataplane.Source{Own: choice.IPs[0]}
		}
		ports := portsOf(choice.Pool)
		ip := pickIP(ports, choice.IPs, key)
		if ip.IsValid() {
			s.Egresses[ip] = firstPorts(ports, ip)
		}
		return dataplane.Source{Egress: ip, Mapped: choice.NAT.Mapped, Open: choice.NAT.Open}
	}
	node := topology.EgressPod{HostNetwork: true}
	hostSource := source(table.Choose(node), b.objs.Name)
	hostSource.Host = true
	b.hostSources(hostSource)
	b.localPods(func(p *corev1.Pod, _ netip.Addr) dataplane.Source {
		pod := topology.EgressPod{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Labels: p.Labels}
		return source(table.Choose(pod), string(p.UID))
	})
}

// hostSources enters the node's own addresses.
func (b *builder) hostSources(source dataplane.Source) {
	s := &b.out.State
	if s.Settings.Address.IsValid() {
		s.Sources[s.Settings.Address] = source
	}
	for _, a := range b.host.Addresses {
		if a.IsValid() && a != s.Settings.Address {
			s.Sources[a] = source
			b.hosts = append(b.hosts, a)
		}
	}
}

// sourceRoom is what the node's own addresses leave free of MaxSources: a pod is entered before its
// predecessor is removed.
const sourceRoom = 256

// limitSources leaves out addresses of the node itself, but the one by which others know it, where
// they would leave no room for pods.
func (b *builder) limitSources() {
	sources := b.out.State.Sources
	slices.SortFunc(b.hosts, netip.Addr.Compare)
	var out []netip.Addr
	for _, a := range slices.Backward(slices.Compact(b.hosts)) {
		if len(sources) <= dataplane.MaxSources-sourceRoom {
			break
		}
		if sources[a].Host {
			delete(sources, a)
			out = append(out, a)
		}
	}
	if len(out) > 0 {
		b.problem("node %s has more local addresses than the %d that can send: %d of its own, such as %s, are left out, and processes that use them as "+
			"source reach no other cluster; remove addresses", b.objs.Name, dataplane.MaxSources, len(out), out[0])
	}
}

// localPods enters a source for each pod of this node that has an address and a device of its own.
// Without a known device, packets with its source address would be accepted from any device.
func (b *builder) localPods(source func(*corev1.Pod, netip.Addr) dataplane.Source) {
	for i := range b.objs.Pods {
		p := &b.objs.Pods[i]
		if !IsLocal(b.objs, p) {
			continue
		}
		address, ok := PodIP(p)
		if !ok {
			continue // not started
		}
		src := source(p, address)
		b.out.Owners[address] = p.UID
		device, ok := b.host.Devices[address]
		if !ok {
			reason, ok := b.host.Unserved[address]
			if !ok {
				reason = "its device is not known"
			}
			if p.DeletionTimestamp == nil {
				b.problem("pod %s/%s is not connected: %s: %s", p.Namespace, p.Name, address, reason)
			}
			b.leaveOut(p, false, reason)
			continue
		}
		if reason, ok := b.host.Limited[address]; ok {
			b.leaveOut(p, true, reason)
		}
		src.Ifindex = device
		b.out.State.Sources[address] = src
	}
}

// blocks fills the gateways' table of the owners of port blocks, pending ones included: those are
// acknowledged.
func (b *builder) blocks() {
	s := &b.out.State
	for i := range b.objs.PortBlocks {
		p := &b.objs.PortBlocks[i]
		ip, err := netip.ParseAddr(p.Spec.EgressIP)
		if err != nil || !ip.Is4() {
			b.problem("port block %s: egress IP %q", p.Name, p.Spec.EgressIP)
			continue
		}
		s.Globals[ip] = dataplane.Global{Kind: dataplane.GlobalEgress}
		owner := b.index[p.Spec.Node]
		if owner == 0 || !s.Settings.Gateway {
			continue
		}
		s.Blocks[dataplane.BlockKey{Address: ip, First: uint16(p.Spec.FirstPort)}] = owner
		if p.Spec.State == pelagov1alpha1.BlockPending {
			b.acks[p.UID] = true
		}
	}
}

// pickIP chooses one of ips of which the node has ports, by rendezvous hash: a pod keeps its egress
// IP while that has ports here (RFC 4787 REQ-2, paired pooling), and blocks that come or go move as
// few pods as possible.
func pickIP(ports []topology.PortRange, ips []netip.Addr, key string) netip.Addr {
	var best netip.Addr
	var weight uint64
	for _, p := range ports {
		if !slices.Contains(ips, p.IP) {
			continue // a block of an address that the pool has given up: only old flows use it
		}
		h := fnv.New64a()
		// fnv never fails to write.
		_, _ = h.Write(p.IP.AsSlice())
		_, _ = h.Write([]byte(key))
		if w := h.Sum64() | 1; w > weight {
			weight, best = w, p.IP
		}
	}
	return best
}

func firstPorts(ports []topology.PortRange, ip netip.Addr) []uint16 {
	var first []uint16
	for _, p := range ports {
		if p.IP == ip && len(first) < dataplane.MaxBlocks {
			first = append(first, p.First)
		}
	}
	return first
}

func InternalIP(n *corev1.Node) (netip.Addr, bool) {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); a.Type == corev1.NodeInternalIP && err == nil && ip.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func PodIP(p *corev1.Pod) (netip.Addr, bool) {
	for _, a := range p.Status.PodIPs {
		if ip, err := netip.ParseAddr(a.IP); err == nil && ip.Is4() {
			return ip, true
		}
	}
	return netip.Addr{}, false
}

func Finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// tunnels converts interface indexes.
func tunnels(devices []int) []uint32 {
	var out []uint32
	for _, d := range devices {
		out = append(out, uint32(d))
	}
	return out
}
