package clusters

import (
	"net/netip"
	"slices"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

// State is what the node's maps are to hold. Call it inside the node's namespace.
func (n *Node) State() (dataplane.State, error) {
	c := n.Cluster
	index := map[string]uint32{}
	for _, name := range n.uplinks {
		i, err := n.NS.Index(name)
		if err != nil {
			return dataplane.State{}, err
		}
		index[name] = uint32(i)
	}
	uplink := index[n.uplinks[0]]
	edge, err := n.NS.Index(netdev.Overlay)
	if err != nil {
		return dataplane.State{}, err
	}
	hop := func(a, next netip.Addr) dataplane.Hop {
		if vpn := index["vpn0"]; vpn != 0 && (vpnRange.Contains(a) || vpnRange.Contains(n.Address)) {
			return dataplane.Hop{Address: a, Ifindex: vpn}
		}
		return dataplane.Hop{Address: a, Next: next, Ifindex: uplink}
	}
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: n.Address, CableAddress: n.Address, Node: n.Index, Edge: uint32(edge), Cluster: c.Index, Gateway: n.switches(), MSS: uint16(n.room() - 40),
			Overlay: dataplane.Tokens{Current: 0xa0 + uint32(c.Index)}, Cable: dataplane.Tokens{Current: 0xcab1e}, Ready: true,
		},
		Routes:    map[netip.Prefix]uint16{},
		Nodes:     map[uint16]dataplane.Hop{},
		Gateways:  slices.Clone(c.Gateways),
		Clusters:  map[uint16][]dataplane.RemoteGateway{},
		Peers:     map[netip.Addr]dataplane.Peer{},
		Sources:   map[netip.Addr]dataplane.Source{},
		Endpoints: map[netip.Addr]dataplane.Endpoint{},
		Egresses:  map[netip.Addr][]uint16{},
		Globals:   map[netip.Addr]dataplane.Global{},
		Blocks:    map[dataplane.BlockKey]uint16{},
		Services:  map[dataplane.ServiceKey]dataplane.Service{},
	}
	for _, p := range n.Pods {
		if p.Endpoint.Ifindex != 0 && !p.Gone {
			s.Endpoints[p.Address] = p.Endpoint
		}
	}
	for _, node := range c.Nodes {
		if node != n {
			s.Nodes[node.Index] = hop(node.Address, node.Address)
			s.Peers[node.Address] = dataplane.Peer{Kind: dataplane.PeerNode, Node: node.Index}
		}
	}
	for _, p := range c.Other.routed() {
		s.Routes[p] = c.Other.Index
	}
	if c.Plain {
		n.plain(&s)
	} else {
		s.Routes[c.GlobalCIDR()] = c.Index
		n.globalnet(&s)
	}
	for key, service := range c.Services {
		s.Serve(key, service.seenBy(n))
		s.Globals[key.Address] = dataplane.Global{Kind: dataplane.GlobalService}
	}
	if n.vips {
		n.clusterSetIPs(&s)
	}
	if n.switches() {
		n.gateway(&s, hop)
		n.external(&s, uplink)
	}
	return s, nil
}

// globalnet adds the addresses that are translated.
func (n *Node) globalnet(s *dataplane.State) {
	c := n.Cluster
	s.Sources[n.Address] = dataplane.Source{Egress: c.Global(1), Host: true, Mapped: c.Mapped, Open: c.Open}
	for ip := byte(1); ip <= 8; ip++ {
		s.Egresses[c.Global(ip)] = slices.Clone(n.Blocks)
		s.Globals[c.Global(ip)] = dataplane.Global{Kind: dataplane.GlobalEgress}
	}
	for _, p := range n.Pods {
		if !p.Gone {
			s.Sources[p.Address] = dataplane.Source{Egress: c.Global(1 + p.Address.As4()[3]%8), Own: p.Global, Ifindex: p.Source, Mapped: c.Mapped, Open: c.Open}
		}
	}
	for ip, p := range c.Pods {
		g := dataplane.Global{Kind: dataplane.GlobalPod, Node: p.Node.Index}
		if p.Node == n && !p.Gone {
			g.Pod = p.Address
		}
		s.Globals[ip] = g
	}
}

// gateway adds what only gateways know.
func (n *Node) gateway(s *dataplane.State, hop func(a, next netip.Addr) dataplane.Hop) {
	c := n.Cluster
	s.Settings.CablePort = 4500
	for _, index := range c.Other.Gateways {
		a := c.Other.Nodes[index-1].Address
		s.Clusters[c.Other.Index] = append(s.Clusters[c.Other.Index], dataplane.RemoteGateway{Hop: hop(a, c.router()), Node: index, Port: 4500})
	}
	// Those that are leaving may still send.
	for _, index := range slices.Concat(c.Other.Gateways, c.Other.Draining) {
		s.Peers[c.Other.Nodes[index-1].Address] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: c.Other.Index, Node: index}
	}
	if c.Plain {
		return
	}
	for _, node := range c.Nodes {
		for ip := byte(1); ip <= 8; ip++ {
			for _, first := range node.Blocks {
				s.Blocks[dataplane.BlockKey{Address: c.Global(ip), First: first}] = node.Index
			}
		}
	}
}

// external adds what is outside the cluster.
func (n *Node) external(s *dataplane.State, uplink uint32) {
	c := n.Cluster
	host := dataplane.Source{Egress: c.Global(1), External: true, Ifindex: uplink}
	if c.Plain {
		host.Egress, host.Routed = n.Fabric(), true
		for first := 1024; first < 65536; first += dataplane.BlockPorts {
			s.Egresses[n.Fabric()] = append(s.Egresses[n.Fabric()], uint16(first))
		}
	}
	s.Externals = map[netip.Prefix]dataplane.Source{}
	if c.External.IsValid() {
		s.Externals[c.External] = host
	}
	if c.RouteServices {
		s.Externals[netip.PrefixFrom(c.clusterIP(0), 16)] = dataplane.Source{Routed: true}
	}
	for _, service := range c.Services {
		for _, e := range service.External {
			s.Sources[e.Addr()] = host
		}
	}
}

func (s *Service) seenBy(n *Node) dataplane.Service {
	v := dataplane.Service{Affinity: s.Affinity}
	weights := map[uint16]int{}
	for p, port := range s.Backends {
		weights[p.Node.Index]++
		if p.Node == n {
			v.Backends = append(v.Backends, netip.AddrPortFrom(p.Address, port))
		}
	}
	for node, port := range s.Nodes {
		weights[node.Index]++
		if node == n {
			v.Backends = append(v.Backends, netip.AddrPortFrom(node.Address, port))
		}
	}
	for _, e := range s.External {
		if n.switches() {
			weights[n.Index]++
			v.Backends = append(v.Backends, e)
		}
	}
	slices.SortFunc(v.Backends, netip.AddrPort.Compare)
	if n.switches() {
		v.Table = dataplane.Maglev(weights)
	}
	return v
}
