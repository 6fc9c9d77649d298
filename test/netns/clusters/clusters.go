// Package clusters makes two clusters with the same pod addresses out of network namespaces and runs the real data path
// on their nodes, without Kubernetes: for tests that need packets, not API objects.
//
//	    cluster 1                       router                        cluster 2
//	pods - node 1 --+                                             +-- node 1 - pods
//	pods - node 2 --+-- 172.16.1.0/24 ---- .254 ---- 172.16.2.0/24 --+-- node 2 - pods
//	pods - node n --+                                             +-- node n - pods
//
// Node n has 172.16.C.n on un0 and the bridge cni0 with 10.7.n.1/24; its pods are 10.7.n.10 and up. The clusters' global
// ranges are 120.C.0.0/24: egress IPs 120.C.0.1–8 (node n owns block n of every IP), service IPs from 120.C.0.20, pod
// IPs from 120.C.0.100.
package clusters

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/netns"
)

// Options of New.
type Options struct {
	Nodes    int // of each cluster
	Gateways int // the first so many nodes of each cluster
	Timers   loader.Timers
	Clsact   bool // attach as before Linux 6.6
}

// Set is the two clusters.
type Set struct {
	Router   *netns.NS
	Clusters [3]*Cluster // 1 and 2
	bpffs    string
}

// Cluster is one of them.
type Cluster struct {
	Index    uint16
	Nodes    []*Node // Nodes[0] has index 1
	Services map[dataplane.ServiceKey]*Service
	Pods     map[netip.Addr]*Pod // headless pods by their global IP
	Gateways []uint16
	Other    *Cluster
}

// Service is an exported port and where its backends are.
type Service struct {
	Backends map[*Pod]uint16 // ready pod → port
	ClientIP bool
}

// Node is one node.
type Node struct {
	*netns.NS
	Cluster *Cluster
	Index   uint16
	Address netip.Addr
	Loader  *loader.Loader
	PinPath string
	Pods    []*Pod
	// Blocks is the first port of the node's block in every egress IP.
	Blocks []uint16
	opts   loader.Options
}

// Pod is one pod.
type Pod struct {
	*netns.NS
	Node    *Node
	Address netip.Addr
	Global  netip.Addr // of a headless pod
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
	s := &Set{Router: netns.ForTest(t, "router"), bpffs: mountBPF(t)}
	must(t, s.Router.Sysctl("net/ipv4/ip_forward", "1"))
	for i := uint16(1); i <= 2; i++ {
		s.Clusters[i] = &Cluster{Index: i, Services: map[dataplane.ServiceKey]*Service{}, Pods: map[netip.Addr]*Pod{}}
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

func (s *Set) addNode(t testing.TB, c *Cluster, index uint16, opts loader.Options) {
	t.Helper()
	n := &Node{
		NS: netns.ForTest(t, fmt.Sprintf("c%dn%d", c.Index, index)), Cluster: c, Index: index, opts: opts,
		Address: netip.AddrFrom4([4]byte{172, 16, byte(c.Index), byte(index)}),
		PinPath: filepath.Join(s.bpffs, fmt.Sprintf("c%dn%d", c.Index, index)),
		Blocks:  []uint16{1024 + 256*(index-1)},
	}
	c.Nodes = append(c.Nodes, n)
	must(t, n.Sysctl("net/ipv4/ip_forward", "1"))
	must(t, n.Sysctl("net/ipv4/conf/all/rp_filter", "1")) // strict, the hardest case
	port := fmt.Sprintf("c%dn%d", c.Index, index)
	must(t, netns.Veth(netns.End{NS: n.NS, Name: "un0", Addrs: []netip.Prefix{netip.PrefixFrom(n.Address, 24)}}, netns.End{NS: s.Router, Name: port}))
	br, err := s.Router.Handle().LinkByName(fmt.Sprintf("br%d", c.Index))
	must(t, err)
	link, err := s.Router.Handle().LinkByName(port)
	must(t, err)
	must(t, s.Router.Handle().LinkSetMaster(link, br))
	must(t, n.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.AddrFrom4([4]byte{172, 16, byte(c.Index), 254}), "un0"))

	attrs := netlink.NewLinkAttrs()
	attrs.Name = "cni0"
	must(t, n.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	cni, err := n.Handle().LinkByName("cni0")
	must(t, err)
	must(t, n.Handle().LinkSetUp(cni))
	must(t, n.AddAddr("cni0", netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 7, byte(index), 1}), 24)))
	n.opts.PinPath = n.PinPath
	n.Open(t)
	t.Cleanup(func() {
		if err := n.Loader.Close(); err != nil {
			t.Error(err)
		}
	})
}

