package clusters

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/netns"
)

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
	// Limit is the size of packets that pass to the other cluster, where it is less than pelago0's
	// MTU; else 0.
	Limit int
	// Obstacles is what the last Apply found in the firewall rules.
	Obstacles netdev.Obstacles
	opts      loader.Options
	xdp       bool
	// datapath of the pods.
	datapath dataplane.Datapath
	cni      CNI
	vips     bool
	// uplinks are its devices.
	uplinks []string
}

// Pod is one pod.
type Pod struct {
	*netns.NS
	Node    *Node
	Address netip.Addr
	Global  netip.Addr // of a headless pod; without globalnet the address of any
	Gone    bool       // the node does not know it any more
	// Source is the interface index at which the node receives the pod's packets.
	Source uint32
	// Endpoint is the pod's device, where packets may bypass the node's stack.
	Endpoint dataplane.Endpoint
	// End is the pod's own end of it.
	End loader.PodEnd
}

func (s *Set) addNode(t testing.TB, c *Cluster, index uint16, opts loader.Options) {
	t.Helper()
	n := &Node{
		NS: netns.ForTest(t, fmt.Sprintf("c%dn%d", c.Index, index)), Cluster: c, Index: index, opts: opts, xdp: s.xdp, datapath: s.datapath, cni: s.cni, vips: s.vips,
		Address: netip.AddrFrom4([4]byte{172, 16, byte(c.Index), byte(index)}),
		PinPath: filepath.Join(s.bpffs, fmt.Sprintf("c%dn%d", c.Index, index)),
		Blocks:  []uint16{1024 + 256*(index-1)},
	}
	n.opts.PinPath = n.PinPath
	c.Nodes = append(c.Nodes, n)
	must(t, n.Sysctl("net/ipv4/ip_forward", "1"))
	must(t, n.Sysctl("net/ipv4/conf/all/rp_filter", "1"))
	if s.vpn == index {
		n.Address = vpnAddress(c.Index, index)
	} else {
		s.addUplink(t, n)
	}
	if s.vpn != 0 {
		s.joinVPN(t, n)
	}
	pods := netip.PrefixFrom(n.podAddress(1), 24)
	n.addNetwork(t, pods)
	// What the CNI does for the pods' way to the outside world.
	n.MustRun(t, "iptables", "-t", "nat", "-A", "POSTROUTING", "-s", pods.Masked().String(), "!", "-d", c.podCIDR().String(), "-j", "MASQUERADE")
	n.Open(t)
	t.Cleanup(func() {
		if err := n.Loader.Close(); err != nil {
			t.Error(err)
		}
	})
}

// addUplink connects a node with the network of its cluster.
func (s *Set) addUplink(t testing.TB, n *Node) {
	t.Helper()
	port := fmt.Sprintf("c%dn%d", n.Cluster.Index, n.Index)
	must(t, netns.Veth(netns.End{NS: n.NS, Name: "un0", Addrs: []netip.Prefix{netip.PrefixFrom(n.Address, 24)}}, netns.End{NS: s.Router, Name: port}))
	if n.xdp {
		likeWire(t, n, s.Router, port)
	}
	br, err := s.Router.Handle().LinkByName(fmt.Sprintf("br%d", n.Cluster.Index))
	must(t, err)
	link, err := s.Router.Handle().LinkByName(port)
	must(t, err)
	must(t, s.Router.Handle().LinkSetMaster(link, br))
	must(t, n.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), n.Cluster.router(), "un0"))
	n.uplinks = append(n.uplinks, "un0")
}

func (c *Cluster) router() netip.Addr { return netip.AddrFrom4([4]byte{172, 16, byte(c.Index), 254}) }

// Open loads the programs as a starting daemon does.
func (n *Node) Open(t testing.TB) {
	t.Helper()
	must(t, n.Do(func() (err error) {
		n.Loader, err = loader.Open(n.opts)
		return err
	}))
}

// MustRun runs a command on the node.
func (n *Node) MustRun(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := n.Run(name, args...)
	must(t, err)
	return string(out)
}

// AddPod makes a pod on the node. The sets' tables know it after the next Apply.
func (n *Node) AddPod(t testing.TB) *Pod {
	t.Helper()
	number := 10 + len(n.Pods)
	p := &Pod{
		NS:   netns.ForTest(t, fmt.Sprintf("c%dn%dp%d", n.Cluster.Index, n.Index, number)),
		Node: n, Address: n.podAddress(byte(number)),
	}
	if n.Cluster.Plain {
		p.Global = p.Address
	}
	p.attach(t)
	n.Pods = append(n.Pods, p)
	p.learn(t)
	return p
}

