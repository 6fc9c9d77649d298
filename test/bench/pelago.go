package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/netns"
)

// pelagoSafe is our data path in strict mode: translation at NA and NB behind the node's stack (so
// conntrack and FORWARD of the kube-proxy ruleset are passed on both), gateways that only switch.
// It runs the programs and the loader of the product; only the tables are written here instead of
// being made from API objects.
//
// A pod uses one egress IP (paired pooling), of which NA owns every block: 16,128 ports towards the
// server, which a closed flow holds for closed_floor (2 s) at least.
func pelagoSafe() Variant { return pelago("pelago-safe", dataplane.Strict) }

// pelagoHybrid bypasses the stack with packets of established connections, pelagoFast with all.
func pelagoHybrid() Variant { return pelago("pelago-hybrid", dataplane.Hybrid) }
func pelagoFast() Variant   { return pelago("pelago-fast", dataplane.Fast) }

func pelago(name string, datapath dataplane.Datapath) Variant {
	return Variant{Name: name, Target: ingress, Setup: func(t *Topology, scale Scale) (setup, error) {
		return setupPelago(t, scale, pelagoOptions{datapath: datapath})
	}}
}

// clustersetIP is the ClusterSetIP of the target, in the range of all of them.
var (
	clustersetIP    = netip.MustParseAddr("243.0.0.1")
	clustersetRange = netip.MustParsePrefix("243.0.0.0/8")
)

// pelagoVIP is the same path to the target's ClusterSetIP, which B alone serves.
func pelagoVIP(name string, datapath dataplane.Datapath) Variant {
	return Variant{Name: name, Target: clustersetIP, Setup: func(t *Topology, scale Scale) (setup, error) {
		return setupPelago(t, scale, pelagoOptions{datapath: datapath, vip: true})
	}}
}

// keys ends the name of the directory with the private keys of a wire.
const keys = "-keys"

// podNode is the index of NA and NB in their clusters; gateways have 1, 2, ….
const podNode = 100

// node is one node of the bench.
type node struct {
	ns      *netns.NS
	label   string // "na", "ga1", …
	cluster uint16
	index   uint16
	gateway bool
	uplinks []uplink
	loader  *loader.Loader
	edge    int // interface index of pelago0
	pods    dataplane.Datapath
	vip     bool     // the clusterset has ClusterSetIPs
	wire    *wireEnd // of a gateway; nil: vxlan
	mtu     int      // of pelago0
}

// uplink is a veth pair to another node.
type uplink struct {
	dev  string
	next netip.Prefix // the other end
	to   netip.Addr   // the overlay address of the other node
	node uint16       // its index in its cluster
	wan  bool         // it is a gateway of the other cluster
}

// overlay is the address of a node for overlay and cable.
func overlay(cluster, index uint16) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 30, byte(cluster), byte(index)})
}

func (n *node) address() netip.Addr { return overlay(n.cluster, n.index) }

// pelagoNodes lists NA, NB and all gateways.
func pelagoNodes(t *Topology) []*node {
	na := &node{ns: t.NA, label: "na", cluster: 1, index: podNode}
	nb := &node{ns: t.NB, label: "nb", cluster: 2, index: podNode}
	nodes := []*node{na, nb}
	for g := 1; g <= len(t.GA); g++ {
		i := uint16(g)
		na.uplinks = append(na.uplinks, uplink{dev: device(devUn, g), next: underGA(g), to: overlay(1, i), node: i})
		nb.uplinks = append(nb.uplinks, uplink{dev: device(devUn, g), next: underGB(g), to: overlay(2, i), node: i})
		ga := &node{ns: t.GA[g-1], label: device("ga", g), cluster: 1, index: i, gateway: true,
			uplinks: []uplink{{dev: device(devUn, 1), next: underNA(g), to: overlay(1, podNode), node: podNode}}}
		gb := &node{ns: t.GB[g-1], label: device("gb", g), cluster: 2, index: i, gateway: true,
			uplinks: []uplink{{dev: device(devUn, 1), next: underNB(g), to: overlay(2, podNode), node: podNode}}}
		for o := 1; o <= len(t.GB); o++ {
			j := uint16(o)
			ga.uplinks = append(ga.uplinks, uplink{dev: device(devWAN, o), next: wanGB(g, o), to: overlay(2, j), node: j, wan: true})
			gb.uplinks = append(gb.uplinks, uplink{dev: device(devWAN, o), next: wanGA(o, g), to: overlay(1, j), node: j, wan: true})
		}
		nodes = append(nodes, ga, gb)
	}
	return nodes
}