// Open loads the programs as a starting daemon does.
func (n *Node) Open(t testing.TB) {
	t.Helper()
	must(t, n.Do(func() (err error) {
		n.Loader, err = loader.Open(n.opts)
		return err
	}))
}

// AddPod makes a pod on the node. The sets' tables know it after the next Apply.
func (n *Node) AddPod(t testing.TB) *Pod {
	t.Helper()
	number := 10 + len(n.Pods)
	p := &Pod{
		NS:   netns.ForTest(t, fmt.Sprintf("c%dn%dp%d", n.Cluster.Index, n.Index, number)),
		Node: n, Address: netip.AddrFrom4([4]byte{10, 7, byte(n.Index), byte(number)}),
	}
	host := fmt.Sprintf("veth%d", number)
	must(t, netns.Veth(netns.End{NS: p.NS, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(p.Address, 24)}}, netns.End{NS: n.NS, Name: host}))
	cni, err := n.Handle().LinkByName("cni0")
	must(t, err)
	link, err := n.Handle().LinkByName(host)
	must(t, err)
	must(t, n.Handle().LinkSetMaster(link, cni))
	must(t, n.Handle().LinkSetHairpin(link, true))
	must(t, p.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.AddrFrom4([4]byte{10, 7, byte(n.Index), 1}), "eth0"))
	n.Pods = append(n.Pods, p)
	return p
}

// Expose makes pods the backends of a new service address, pod port = service port, and returns the address.
func (c *Cluster) Expose(port uint16, protocols []uint8, pods ...*Pod) netip.Addr {
	address := c.Global(byte(20 + len(c.Services)))
	for _, proto := range protocols {
		s := &Service{Backends: map[*Pod]uint16{}}
		for _, p := range pods {
			s.Backends[p] = port
		}
		c.Services[dataplane.ServiceKey{Address: address, Port: port, Protocol: proto}] = s
	}
	return address
}

// ExposePod gives a pod a global IP of its own, as a headless service does.
func (c *Cluster) ExposePod(p *Pod) netip.Addr {
	p.Global = c.Global(byte(100 + len(c.Pods)))
	c.Pods[p.Global] = p
	return p.Global
}

// Apply brings every node to what the clusters look like now.
func (s *Set) Apply(t testing.TB) {
	t.Helper()
	for _, c := range s.Clusters[1:] {
		for _, n := range c.Nodes {
			n.Apply(t)
		}
	}
}

// Apply brings one node to what the clusters look like now.
func (n *Node) Apply(t testing.TB) {
	t.Helper()
	must(t, n.Do(func() error {
		edge, err := netdev.Ensure(n.config())
		if err != nil {
			return err
		}
		uplink, err := n.NS.Index("un0")
		if err != nil {
			return err
		}
		if err := n.Loader.Attach(edge, []int{uplink}); err != nil {
			return err
		}
		state, err := n.State()
		if err != nil {
			return err
		}
		return n.Loader.Apply(state)
	}))
}

func (n *Node) config() netdev.Config {
	c := netdev.Config{Source: n.Address, Prefixes: []netip.Prefix{n.Cluster.Other.GlobalCIDR()}, MTU: 1500 - netdev.Overhead}
	if n.IsGateway() {
		c.CablePort = 4500
	}
	return c
}

// IsGateway says whether the node is one of its cluster's gateways.
func (n *Node) IsGateway() bool { return slices.Contains(n.Cluster.Gateways, n.Index) }

