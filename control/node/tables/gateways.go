package tables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
)

// Wanted reports whether this node is to be a gateway.
func Wanted(objs Objects) bool { return WantedGateways(objs)[objs.Name] }

// WantedGateways returns the nodes that are to be gateways. For one that replaces others, its
// NodeIndex is not enough: it must also answer this node's probes. For one that is to leave, the
// NodeIndex is enough: that node decides when it can leave, and the programs avoid it if it is
// dead.
func WantedGateways(objs Objects) map[string]bool {
	reported := map[string]*pelagov1alpha1.NodeIndex{} // of the few that may serve
	for i := range objs.NodeIndexes {
		if n := &objs.NodeIndexes[i]; topology.GatewayReady(n) {
			reported[n.Name] = n
		}
	}
	nodes := make(map[string]*corev1.Node, len(reported))
	for i := range objs.Nodes {
		if n := &objs.Nodes[i]; reported[n.Name] != nil {
			nodes[n.Name] = n
		}
	}
	return topology.WantedGateways(objs.Nodes, func(name string) bool {
		node, index := nodes[name], reported[name]
		if index == nil || !topology.GatewayServing(node, index) {
			return false
		}
		_, drained := topology.Drained(node)
		return name == objs.Name || drained || !topology.IsGateway(node) || objs.Answering[name]
	})
}

// AcceptedGateways returns the gateways from which packets are accepted, by outer address, and the
// indexes of the accepted clusters.
func AcceptedGateways(c config.Config, peers []pelagov1alpha1.Peer) (gateways map[netip.Addr]dataplane.Peer, clusters map[uint16]bool) {
	gateways, clusters = map[netip.Addr]dataplane.Peer{}, map[uint16]bool{}
	for p := range RoutedPeers(peers) {
		cluster := uint16(p.Spec.ClusterIndex)
		clusters[cluster] = true
		for _, g := range p.Spec.Gateways {
			if a, err := CableAddress(c, g); err == nil {
				gateways[a] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: cluster, Node: uint16(g.NodeIndex)}
			}
		}
	}
	return gateways, clusters
}

// GatewayName is a gateway's name in the clusterset.
func GatewayName(cluster, node string) string { return cluster + "/" + node }

// Encrypted reports whether cable packets have fabric addresses, inside tunnels.
func Encrypted(c config.Config) bool { return c.CableDriver != config.CableVXLAN }

// errNoAddress: the vxlan wire has no address of a gateway. SelectAddresses has reported why.
var errNoAddress = errors.New("it has no address that this gateway could use")

// CableAddress returns the outer address of cable packets to a remote gateway, which identifies its
// path.
func CableAddress(c config.Config, g pelagov1alpha1.PeerGateway) (netip.Addr, error) {
	text := g.Address
	if Encrypted(c) {
		text = g.FabricAddress
	}
	if text == "" {
		return netip.Addr{}, errNoAddress
	}
	a, err := netip.ParseAddr(text)
	if err == nil && !a.Is4() {
		err = fmt.Errorf("%q is no IPv4 address", text)
	}
	return a, err
}

// WirePeers returns the gateways of the accepted peers.
func WirePeers(objs Objects) []cable.Peer {
	var out []cable.Peer
	for p, g := range RemoteGateways(objs.Peers) {
		// Desired reports invalid addresses.
		fabric, err := netip.ParseAddr(g.FabricAddress)
		address, _ := netip.ParseAddr(g.Address)                         // zero: the peer initiates
		if err != nil || !address.IsValid() && !Encrypted(objs.Config) { // vxlan has no handshake
			continue
		}
		out = append(out, cable.Peer{
			Name: GatewayName(p.Name, g.Name), Fabric: fabric, Address: address, Port: uint16(g.Port),
			Identity: maps.Clone(g.Identity), Tunnels: int(g.Tunnels),
		})
	}
	return out
}

