// Package clusters makes two clusters with the same pod addresses out of network namespaces and
// runs the real data path on their nodes, without Kubernetes: for tests that need packets, not API
// objects.
//
//	    cluster 1                        router                         cluster 2
//	pods - node 1 --+                                              +-- node 1 - pods
//	pods - node 2 --+-- 172.16.1.0/24 ---- .254 ---- 172.16.2.0/24 --+-- node 2 - pods
//	pods - node n --+                                              +-- node n - pods
//
// Node n has 172.16.C.n on un0 and the bridge cni0 with 10.7.n.1/24; its pods are 10.7.n.10 and up.
// The clusters' global ranges are 120.C.0.0/24: egress IPs 120.C.0.1–8 (node n owns block n of
// every IP), service IPs from 120.C.0.20, pod IPs from 120.C.0.100. As on a Kubernetes node, what
// leaves the pods' network is masqueraded and conntrack is at work; rp_filter is strict.
//
// With Options.Plain there is no globalnet: see plain.go.
package clusters

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/bpffs"
	"github.com/pelago-net/pelago/test/netns"
)

// Options of New.
type Options struct {
	Nodes    int // of each cluster
	Gateways int // the first so many nodes of each cluster
	Timers   loader.Timers
	Clsact   bool // attach as before Linux 6.6
	Plain    bool // without globalnet, with addresses of their own
	XDP      bool // on the uplinks of gateways
	// Datapath of all pods.
	Datapath dataplane.Datapath
	// CNI is how pods are attached to their nodes.
	CNI CNI
	// VPN is the index of the node of each cluster that all others reach by a VPN; 0: none
	// (vpn.go).
	VPN uint16
	// ClusterSetIPs: all pods' devices have programs, as where the clusterset has ClusterSetIPs.
	ClusterSetIPs bool
}

// Set is the two clusters.
type Set struct {
	Router   *netns.NS
	Clusters [3]*Cluster // 1 and 2
	bpffs    string
	xdp      bool
	datapath dataplane.Datapath
	cni      CNI
	vpn      uint16
	vips     bool
}

// Cluster is one of them.
type Cluster struct {
	Index    uint16
	Plain    bool
	Nodes    []*Node // Nodes[0] has index 1
	Services map[dataplane.ServiceKey]*Service
	Pods     map[netip.Addr]*Pod // headless pods by their global IP
	// Gateways are the node indexes of those that are used; a node of Draining still switches.
	Gateways, Draining []uint16
	Other              *Cluster
	// External are the hosts outside the cluster, on its underlay; RouteServices: ClusterIPs that
	// are not exported are reached.
	External      netip.Prefix
	RouteServices bool
	// Mapped, Open: see dataplane.Source.
	Mapped, Open bool
	// VIPs are ports of ClusterSetIPs that this cluster serves alone.
	VIPs map[dataplane.ServiceKey]*VIP
}

// Service is an exported port and where its backends are.
type Service struct {
	Backends map[*Pod]uint16 // ready pod → port
	// Nodes are ready pods in the network of their node.
	Nodes    map[*Node]uint16
	External []netip.AddrPort // outside the cluster
	Affinity uint32           // seconds
}

// GlobalCIDR of a cluster.
func (c *Cluster) GlobalCIDR() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{120, byte(c.Index), 0, 0}), 24)
}

// Global is address n of the cluster's GlobalCIDR.
func (c *Cluster) Global(n byte) netip.Addr {
	return netip.AddrFrom4([4]byte{120, byte(c.Index), 0, n})
}

// New makes the clusters with the data path of every node up and ready; they end with the test.
func New(t testing.TB, o Options) *Set {
	t.Helper()
	netns.Require(t)
	s := &Set{Router: netns.ForTest(t, "router"), bpffs: bpffs.Mount(t), xdp: o.XDP, datapath: o.Datapath, cni: o.CNI, vpn: o.VPN, vips: o.ClusterSetIPs}
	must(t, s.Router.Sysctl("net/ipv4/ip_forward", "1"))
	if s.vpn != 0 {
		s.addVPN(t)
	}
	for i := uint16(1); i <= 2; i++ {
		s.Clusters[i] = &Cluster{Index: i, Plain: o.Plain, Services: map[dataplane.ServiceKey]*Service{}, Pods: map[netip.Addr]*Pod{}}
	}
	s.Clusters[1].Other, s.Clusters[2].Other = s.Clusters[2], s.Clusters[1]
	for _, c := range s.Clusters[1:] {
		s.underlay(t, c)
		for n := 1; n <= o.Nodes; n++ {
			if n <= o.Gateways {
				c.Gateways = append(c.Gateways, uint16(n))
			}
			s.addNode(t, c, uint16(n), loader.Options{Timers: o.Timers, Clsact: o.Clsact})
		}
	}
	s.Apply(t)
	return s
}

func (s *Set) underlay(t testing.TB, c *Cluster) {
	t.Helper()
	name := fmt.Sprintf("br%d", c.Index)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	must(t, s.Router.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	br, err := s.Router.Handle().LinkByName(name)
	must(t, err)
	must(t, s.Router.Handle().LinkSetUp(br))
	must(t, s.Router.AddAddr(name, netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 16, byte(c.Index), 254}), 24)))
}

// Apply brings every node to what the clusters look like now.
func (s *Set) Apply(t testing.TB) {
	t.Helper()
	for _, n := range s.Nodes() {
		n.Apply(t)
	}
}

// Nodes are the nodes of both clusters.
func (s *Set) Nodes() []*Node { return slices.Concat(s.Clusters[1].Nodes, s.Clusters[2].Nodes) }

// Expose makes pods the backends of a new service address, pod port = service port, and returns the
// address.
func (c *Cluster) Expose(port uint16, protocols []uint8, pods ...*Pod) netip.Addr {
	taken := map[netip.Addr]bool{}
	for key := range c.Services {
		taken[key.Address] = true
	}
	address := c.Global(byte(20 + len(taken)))
	if c.Plain {
		address = c.clusterIP(byte(20 + len(taken)))
	}
	for _, proto := range protocols {
		s := &Service{Backends: map[*Pod]uint16{}, Nodes: map[*Node]uint16{}}
		for _, p := range pods {
			s.Backends[p] = port
		}
		c.Services[dataplane.ServiceKey{Address: address, Port: port, Protocol: proto}] = s
	}
	return address
}

// ExposePod gives a pod a global IP of its own, as a headless service does. Without globalnet every
// pod is its own.
func (c *Cluster) ExposePod(p *Pod) netip.Addr {
	if c.Plain {
		return p.Global
	}
	p.Global = c.Global(byte(100 + len(c.Pods)))
	c.Pods[p.Global] = p
	return p.Global
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
