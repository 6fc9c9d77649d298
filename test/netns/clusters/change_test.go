package clusters

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// All gateways of both clusters switch at once, each its share of the flows.
func (w *town) gatewaysShare(t *testing.T) {
	switched := func() []uint64 {
		var out []uint64
		for _, c := range w.Clusters[1:] {
			for _, index := range c.Gateways {
				out = append(out, c.Nodes[index-1].Counters(t)["uplink-in switched"])
			}
		}
		return out
	}
	before := switched()
	for range 120 {
		c, err := dial(w.client[3], "udp", netip.AddrPortFrom(w.server[3].Global, 53))
		must(t, err)
		if err := ping(c, 10); err != nil {
			t.Error(err)
		}
		must(t, c.Close())
	}
	var got []uint64
	for i, n := range switched() {
		got = append(got, n-before[i])
	}
	for _, n := range got {
		if n < 60 || n > 180 { // of 240 packets through each cluster
			t.Errorf("the gateways 1 and 2 of both clusters switched %v packets; want about 120 each", got)
			break
		}
	}
}

// load is what runs while something changes: 100 connections and 1,000 datagrams a second from
// client3 to the servers.
type load struct {
	*connections
	stop func() (sent int, lost []uint64)
}

func (w *town) load(t *testing.T) load {
	t.Helper()
	return load{connect(t, w.client[3], netip.AddrPortFrom(w.all, 80), 100), stream(t, w.client[3], netip.AddrPortFrom(w.all, 53))}
}

// wantUnharmed ends the load and checks that no connection broke and that every datagram came back;
// not lossless: the last ones.
func (l load) wantUnharmed(t *testing.T, lossless bool) {
	t.Helper()
	time.Sleep(300 * time.Millisecond) // traffic after the change
	sent, lost := l.stop()
	broken := l.end()
	if len(broken) > 0 {
		t.Errorf("connections broke: %v of %v", broken, l.served)
	}
	const last = 20
	if n := len(lost); n > 0 && (lossless || lost[n-1]+last > uint64(sent)) {
		t.Errorf("%d of %d datagrams were lost, from number %d to %d", len(lost), sent, lost[0], lost[len(lost)-1])
	}
}

// A gateway is drained: it is picked no more, and switches on until everybody knows. Nothing is
// lost, neither then nor when it comes back.
func (w *town) drain(t *testing.T) {
	one, two := w.Clusters[1], w.Clusters[2]
	l := w.load(t)
	time.Sleep(200 * time.Millisecond) // traffic before the change
	for _, c := range []*Cluster{one, two} {
		c.Gateways, c.Draining = []uint16{1}, []uint16{2}
	}
	w.Apply(t)
	time.Sleep(200 * time.Millisecond) // traffic while it drains
	one.Draining, two.Draining = nil, nil
	w.Apply(t)
	if one.Nodes[1].IsGateway() {
		t.Error("node 2 is still a gateway")
	}
	time.Sleep(200 * time.Millisecond)                    // traffic without it
	one.Draining, two.Draining = []uint16{2}, []uint16{2} // it is ready before it is picked
	w.Apply(t)
	for _, c := range []*Cluster{one, two} {
		c.Gateways, c.Draining = []uint16{1, 2}, nil
	}
	w.Apply(t)
	l.wantUnharmed(t, true)
}

// A gateway dies and is taken out of the set later: what it carried is repeated, no connection
// breaks.
func (w *town) takeAway(t *testing.T) {
	one := w.Clusters[1]
	gone := one.Nodes[1]
	l := w.load(t)
	time.Sleep(200 * time.Millisecond) // traffic before the change
	gone.MustRun(t, "ip", "link", "set", "un0", "down")
	time.Sleep(300 * time.Millisecond) // it is dead, and nobody knows
	one.Gateways = []uint16{1}
	for _, n := range w.Nodes() {
		if n != gone {
			n.Apply(t)
		}
	}
	time.Sleep(time.Second) // TCP repeats what was lost
	l.wantUnharmed(t, false)
	gone.MustRun(t, "ip", "link", "set", "un0", "up")
	must(t, gone.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), one.router(), "un0"))
	w.useGateways(t, []uint16{1, 2}, []uint16{1, 2})
}