// learn finds the pod's device.
func (p *Pod) learn(t testing.TB) {
	t.Helper()
	must(t, p.Node.Do(func() error {
		var finder netdev.PodDevices
		found, err := finder.Find([]netip.Addr{p.Address}, nil, netdev.NamespacesDir)
		v := found[p.Address]
		p.Source, p.Endpoint = v.Source, v.Endpoint
		p.End = loader.PodEnd{Device: int(v.Endpoint.Ifindex), Namespace: v.Namespace, Index: v.Index}
		return err
	}))
	if p.Source == 0 || p.Endpoint.Ifindex == 0 {
		t.Fatalf("the device of pod %s is not known", p.Address)
	}
	if p.Endpoint.Datapath = p.Node.datapath; p.Endpoint.Datapath == dataplane.Strict && !p.Node.vips {
		p.Endpoint = dataplane.Endpoint{} // no programs
	}
}

// host is the node's end of the pod's veth pair.
func (p *Pod) host() string { return fmt.Sprintf("veth%d", p.Address.As4()[3]) }

// Apply brings one node in line with the present clusters, as a daemon does: devices and routes,
// firewall, programs, tables, and no flows of pods that are gone.
func (n *Node) Apply(t testing.TB) {
	t.Helper()
	must(t, n.Do(func() error {
		config := n.config()
		var err error
		if config.Edge, err = netdev.EnsureOverlay(edgeMTU); err != nil {
			return err
		}
		if _, err := netdev.Ensure(config); err != nil {
			return err
		}
		receivers, err := netdev.Receivers()
		if err != nil {
			return err
		}
		devices := loader.Devices{Edge: config.Edge, Receivers: receivers}
		for _, name := range n.uplinks {
			uplink, err := n.NS.Index(name)
			if err != nil {
				return err
			}
			devices.Uplinks = append(devices.Uplinks, uplink)
		}
		if n.datapath != dataplane.Strict {
			if err := netdev.LenientConntrack(); err != nil {
				return err
			}
		}
		for _, p := range n.Pods {
			if p.Endpoint.Ifindex != 0 {
				devices.Pods, devices.PodEnds = append(devices.Pods, int(p.Endpoint.Ifindex)), append(devices.PodEnds, p.End)
			}
		}
		if n.xdp && n.switches() {
			devices.XDP = devices.Uplinks
		}
		found, err := n.Loader.Attach(devices)
		for _, failed := range found.Uplinks {
			err = errors.Join(err, failed)
		}
		if err := errors.Join(append(found.XDP, err, found.PodEnds)...); err != nil {
			return err
		}
		state, err := n.State()
		if err != nil {
			return err
		}
		filter := netdev.Filter{CablePort: config.CablePort, Remote: []netip.Addr{n.Cluster.Other.Global(1)}}
		for _, g := range n.Cluster.Gateways {
			if g != n.Index {
				filter.Peers = append(filter.Peers, netdev.Arrival{From: n.Cluster.Nodes[g-1].Address, Ifindex: devices.Uplinks[0]})
			}
		}
		filter.External, filter.ClusterIPs = state.Masqueraded()
		if n.Obstacles, err = netdev.Firewall(filter); err != nil {
			return err
		}
		if n.Obstacles.Err != nil {
			return n.Obstacles.Err
		}
		if err := n.Loader.Apply(state); err != nil {
			return err
		}
		_, err = n.Loader.PurgeFunc(func(a netip.Addr) bool {
			_, known := state.Source(a)
			return !known
		})
		return err
	}))
}

func (n *Node) config() netdev.Config {
	c := netdev.Config{Source: n.Address, Prefixes: n.Cluster.Other.routed(), MTU: edgeMTU, Limits: map[netip.Prefix]int{}}
	for _, p := range c.Prefixes {
		if n.Limit > 0 {
			c.Limits[p] = n.Limit
		}
	}
	if !n.Cluster.Plain {
		c.Prefixes = append(c.Prefixes, n.Cluster.GlobalCIDR())
	}
	if n.vips {
		c.Prefixes = append(c.Prefixes, vipRange)
	}
	if n.switches() {
		c.CablePort = 4500
	}
	return c
}

// edgeMTU is the MTU of pelago0.
const edgeMTU = 1500 - netdev.Overhead

// room is the size of packets that pass to the other cluster.
func (n *Node) room() int {
	if n.Limit > 0 {
		return n.Limit
	}
	return edgeMTU
}

// IsGateway reports whether the node is one of its cluster's gateways.
func (n *Node) IsGateway() bool { return slices.Contains(n.Cluster.Gateways, n.Index) }

func (n *Node) switches() bool { return n.IsGateway() || slices.Contains(n.Cluster.Draining, n.Index) }

// Counters are the node's counters by "hook verdict". What uplink_xdp did counts as uplink_in's
// too, which would have done it.
func (n *Node) Counters(t testing.TB) map[string]uint64 {
	t.Helper()
	rows, err := n.Loader.Counters()
	must(t, err)
	out := map[string]uint64{}
	for _, r := range rows {
		out[r.Hook+" "+r.Verdict] += r.Packets
		if r.Hook == "uplink-xdp" {
			out["uplink-in "+r.Verdict] += r.Packets
		}
	}
	return out
}