// State is what the node's maps are to hold. Call it inside the node's namespace.
func (n *Node) State() (dataplane.State, error) {
	c := n.Cluster
	uplink, err := n.NS.Index("un0")
	if err != nil {
		return dataplane.State{}, err
	}
	cni, err := n.NS.Index("cni0")
	if err != nil {
		return dataplane.State{}, err
	}
	router := netip.AddrFrom4([4]byte{172, 16, byte(c.Index), 254})
	local := func(a netip.Addr) dataplane.Hop {
		return dataplane.Hop{Address: a, Next: a, Ifindex: uint32(uplink)}
	}
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: n.Address, Node: n.Index, Cluster: c.Index, Gateway: n.IsGateway(), MSS: 1500 - netdev.Overhead - 40,
			Overlay: dataplane.Tokens{Current: 0xa0 + uint32(c.Index)}, Cable: dataplane.Tokens{Current: 0xcab1e}, Ready: true,
		},
		Routes:   map[netip.Prefix]uint16{c.Other.GlobalCIDR(): c.Other.Index},
		Nodes:    map[uint16]dataplane.Hop{},
		Gateways: c.Gateways,
		Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers:    map[netip.Addr]dataplane.Peer{},
		Sources:  map[netip.Addr]dataplane.Source{n.Address: {Egress: c.Global(1), Host: true}},
		Egresses: map[netip.Addr][]uint16{},
		Globals:  map[netip.Addr]dataplane.Global{},
		Blocks:   map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{},
	}
	if n.IsGateway() {
		s.Settings.CablePort = 4500
	}
	for _, node := range c.Nodes {
		s.Nodes[node.Index] = local(node.Address)
		s.Peers[node.Address] = dataplane.Peer{Kind: dataplane.PeerNode, Node: node.Index}
		for ip := byte(1); ip <= 8; ip++ {
			for _, first := range node.Blocks {
				s.Blocks[dataplane.BlockKey{Address: c.Global(ip), First: first}] = node.Index
			}
		}
	}
	for ip := byte(1); ip <= 8; ip++ {
		s.Egresses[c.Global(ip)] = n.Blocks
		s.Globals[c.Global(ip)] = dataplane.Global{Kind: dataplane.GlobalEgress}
	}
	for _, index := range c.Other.Gateways {
		a := c.Other.Nodes[index-1].Address
		hop := dataplane.Hop{Address: a, Next: router, Ifindex: uint32(uplink)}
		s.Clusters[c.Other.Index] = append(s.Clusters[c.Other.Index], dataplane.RemoteGateway{Hop: hop, Node: index, Port: 4500})
		s.Peers[a] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: c.Other.Index, Node: index}
	}
	for _, p := range n.Pods {
		s.Sources[p.Address] = dataplane.Source{Egress: c.Global(1 + p.Address.As4()[3]%8), Own: p.Global, Ifindex: uint32(cni)}
	}
	for ip, p := range c.Pods {
		g := dataplane.Global{Kind: dataplane.GlobalPod, Node: p.Node.Index}
		if p.Node == n {
			g.Pod = p.Address
		}
		s.Globals[ip] = g
	}
	for key, service := range c.Services {
		v := dataplane.Service{ClientIP: service.ClientIP}
		weights := map[uint16]int{}
		for p, port := range service.Backends {
			weights[p.Node.Index]++
			if p.Node == n {
				v.Backends = append(v.Backends, netip.AddrPortFrom(p.Address, port))
			}
		}
		slices.SortFunc(v.Backends, netip.AddrPort.Compare)
		if n.IsGateway() {
			v.Table = dataplane.Maglev(weights)
		}
		s.Services[key] = v
		s.Globals[key.Address] = dataplane.Global{Kind: dataplane.GlobalService}
	}
	return s, nil
}

// Counters are the node's counters by "hook verdict".
func (n *Node) Counters(t testing.TB) map[string]uint64 {
	t.Helper()
	rows, err := n.Loader.Counters()
	must(t, err)
	out := map[string]uint64{}
	for _, r := range rows {
		out[r.Hook+" "+r.Verdict] = r.Packets
	}
	return out
}

// mountBPF mounts a bpffs that ends with the test.
func mountBPF(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, unix.Mount("bpf", dir, "bpf", 0, ""))
	t.Cleanup(func() {
		// Links and maps live as long as their pins: a busy mount would leave programs behind.
		for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			err := unix.Unmount(dir, 0)
			if err == nil {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("unmount the bpffs %s: %v", dir, err)
				return
			}
		}
	})
	_, err := os.Stat(dir)
	must(t, err)
	return dir
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
