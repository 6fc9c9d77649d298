package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/netns"
)

// pelagoSafe is our data path in policy-safe mode: translation at NA and NB behind the node's stack (so conntrack and
// FORWARD of the kube-proxy ruleset are passed on both), gateways that only switch. It runs the programs and the loader
// of the product; only the tables are written here instead of being made from API objects.
//
// A pod speaks from one egress IP (paired pooling), of which NA owns every block: 16,128 ports towards the server, which
// a closed flow holds for closed_floor (2 s) at least.
func pelagoSafe() Variant {
	return Variant{Name: "pelago-safe", Setup: setupPelago, Target: ingress}
}

// peer is one node of the bench as the tables see it.
type peer struct {
	ns       *netns.NS
	address  netip.Prefix
	cluster  uint16
	index    uint16
	gateway  bool
	hops     map[netip.Addr]hopVia // how it reaches others
	uplinks  []string
	loader   *loader.Loader
	edge     int // interface index of pelago0
	egresses map[netip.Addr][]uint16
}

type hopVia struct {
	dev  string
	next netip.Prefix
}

func setupPelago(t *Topology) (func() error, error) {
	dir, err := os.MkdirTemp("", "pelago-bench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory for the maps: %w", err)
	}
	if err := unix.Mount("bpf", dir, "bpf", 0, ""); err != nil {
		return nil, errors.Join(fmt.Errorf("mount a bpffs: %w", err), os.Remove(dir))
	}
	// A gateway has one address for overlay and cable here: that of its cluster's side.
	nodes := []*peer{
		{ns: t.NA, address: underNA, cluster: 1, index: 2, uplinks: []string{devUn}, hops: map[netip.Addr]hopVia{underGA.Addr(): {devUn, underGA}}, egresses: map[netip.Addr][]uint16{egressLow: allBlocks()}},
		{ns: t.GA, address: underGA, cluster: 1, index: 1, gateway: true, uplinks: []string{devUn, devWAN}, hops: map[netip.Addr]hopVia{underNA.Addr(): {devUn, underNA}, underGB.Addr(): {devWAN, wanGB}}},
		{ns: t.GB, address: underGB, cluster: 2, index: 1, gateway: true, uplinks: []string{devUn, devWAN}, hops: map[netip.Addr]hopVia{underNB.Addr(): {devUn, underNB}, underGA.Addr(): {devWAN, wanGA}}},
		{ns: t.NB, address: underNB, cluster: 2, index: 2, uplinks: []string{devUn}, hops: map[netip.Addr]hopVia{underGB.Addr(): {devUn, underGB}}},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var probers sync.WaitGroup
	teardown := func() error {
		cancel()
		probers.Wait()
		var errs []error
		for _, n := range nodes {
			if n.loader != nil {
				errs = append(errs, n.loader.Close())
			}
		}
		return errors.Join(append(errs, unix.Unmount(dir, unix.MNT_DETACH), os.Remove(dir))...)
	}
	for i, n := range nodes {
		if err := n.ns.Do(func() error { return n.start(fmt.Sprintf("%s/%d", dir, i)) }); err != nil {
			return nil, errors.Join(fmt.Errorf("start the data path in %s: %w", n.ns.Name, err), teardown())
		}
	}
	// What probing costs belongs to the path's cost.
	for _, n := range nodes {
		p := probe.New(n.loader, func() (int, int) { return n.edge, 1500 - netdev.Overhead }, func() {}, slog.Default())
		probers.Go(func() {
			if err := n.ns.Do(func() error { p.Run(ctx); return nil }); err != nil {
				slog.Error("probe", "node", n.ns.Name, "error", err)
			}
		})
	}
	for _, n := range nodes {
		if err := n.answered(); err != nil {
			return nil, errors.Join(err, teardown())
		}
	}
	return teardown, nil
}

// answered waits until every gateway that the node probes has answered.
func (n *peer) answered() error {
	waiting := netip.Addr{}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		paths, err := n.loader.Paths()
		if err != nil {
			return err
		}
		waiting = netip.Addr{}
		for a, p := range paths {
			if p.Probed && !p.Ready {
				waiting = a
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

func (n *peer) start(pins string) error {
	var err error
	if n.loader, err = loader.Open(loader.Options{PinPath: pins}); err != nil {
		return err
	}
	remote := globalB
	if n.cluster == 2 {
		remote = globalA
	}
	c := netdev.Config{Source: n.address.Addr(), Prefixes: []netip.Prefix{remote}, MTU: 1500 - netdev.Overhead}
	if n.gateway {
		c.CablePort = 4500
	}
	if n.edge, err = netdev.Ensure(c); err != nil {
		return err
	}
	if err := netdev.Firewall(c.CablePort); err != nil {
		return err
	}
	var uplinks []int
	for _, dev := range n.uplinks {
		index, err := n.ns.Index(dev)
		if err != nil {
			return err
		}
		uplinks = append(uplinks, index)
	}
	if err := n.loader.Attach(loader.Devices{Edge: n.edge, Uplinks: uplinks}); err != nil {
		return err
	}
	state, err := n.state(remote)
	if err != nil {
		return err
	}
	state.Settings.Edge = uint32(n.edge)
	return n.loader.Apply(state)
}

// state is the node's tables: clusters 1 and 2, gateway 1 and pod's node 2 in each.
func (n *peer) state(remote netip.Prefix) (dataplane.State, error) {
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: n.address.Addr(), CableAddress: n.address.Addr(), Node: n.index, Cluster: n.cluster, Gateway: n.gateway, MSS: 1500 - netdev.Overhead - 40,
			Overlay: dataplane.Tokens{Current: 0xbe0c4}, Cable: dataplane.Tokens{Current: 0xcab1e}, Ready: true,
		},
		Routes:   map[netip.Prefix]uint16{remote: 3 - n.cluster},
		Nodes:    map[uint16]dataplane.Hop{},
		Gateways: []uint16{1},
		Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers:    map[netip.Addr]dataplane.Peer{},
		Sources:  map[netip.Addr]dataplane.Source{},
		Egresses: n.egresses,
		Globals:  map[netip.Addr]dataplane.Global{},
		Blocks:   map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{},
	}
	if n.gateway {
		s.Settings.CablePort = 4500
	}
	for to, via := range n.hops {
		index, err := n.ns.Index(via.dev)
		if err != nil {
			return s, err
		}
		hop := dataplane.Hop{Address: to, Next: via.next.Addr(), Ifindex: uint32(index)}
		switch {
		case n.gateway && via.dev == devWAN:
			s.Clusters[3-n.cluster] = []dataplane.RemoteGateway{{Hop: hop, Node: 1, Port: 4500}}
			s.Peers[to] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 3 - n.cluster, Node: 1}
		default:
			s.Nodes[3-n.index] = hop
			s.Peers[to] = dataplane.Peer{Kind: dataplane.PeerNode, Node: 3 - n.index}
		}
	}
	if n.cluster == 1 {
		s.Globals[egressLow] = dataplane.Global{Kind: dataplane.GlobalEgress}
		for _, first := range allBlocks() {
			s.Blocks[dataplane.BlockKey{Address: egressLow, First: first}] = 2
		}
		if !n.gateway {
			host, err := n.ns.Index(devHost)
			if err != nil {
				return s, err
			}
			s.Sources[podAddr] = dataplane.Source{Egress: egressLow, Ifindex: uint32(host)}
		}
		return s, nil
	}
	pod := dataplane.Global{Kind: dataplane.GlobalPod, Node: 2}
	if !n.gateway {
		pod.Pod = podAddr
	}
	s.Globals[ingress] = pod
	return s, nil
}