// Backends become unready, go for good, and come back, under connections: only those of the pod
// that went break, at once.
func (w *town) backendsChange(t *testing.T) {
	key := dataplane.ServiceKey{Address: w.all, Port: 80, Protocol: tcp}
	service := w.Clusters[2].Services[key]
	gone := w.server[2]

	l := connect(t, w.client[3], netip.AddrPortFrom(w.all, 80), 100)
	delete(service.Backends, gone)
	w.Apply(t)
	for range 20 {
		if who, _, err := ask(w.client[1], netip.AddrPortFrom(w.all, 80)); err != nil || who == "server2" {
			t.Errorf("a new connection while server2 is not ready: %s, %v", who, err)
		}
	}
	time.Sleep(300 * time.Millisecond) // its connections go on meanwhile
	service.Backends[gone] = 80
	w.Apply(t)
	time.Sleep(300 * time.Millisecond) // and afterwards
	if broken := l.end(); len(broken) > 0 {
		t.Errorf("server2 was not ready and came back: connections broke: %v of %v", broken, l.served)
	}

	l = connect(t, w.client[3], netip.AddrPortFrom(w.all, 80), 100)
	for _, s := range w.Clusters[2].Services {
		delete(s.Backends, gone)
	}
	gone.Gone = true
	w.Apply(t)
	time.Sleep(600 * time.Millisecond) // each connection talks five times; a reset comes within one
	want := map[string]int{"server2": l.served["server2"]}
	if diff := cmp.Diff(want, l.end()); diff != "" || want["server2"] == 0 {
		t.Errorf("server2 went: connections that broke (-want +got), of %v:\n%s", l.served, diff)
	}
	gone.Gone = false
	for key, s := range w.Clusters[2].Services {
		if key.Address == w.all {
			s.Backends[gone] = key.Port
		}
	}
	w.Apply(t)
}

// An open UDP socket is served on within a second when its backend is no longer one, and when the
// node of its backend dies.
func (w *town) datagramsMove(t *testing.T) {
	to := netip.AddrPortFrom(w.all, 53)
	service := w.Clusters[2].Services[dataplane.ServiceKey{Address: w.all, Port: 53, Protocol: udp}]
	before := maps.Clone(service.Backends)
	only := func(pods ...*Pod) {
		clear(service.Backends)
		for _, p := range pods {
			service.Backends[p] = 53
		}
		w.Apply(t)
	}
	first, second, third := w.server[1], w.server[2], w.server[3]
	only(first)
	c, err := dial(w.client[3], "udp", to)
	must(t, err)
	defer c.Close()
	must(t, ping(c, 10))
	// at reports whether the last datagram went to a pod.
	at := func(p *Pod) bool {
		flows, err := p.Node.Loader.Flows()
		must(t, err)
		return slices.ContainsFunc(flows, func(f dump.Flow) bool {
			return f.Role == dump.RoleServer && f.Opening.Destination == to && f.Pod == p.Address && f.Idle < time.Second
		})
	}
	// moves sends datagrams, one every 20 ms, until one is answered that went to a pod.
	moves := func(what string, p *Pod, within time.Duration) {
		t.Helper()
		began := time.Now()
		for time.Since(began) < within {
			if pingWithin(c, 10, 200*time.Millisecond) == nil && at(p) {
				t.Logf("%s: after %s", what, time.Since(began).Round(time.Millisecond))
				return
			}
			time.Sleep(20 * time.Millisecond) // between two datagrams
		}
		t.Errorf("%s: not served by %s after %s", what, p.Address, within)
	}
	const limit = 2 * time.Second // one, and what a busy machine takes
	only(second)
	moves("another backend", second, limit)
	only(third)
	moves("and another one", third, limit)
	only(second, third)
	must(t, ping(c, 10))
	third.Node.MustRun(t, "ip", "link", "set", "un0", "down")
	moves("its node is dead", second, limit)
	third.Node.MustRun(t, "ip", "link", "set", "un0", "up")
	must(t, third.Node.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), w.Clusters[2].router(), "un0"))
	clear(service.Backends)
	maps.Copy(service.Backends, before)
	w.Apply(t)
}

// The daemons of all nodes die, stay away, and come back with new programs: nothing is lost, broken
// or forgotten.
func (w *town) daemonDies(t *testing.T) {
	opened := func() (out []string) {
		for _, n := range w.Nodes() {
			flows, err := n.Loader.Flows()
			must(t, err)
			for _, f := range flows {
				if f.State == "closed" {
					continue // a new flow may need its tuple
				}
				out = append(out, fmt.Sprint(n.Name, f.Role, f.Protocol, f.Opening, f.Translated))
			}
		}
		slices.Sort(out)
		return out
	}
	l := w.load(t)
	time.Sleep(200 * time.Millisecond) // traffic before
	before := opened()
	for _, n := range w.Nodes() {
		must(t, n.Loader.Close())
	}
	time.Sleep(500 * time.Millisecond) // traffic with no daemon anywhere
	for _, n := range w.Nodes() {
		n.Open(t)
		n.Apply(t)
	}
	l2 := connect(t, w.client[1], netip.AddrPortFrom(w.all, 80), 10)
	after := map[string]bool{}
	for _, f := range opened() {
		after[f] = true
	}
	for _, f := range before {
		if !after[f] {
			t.Errorf("flow %s is gone", f)
		}
	}
	if broken := l2.end(); len(broken) > 0 {
		t.Errorf("new connections broke: %v", broken)
	}
	l.wantUnharmed(t, true)
}