// pelagoOptions distinguish the variants of our data path.
type pelagoOptions struct {
	datapath  dataplane.Datapath
	vip       bool // the target is a ClusterSetIP
	wireGuard bool // between the gateways
}

func setupPelago(t *Topology, scale Scale, o pelagoOptions) (setup, error) {
	dir, err := os.MkdirTemp("", "pelago-bench-")
	if err != nil {
		return setup{}, fmt.Errorf("make a directory for the maps: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return setup{}, errors.Join(fmt.Errorf("mount a bpffs: %w", err), os.Remove(dir))
	}
	nodes := pelagoNodes(t)
	ctx, cancel := context.WithCancel(context.Background())
	var probers sync.WaitGroup
	s := setup{programs: programs{}}
	var ends []*wireEnd
	s.teardown = func() error {
		cancel()
		probers.Wait()
		errs := []error{closeWires(ends...)}
		for _, n := range nodes {
			if n.loader != nil {
				errs = append(errs, n.loader.Close())
			}
		}
		return errors.Join(append(errs, unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir), os.RemoveAll(dir+keys))...)
	}
	if o.wireGuard {
		a, b, err := openWireGuard(t, dir+keys)
		if err != nil {
			return setup{}, errors.Join(err, s.teardown())
		}
		ends = []*wireEnd{a, b}
	}
	for _, n := range nodes {
		n.pods, n.vip, n.mtu = o.datapath, o.vip, 1500-netdev.Overhead
		if o.wireGuard {
			n.mtu = wireEdgeMTU
		}
		for _, e := range ends {
			if e.ns == n.ns {
				n.wire = e
			}
		}
		if err := n.ns.Do(func() error { return n.start(dir+"/"+n.label, s.programs, scale) }); err != nil {
			return setup{}, errors.Join(fmt.Errorf("start the data path in %s: %w", n.ns.Name, err), s.teardown())
		}
	}
	// The cost of probing is part of the path's cost.
	for _, n := range nodes {
		p := probe.New(n.loader, func() (int, int) { return n.edge, n.mtu }, func() {}, slog.Default())
		probers.Go(func() {
			if err := n.ns.Do(func() error { p.Run(ctx); return nil }); err != nil {
				slog.Error("probe", "node", n.ns.Name, "error", err)
			}
		})
	}
	for _, n := range nodes {
		if err := n.answered(); err != nil {
			return setup{}, errors.Join(err, s.teardown())
		}
	}
	return s, nil
}

// outer is the address of the other node in outer headers.
func (n *node) outer(u uplink) netip.Addr {
	if u.wan && n.wire != nil {
		return n.wire.remote
	}
	return u.to
}

// answered waits until every gateway of the topology that the node probes has answered.
func (n *node) answered() error {
	waiting := netip.Addr{}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		paths, err := n.loader.Paths()
		if err != nil {
			return err
		}
		waiting = netip.Addr{}
		for _, u := range n.uplinks {
			if p := paths[n.outer(u)]; p.Probed && !p.Ready {
				waiting = u.to
			}
		}
		if !waiting.IsValid() {
			return nil
		}
	}
	return fmt.Errorf("%s: gateway %s does not answer probes", n.ns.Name, waiting)
}

func allBlocks() []uint16 {
	var first []uint16
	for p := 1024; p < 65536; p += dataplane.BlockPorts {
		first = append(first, uint16(p))
	}
	return first
}

