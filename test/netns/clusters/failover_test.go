package clusters

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/await"
)

// probing starts the prober of each node, as its daemon does, and waits until every path has its
// first answer.
func probing(t *testing.T, nodes ...*Node) (stop func()) {
	t.Helper()
	stop, _ = probers(t, nodes...) // what they have found is not requested
	return stop
}

// probers is probing, and gives the probers.
func probers(t *testing.T, nodes ...*Node) (stop func(), of map[*Node]*probe.Prober) {
	t.Helper()
	of = map[*Node]*probe.Prober{}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, n := range nodes {
		edge, err := n.NS.Index(netdev.Overlay)
		must(t, err)
		p := probe.New(n.Loader, func() (int, int) { return edge, edgeMTU }, func() {}, slog.New(slog.DiscardHandler))
		of[n] = p
		wg.Go(func() {
			if err := n.Do(func() error { p.Run(ctx); return nil }); err != nil {
				t.Error(err)
			}
		})
	}
	for _, n := range nodes {
		awaitPaths(t, n)
	}
	return func() { cancel(); wg.Wait() }, of
}

func awaitPaths(t *testing.T, n *Node) {
	t.Helper()
	await.Equal(t, nil, func() (waiting []string) {
		paths, err := n.Loader.Paths()
		must(t, err)
		for a, p := range paths {
			if p.Probed && (p.Replies == 0 || !p.Ready || p.Suspect()) {
				waiting = append(waiting, fmt.Sprintf("%s has no good path to %s", n.Name, a))
			}
		}
		return waiting
	})
}

// A gateway dies, or its wire or its link to the nodes is cut: the programs steer around it, with
// no table written, and go back to it. First with probers, then with none alive anywhere.
func (w *town) failover(t *testing.T) {
	one, two := w.Clusters[1], w.Clusters[2]
	w.useGateways(t, []uint16{1, 2}, []uint16{1, 2})
	type cut func(t *testing.T)
	faults := []struct {
		name        string
		fault, heal cut
	}{
		{"a gateway of the client's cluster dies", one.Nodes[0].cut, one.Nodes[0].mend},
		{"a gateway of the server's cluster dies", two.Nodes[1].cut, two.Nodes[1].mend},
		{"a gateway is cut from the other cluster", w.isolate(one.Nodes[0]), w.rejoin(one.Nodes[0])},
		{"a gateway is cut from the client's node", part(one.Nodes[1], one.Nodes[2]), unite(one.Nodes[1], one.Nodes[2])},
		{"a gateway is cut from the server's node", part(two.Nodes[0], two.Nodes[2]), unite(two.Nodes[0], two.Nodes[2])},
		{"a gateway gets nothing through to the client's node", one.Nodes[0].block(one.Nodes[2]), one.Nodes[0].unblock},
	}
	for _, daemons := range []bool{true, false} {
		for _, f := range faults {
			name := f.name
			if !daemons {
				name += ", all daemons dead"
			}
			t.Run(name, func(t *testing.T) {
				stop := probing(t, w.Nodes()...)
				if daemons {
					defer stop()
				} else {
					stop()
				}
				w.survives(t, f.fault, f.heal)
			})
		}
	}
}

// survives runs datagrams and connections over a fault. How long the gap is depends on the machine
// and is measured by the failover suite; here it must end, once, and nothing else may be lost.
func (w *town) survives(t *testing.T, fault, heal func(*testing.T)) {
	const gap = 1000 // datagrams, 1 ms each; what is lost without steering has no end
	client := w.client[3]
	before := map[string]map[string]uint64{}
	for _, n := range w.Nodes() {
		before[n.Name] = n.Counters(t)
	}
	defer func() {
		if t.Failed() {
			for _, n := range w.Nodes() {
				for verdict, count := range n.Counters(t) {
					if d := count - before[n.Name][verdict]; d > 0 {
						t.Logf("%s: %s: %d", n.Name, verdict, d)
					}
				}
			}
		}
	}()
	conns := connect(t, client, netip.AddrPortFrom(w.server[3].Global, 80), 40)
	var stops []func() (int, []uint64)
	for range 8 {
		stops = append(stops, stream(t, client, netip.AddrPortFrom(w.server[3].Global, 53)))
	}
	time.Sleep(300 * time.Millisecond) // traffic before the fault
	fault(t)
	// traffic under the fault, longer than the gap that is allowed
	time.Sleep(1500 * time.Millisecond)
	if broken := conns.end(); len(broken) > 0 {
		t.Errorf("connections broke under the fault: %v", broken)
	}
	var wg sync.WaitGroup
	for i, stop := range stops {
		wg.Go(func() {
			sent, lost := stop()
			if len(lost) == 0 {
				return
			}
			first, last := lost[0], lost[len(lost)-1]
			t.Logf("stream %d: %d of %d lost, %d to %d", i, len(lost), sent, first, last)
			if last-first > gap || last == uint64(sent-1) {
				t.Errorf("stream %d: %d of %d datagrams lost, from %d to %d: the fault was not steered around", i, len(lost), sent, first, last)
			}
		})
	}
	wg.Wait()
	heal(t)
}

// cut takes the node's uplink away, which is its death to everybody else.
func (n *Node) cut(t *testing.T) { n.MustRun(t, "ip", "link", "set", "un0", "down") }

func (n *Node) mend(t *testing.T) {
	n.MustRun(t, "ip", "link", "set", "un0", "up")
	must(t, n.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), n.Cluster.router(), "un0"))
}

// isolate cuts the node from the other cluster; its own is on one segment with it.
func (w *town) isolate(n *Node) func(*testing.T) { return w.forwarding("-I", n) }

func (w *town) rejoin(n *Node) func(*testing.T) { return w.forwarding("-D", n) }

func (w *town) forwarding(change string, n *Node) func(*testing.T) {
	return func(t *testing.T) {
		for _, direction := range []string{"-s", "-d"} {
			if _, err := w.Router.Run("iptables", change, "FORWARD", direction, n.Address.String(), "-j", "DROP"); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// block drops what the node sends to another one of its cluster.
func (n *Node) block(to *Node) func(*testing.T) {
	return func(t *testing.T) {
		n.MustRun(t, "ip", "neigh", "replace", to.Address.String(), "lladdr", "02:00:00:00:00:99", "dev", "un0", "nud", "permanent")
	}
}

func (n *Node) unblock(t *testing.T) {
	n.MustRun(t, "ip", "neigh", "flush", "dev", "un0", "nud", "permanent")
}

// part cuts two nodes of one cluster from each other.
func part(a, b *Node) func(*testing.T) {
	return func(t *testing.T) { a.block(b)(t); b.block(a)(t) }
}

func unite(a, b *Node) func(*testing.T) {
	return func(t *testing.T) { a.unblock(t); b.unblock(t) }
}
