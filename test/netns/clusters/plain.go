package clusters

import (
	"net/netip"

	"github.com/pelago-net/pelago/dataplane"
)

// Without globalnet cluster C has pods in 10.(6+C).0.0/16 and ClusterIPs in 10.(66+11·C).0.0/16,
// and node n is 241.0.(64·C).n to other clusters. Everybody keeps the own address.

func (c *Cluster) podCIDR() netip.Prefix {
	second := byte(7)
	if c.Plain {
		second = byte(6 + c.Index)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, second, 0, 0}), 16)
}

func (n *Node) podAddress(number byte) netip.Addr {
	a := n.Cluster.podCIDR().Addr().As4()
	a[2], a[3] = byte(n.Index), number
	return netip.AddrFrom4(a)
}

func (c *Cluster) clusterIP(number byte) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(66 + 11*c.Index), 0, number})
}

// Fabric is the node's address in the fabric.
func (n *Node) Fabric() netip.Addr {
	return netip.AddrFrom4([4]byte{241, 0, byte(64 * n.Cluster.Index), byte(n.Index)})
}

// routed is what the other cluster sends here.
func (c *Cluster) routed() []netip.Prefix {
	if !c.Plain {
		return []netip.Prefix{c.GlobalCIDR()}
	}
	out := []netip.Prefix{
		c.podCIDR(), netip.PrefixFrom(c.clusterIP(0), 16), netip.PrefixFrom(netip.AddrFrom4([4]byte{241, 0, byte(64 * c.Index), 0}), 18),
	}
	if c.External.IsValid() {
		out = append(out, c.External)
	}
	return out
}

// shown is the address under which the other cluster sees processes of the node.
func (n *Node) shown() netip.Addr {
	if n.Cluster.Plain {
		return n.Fabric()
	}
	return n.Cluster.Global(1)
}

// plain adds the addresses that are kept: those of this node, and at a gateway of all nodes.
func (n *Node) plain(s *dataplane.State) {
	host := dataplane.Source{Own: n.Fabric(), Host: true}
	s.Sources[n.Address], s.Sources[n.podAddress(1)] = host, host
	for _, node := range n.Cluster.Nodes {
		if node != n && !n.switches() {
			continue
		}
		to := dataplane.Global{Kind: dataplane.GlobalPod, Node: node.Index}
		if node == n {
			to.Pod = n.Address
		}
		s.Globals[node.Fabric()] = to
		for _, p := range node.Pods {
			if p.Gone {
				continue
			}
			if node == n {
				to.Pod = p.Address
				s.Sources[p.Address] = dataplane.Source{Own: p.Address, Ifindex: p.Source}
			}
			s.Globals[p.Address] = to
		}
	}
}