func (n *node) start(pins string, into programs, scale Scale) error {
	var err error
	options := loader.Options{PinPath: pins}
	if scale.Flows > 0 {
		options.MaxFlows = 1 << 20
	}
	if n.loader, err = loader.Open(options); err != nil {
		return err
	}
	if !n.gateway {
		if err := fill(filepath.Join(pins, bpf.PelagoMapFlows), scale.Flows); err != nil {
			return err
		}
	}
	if err := n.ns.AddAddr("lo", single(n.address())); err != nil {
		return err
	}
	remote := []netip.Prefix{globalB}
	if n.cluster == 2 {
		remote[0] = globalA
	}
	for i := range scale.Clusters {
		remote = append(remote, otherCluster(i))
	}
	c := netdev.Config{Source: n.address(), Prefixes: remote, MTU: n.mtu}
	if n.vip {
		c.Prefixes = append(slices.Clone(c.Prefixes), clustersetRange)
	}
	if n.edge, err = netdev.EnsureOverlay(c.MTU); err != nil {
		return err
	}
	c.Edge = n.edge
	filter := netdev.Filter{}
	switch {
	case n.wire != nil:
		filter.Open = cable.Ports(cable.WireGuardDriver, cable.Local{Listen: wirePort})
	case n.gateway:
		c.CablePort, filter.CablePort = 4500, 4500
	}
	if _, err := netdev.Ensure(c); err != nil {
		return err
	}
	obstacles, err := netdev.Firewall(filter)
	if err := errors.Join(obstacles.Err, err); err != nil {
		return err
	}
	var uplinks []int
	for _, u := range n.uplinks {
		index, err := n.ns.Index(u.dev)
		if err != nil {
			return err
		}
		uplinks = append(uplinks, index)
		if err := n.ns.AddRoute(single(u.to), u.next.Addr(), u.dev); err != nil {
			return err
		}
	}
	state, err := n.state(remote, scale)
	if err != nil {
		return err
	}
	devices := loader.Devices{Edge: n.edge, Uplinks: uplinks}
	if n.wire != nil {
		devices.Wires = n.wire.devices.Ifindexes
	}
	if n.vip {
		n.clusterSetIPs(&state)
	}
	if n.pods != dataplane.Strict && !n.gateway {
		if err := netdev.LenientConntrack(); err != nil {
			return err
		}
	}
	if (n.pods != dataplane.Strict || n.vip) && !n.gateway {
		if err := n.ownDevice(&state, &devices); err != nil {
			return err
		}
	}
	if _, err := n.loader.Attach(devices); err != nil {
		return err
	}
	for name, program := range n.loader.Programs() {
		into[name+"@"+n.label] = program
	}
	return n.loader.Apply(state)
}

// fill puts idle flows into a pinned table, two entries each, as of UDP clients with addresses of
// their own.
func fill(pin string, flows int) error {
	m, err := ebpf.LoadPinnedMap(pin, nil)
	if err != nil {
		return fmt.Errorf("open the table of flows: %w", err)
	}
	defer m.Close()
	const chunk = 4096
	for from := 0; from < flows; from += chunk {
		var keys []bpf.PelagoFlowKey
		var values []bpf.PelagoFlow
		for i := from; i < min(flows, from+chunk); i++ {
			client, port := 0x0a080000+uint32(i>>15), uint16(20000+i&0x7fff)
			for _, direction := range []bpf.PelagoDirection{bpf.PelagoDirectionDIRECTION_OUT, bpf.PelagoDirectionDIRECTION_IN} {
				keys = append(keys, bpf.PelagoFlowKey{Saddr: client, Sport: port, Dport: portSink, Proto: unix.IPPROTO_UDP, Direction: uint8(direction)})
				values = append(values, bpf.PelagoFlow{State: 2, Saddr: client, Sport: port, Dport: portSink, Cluster: 2})
			}
		}
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("fill the table of flows: %w", err)
		}
	}
	return nil
}

// state is the node's tables. The clusters are A (index 1), B (2) and, from index 3 on, the others
// of the scale: each has as many gateways as B, on the far side of the first WAN device, none of
// which answers.
func (n *node) state(remote []netip.Prefix, scale Scale) (dataplane.State, error) {
	far := 3 - n.cluster
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: n.address(), CableAddress: n.address(), Node: n.index, Cluster: n.cluster, Gateway: n.gateway, MSS: uint16(n.mtu - 40),
			Overlay: dataplane.Tokens{Current: 0xbe0c4}, Cable: dataplane.Tokens{Current: 0xcab1e}, Ready: true, Edge: uint32(n.edge),
		},
		Routes:   map[netip.Prefix]uint16{remote[0]: far},
		Nodes:    map[uint16]dataplane.Hop{},
		Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers:    map[netip.Addr]dataplane.Peer{},
		Sources:  map[netip.Addr]dataplane.Source{},
		Egresses: map[netip.Addr][]uint16{},
		Globals:  map[netip.Addr]dataplane.Global{},
		Blocks:   map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{},
	}
	switch {
	case n.wire != nil:
		s.Settings.CableAddress = n.wire.local
	case n.gateway:
		s.Settings.CablePort = 4500
	}
	gateways := 0
	for _, u := range n.uplinks {
		index, err := n.ns.Index(u.dev)
		if err != nil {
			return s, err
		}
		hop := dataplane.Hop{Address: u.to, Next: u.next.Addr(), Ifindex: uint32(index)}
		if !u.wan {
			s.Nodes[u.node] = hop
			s.Peers[u.to] = dataplane.Peer{Kind: dataplane.PeerNode, Node: u.node}
			continue
		}
		gateways++
		remote := dataplane.RemoteGateway{Hop: hop, Node: u.node, Port: 4500}
		if n.wire != nil {
			remote.Hop, remote.Port, remote.Tunnels = dataplane.Hop{Address: n.wire.remote, Next: n.wire.remote}, dataplane.OverlayPort, n.wire.tunnels()
		}
		s.Clusters[far] = append(s.Clusters[far], remote)
		s.Peers[n.outer(u)] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: far, Node: u.node}
	}
	if !n.gateway {
		gateways = len(n.uplinks)
	}
	for g := range gateways {
		s.Gateways = append(s.Gateways, uint16(g+1))
	}
	for i, prefix := range remote[1:] {
		cluster := uint16(3 + i)
		s.Routes[prefix] = cluster
		for g := 1; n.gateway && g <= gateways; g++ {
			hop := s.Clusters[far][0].Hop
			hop.Address = netip.AddrFrom4([4]byte{172, 31, byte(cluster), byte(g)})
			s.Clusters[cluster] = append(s.Clusters[cluster], dataplane.RemoteGateway{Hop: hop, Node: uint16(g), Port: 4500})
			s.Peers[hop.Address] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: cluster, Node: uint16(g)}
		}
	}
	if n.cluster == 1 {
		return s, n.client(&s)
	}
	n.server(&s, scale)
	return s, nil
}