// WithDraining adds those gateways of before that are draining. One whose node now has another
// fabric address (because it was registered again) is left out: both would have the same keys.
func WithDraining(peers, before []cable.Peer, draining map[netip.Addr]dataplane.Peer) []cable.Peer {
	for _, p := range before {
		_, drains := draining[p.Fabric]
		if drains && !slices.ContainsFunc(peers, func(other cable.Peer) bool { return other.Fabric == p.Fabric || other.Name == p.Name }) {
			peers = append(peers, p)
		}
	}
	return peers
}

// DiscoveryPeers returns the peers of NAT discovery.
func DiscoveryPeers(objs Objects) []natt.Peer {
	var out []natt.Peer
	for p, g := range RemoteGateways(objs.Peers) {
		if g.NATTPort == 0 {
			continue // it has no NAT discovery, so silence means nothing
		}
		private, _ := netip.ParseAddr(g.PrivateAddress) // zero if it has none
		public, _ := netip.ParseAddr(g.PublicAddress)   // likewise
		out = append(out, natt.Peer{Name: GatewayName(p.Name, g.Name), Private: private, Public: public, Port: uint16(g.NATTPort), BehindLB: g.BehindLB})
	}
	return out
}

// SelectAddresses sets the address at which this gateway reaches each remote one: none if the
// remote one is to initiate, or if the wire cannot reach it. server: this gateway prefers not to
// initiate; used are the addresses of the last call. It does not change the peers of objs.
func SelectAddresses(objs Objects, server bool, reachability map[string]natt.Reachability, used map[string]string) (Objects, []string) {
	var problems []string
	objs.Discovered = map[string]natt.Reachability{}
	peers := slices.Clone(objs.Peers)
	for i := range peers {
		peers[i].Spec.Gateways = slices.Clone(peers[i].Spec.Gateways)
		for j := range peers[i].Spec.Gateways {
			g := &peers[i].Spec.Gateways[j]
			name := GatewayName(peers[i].Name, g.Name)
			v, known := reachability[name]
			if !known {
				continue
			}
			address, refused := addressOf(objs.Config, *g, v, used[name])
			if refused != "" {
				problems = append(problems, fmt.Sprintf("peer %s: gateway %s: %s", peers[i].Name, g.Name, refused))
				v.Reason = refused
			}
			if Encrypted(objs.Config) && v.Source.IsValid() && awaits(server, GatewayName(objs.Config.ClusterID, objs.Name), *g, name) {
				address = ""
			}
			g.Address = address
			v.Address, _ = netip.ParseAddr(address) // zero if none exists
			objs.Discovered[name] = v
		}
	}
	objs.Peers = peers
	return objs, problems
}

// addressOf returns the address at which to reach a gateway, or why the wire cannot.
func addressOf(c config.Config, g pelagov1alpha1.PeerGateway, v natt.Reachability, used string) (address, refused string) {
	if !Encrypted(c) && (v.NAT() || v.State == natt.Waiting) {
		return "", fmt.Sprintf("NAT lies between: it %s, and the wire %s knows gateways by their addresses alone, so it cannot tell who calls: "+
			"join all clusters with --cable-driver %s", v.Reason, c.CableDriver, config.CableWireGuard)
	}
	switch {
	case v.Address.IsValid():
		return v.Address.String(), ""
	case v.State == natt.Waiting:
		return "", ""
	case used != "" && (used == g.PrivateAddress || used == g.PublicAddress):
		return used, "" // no new result: traffic continues as before
	}
	return g.Address, ""
}

// awaits reports whether the other gateway is to initiate. Of two that both prefer not to, the one
// whose name sorts last awaits the other. Its discovery reaches this gateway, so its handshakes
// will too.
func awaits(server bool, own string, g pelagov1alpha1.PeerGateway, name string) bool {
	return server && (g.Identity[submarinerv1.BackendPreferredServer] != "true" || own > name)
}

// UsedAddresses returns the addresses of remote gateways by GatewayName.
func UsedAddresses(objs Objects) map[string]string {
	out := map[string]string{}
	for i := range objs.Peers {
		for _, g := range objs.Peers[i].Spec.Gateways {
			out[GatewayName(objs.Peers[i].Name, g.Name)] = g.Address
		}
	}
	return out
}