// clusterSetIPs has B serve every port of the target under its ClusterSetIP.
func (n *node) clusterSetIPs(s *dataplane.State) {
	v := dataplane.VIP{Targets: []dataplane.VIPTarget{{Cluster: 2, Address: ingress}}}
	v.Slots = dataplane.VIPTable(v.Targets, []int{1})
	s.VIPRange, s.VIPs = clustersetRange, map[dataplane.ServiceKey]dataplane.VIP{}
	for _, port := range []uint16{portEcho, portSink, portDrain, portTest} {
		for _, protocol := range []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			s.VIPs[dataplane.ServiceKey{Address: clustersetIP, Port: port, Protocol: protocol}] = v
		}
	}
}

// ownDevice gives the node's pod a device with programs.
func (n *node) ownDevice(s *dataplane.State, devices *loader.Devices) error {
	var finder netdev.PodDevices
	found, err := finder.Find([]netip.Addr{podAddr}, nil, netdev.NamespacesDir)
	if err != nil {
		return err
	}
	e := found[podAddr].Endpoint
	if e.Ifindex == 0 {
		return fmt.Errorf("%s: the device of pod %s is not known: %s", n.ns.Name, podAddr, found[podAddr].Problem)
	}
	e.Datapath = n.pods
	s.Endpoints = map[netip.Addr]dataplane.Endpoint{podAddr: e}
	devices.Pods = []int{int(e.Ifindex)}
	return nil
}

// client has cluster A's pod use one egress IP.
func (n *node) client(s *dataplane.State) error {
	s.Globals[egressLow] = dataplane.Global{Kind: dataplane.GlobalEgress}
	for _, first := range allBlocks() {
		s.Blocks[dataplane.BlockKey{Address: egressLow, First: first}] = podNode
	}
	if n.gateway {
		return nil
	}
	host, err := n.ns.Index(devHost)
	if err != nil {
		return err
	}
	s.Egresses[egressLow] = allBlocks()
	s.Sources[podAddr] = dataplane.Source{Egress: egressLow, Ifindex: uint32(host)}
	return nil
}

// server exposes cluster B's pod: by a global IP of its own, or as the only backend of a service.
func (n *node) server(s *dataplane.State, scale Scale) {
	table := dataplane.Maglev(map[uint16]int{podNode: 1})
	expose := func(address netip.Addr, ports map[uint16]uint8) {
		s.Globals[address] = dataplane.Global{Kind: dataplane.GlobalService}
		for port, protocol := range ports {
			service := dataplane.Service{Table: table}
			if !n.gateway {
				service = dataplane.Service{Backends: []netip.AddrPort{netip.AddrPortFrom(podAddr, port)}}
			}
			s.Services[dataplane.ServiceKey{Address: address, Port: port, Protocol: protocol}] = service
		}
	}
	for i := range scale.Services {
		expose(otherService(i), map[uint16]uint8{80: unix.IPPROTO_TCP})
	}
	if scale.Service {
		expose(ingress, map[uint16]uint8{portEcho: unix.IPPROTO_TCP, portSink: unix.IPPROTO_UDP, portDrain: unix.IPPROTO_TCP, portTest: unix.IPPROTO_TCP})
		return
	}
	pod := dataplane.Global{Kind: dataplane.GlobalPod, Node: podNode}
	if !n.gateway {
		pod.Pod = podAddr
	}
	s.Globals[ingress] = pod
}
