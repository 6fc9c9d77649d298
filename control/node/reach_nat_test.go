package node

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/status"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/natt"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/netns"
)

// natted is a gateway in a namespace of its own, with the daemon's part that makes the way to
// others. Its API objects are made by the test: of the other it knows what an Endpoint would tell.
type natted struct {
	t       *testing.T
	ns      *netns.NS
	d       *Daemon
	objs    tables.Objects
	private string
	// of the last reconcile
	reach tables.Reach
	wire  tables.Wire
	seen  tables.Objects // as this gateway uses them
	ways  map[string]natt.Reachability
}

func newNatted(t *testing.T, ns *netns.NS, cluster uint16, private, driver string) *natted {
	t.Helper()
	psk := t.TempDir()
	if err := os.WriteFile(filepath.Join(psk, config.KeyPSK), []byte("secret of the set"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	// control sockets of all namespaces are in one directory
	keys, prefix := t.TempDir(), fmt.Sprintf("r%dc%d", os.Getpid(), cluster)
	g := &natted{t: t, ns: ns, private: private, d: &Daemon{
		log: log, trigger: make(chan struct{}, 1), needed: newNeeded("", "", net.DefaultResolver, func() {}),
		opts: Options{PSKDir: psk, Logger: log, OpenWire: func(driver string) (cable.Wire, error) {
			if driver == config.CableVXLAN {
				return &cable.VXLAN{}, nil
			}
			return cable.OpenWireGuard(cable.WireGuardOptions{Dir: keys, Prefix: prefix, Log: log})
		}},
	}}
	g.d.gateway.resolver = NewResolver(ResolverOptions{Log: log})
	node := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gw", Labels: map[string]string{submarinerv1.LabelGateway: "true"}}}
	g.objs = tables.Objects{
		Name: "gw", Nodes: []corev1.Node{node},
		Config: config.Config{
			ClusterID: "c" + strconv.Itoa(int(cluster)), ClusterIndex: cluster, CableDriver: driver, CablePort: 4500,
			FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"),
		},
		NodeIndexes: []pelagov1alpha1.NodeIndex{{ObjectMeta: metav1.ObjectMeta{Name: "gw"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1}}},
	}
	t.Cleanup(func() {
		problems := g.d.gateway.closeDiscovery()
		if err := ns.Do(func() error { problems = append(problems, g.d.gateway.closeWire()...); return nil }); err != nil {
			t.Error(err)
		}
		if len(problems) > 0 {
			t.Error(problems)
		}
	})
	return g
}

func (g *natted) fabric() netip.Addr {
	a, err := g.objs.Config.FabricAddress(g.objs.Config.ClusterIndex, 1)
	if err != nil {
		g.t.Fatal(err)
	}
	return a
}

// reconcile does what the daemon's does for the way to others, and returns the problems.
func (g *natted) reconcile() (problems []string) {
	g.t.Helper()
	if err := g.ns.Do(func() error {
		objs, r, more := g.d.ensureReach(g.objs)
		w, wire := g.d.ensureWire(objs, defaultMTU, nil)
		g.reach, g.wire, g.seen, g.ways, problems = r, w.With(r), objs, objs.Discovered, append(more, wire...)
		return nil
	}); err != nil {
		g.t.Fatal(err)
	}
	return problems
}

// learn makes the other one's gateway a peer, as control/agent/peering would.
func (g *natted) learn(o *natted) {
	port, err := strconv.Atoi(o.wire.Identity[submarinerv1.BackendNATTDiscoveryPort])
	if err != nil {
		g.t.Fatal(err)
	}
	g.objs.Peers = []pelagov1alpha1.Peer{{
		ObjectMeta: metav1.ObjectMeta{Name: o.objs.Config.ClusterID},
		Spec: pelagov1alpha1.PeerSpec{ClusterIndex: int32(o.objs.Config.ClusterIndex), Gateways: []pelagov1alpha1.PeerGateway{{
			Name: o.objs.Name, Address: o.private, PrivateAddress: o.private, NATTPort: int32(port), Port: 4500, Wire: o.objs.Config.CableDriver,
			NodeIndex: 1, FabricAddress: o.fabric().String(), Identity: o.wire.Identity,
		}}},
		Status: pelagov1alpha1.PeerStatus{Conditions: []metav1.Condition{{
			Type: pelagov1alpha1.PeerAccepted, Status: metav1.ConditionTrue, Reason: pelagov1alpha1.ReasonAccepted,
		}}},
	}}
}

// until reconciles as the daemon would, woken every now and then, until the way to the peer is as
// it should be.
func (g *natted) until(what string, ok func(natt.Reachability) bool) natt.Reachability {
	g.t.Helper()
	var problems []string
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		problems = g.reconcile()
		for _, v := range g.ways {
			if ok(v) {
				return v
			}
		}
	}
	g.t.Fatalf("%s: want %s, still %+v; problems %q", g.objs.Config.ClusterID, what, g.ways, problems)
	return natt.Reachability{}
}

// behindNAT makes two gateways: one with an address that everybody can reach, and one behind a
// router that masquerades and lets nothing in.
//
//	c1 192.0.2.1 ── internet ── 203.0.113.2 router 10.0.0.254 ── 10.0.0.2 c2
func behindNAT(t *testing.T, driver string) (router *netns.NS, open, hidden *natted) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ns := func(name string, forwards bool) *netns.NS {
		n := netns.ForTest(t, name)
		if forwards {
			must(n.Sysctl("net/ipv4/ip_forward", "1"))
		}
		return n
	}
	one, internet, router, two := ns("open", false), ns("inet", true), ns("nat", true), ns("hidden", false)
	at := func(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }
	all := netip.MustParsePrefix("0.0.0.0/0")
	must(netns.Veth(netns.End{NS: one, Name: "eth0", Addrs: at("192.0.2.1/24")}, netns.End{NS: internet, Name: "one", Addrs: at("192.0.2.254/24")}))
	must(netns.Veth(netns.End{NS: router, Name: "out", Addrs: at("203.0.113.2/24")}, netns.End{NS: internet, Name: "two", Addrs: at("203.0.113.254/24")}))
	must(netns.Veth(netns.End{NS: two, Name: "eth0", Addrs: at("10.0.0.2/24")}, netns.End{NS: router, Name: "in", Addrs: at("10.0.0.254/24")}))
	must(one.AddRoute(all, ip("192.0.2.254"), "eth0"))
	must(router.AddRoute(all, ip("203.0.113.254"), "out"))
	must(two.AddRoute(all, ip("10.0.0.254"), "eth0"))
	masquerade(t, router, 20000)
	return router, newNatted(t, one, 1, "192.0.2.1", driver), newNatted(t, two, 2, "10.0.0.2", driver)
}

// masquerade gives what leaves the router its address and ports of the thousand from base on, and
// forgets all mappings.
func masquerade(t *testing.T, router *netns.NS, base int) {
	t.Helper()
	rules := fmt.Sprintf("table ip nat\ndelete table ip nat\ntable ip nat {\n\tchain post { type nat hook postrouting priority 100; "+
		"oifname \"out\" meta l4proto udp masquerade to :%d-%d; }\n\tchain pre { type nat hook prerouting priority -100; }\n}\n", base, base+999)
	if _, err := router.RunInput(rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if _, err := router.Run("conntrack", "-F"); err != nil {
		t.Fatal(err)
	}
}

// A cluster behind NAT without any inbound connects, and stays connected when its mapping changes.
// The traffic is the hard case: everything goes towards the hidden gateway, which sends nothing
// back but the probes of its data path.
func TestBehindNAT(t *testing.T) {
	router, open, hidden := behindNAT(t, config.CableWireGuard)
	for _, g := range []*natted{open, hidden} {
		if problems := g.reconcile(); len(problems) > 0 { // makes the keys
			t.Fatal(problems)
		}
	}
	open.learn(hidden)
	hidden.learn(open)
	open.reconcile()
	v := hidden.until("a confirmed address", func(v natt.Reachability) bool { return v.State == natt.Confirmed })
	if v.Address != ip("192.0.2.1") || !v.NAT() || v.Seen.Addr() != ip("203.0.113.2") {
		t.Errorf("the hidden gateway sees %+v", v)
	}
	v = open.until("waiting", func(v natt.Reachability) bool { return v.State == natt.Waiting })
	if v.Address.IsValid() || v.Source.Addr() != ip("203.0.113.2") {
		t.Errorf("the open gateway sees %+v", v)
	}
	if !slices.Contains(open.wire.Ports, natt.DefaultPort) {
		t.Errorf("ports %v to be let in", open.wire.Ports)
	}

	s := newStream(t, open, hidden)
	s.awaitFirst()
	s.run(time.Second)
	before := open.status(hidden)
	for _, base := range []int{22000, 24000, 26000} {
		masquerade(t, router, base)
		var after cable.Status
		await.True(t, fmt.Sprintf("the open gateway sends to a port from %d on", base), func() bool {
			s.run(100 * time.Millisecond)
			// the daemon continues meanwhile, and must not spoil it
			for _, g := range []*natted{open, hidden} {
				g.reconcile()
			}
			after = open.status(hidden)
			port := int(after.Endpoint.Port())
			return port >= base && port < base+1000
		})
		s.awaitMore()
		// The next probe has told the new port, within 250 ms; a handshake would have taken 15 s.
		if after.Handshake != before.Handshake {
			t.Errorf("a handshake at %v, after that at %v, has told the new port %d", after.Handshake, before.Handshake, after.Endpoint.Port())
		}
	}
	lost, gap := s.end()
	t.Logf("3 changes of the mapping under 1,000 datagrams/s: %d of %d lost, largest gap %v", lost, s.sent, gap)
	for g, want := range map[*natted]string{open: "203.0.113.2", hidden: "192.0.2.1"} {
		if c := g.connection(); c.UsingIP != want || !c.UsingNAT || c.Status != submarinerv1.Connecting {
			t.Errorf("%s: connection %+v, want one with %s", g.objs.Config.ClusterID, c, want)
		}
	}
	for g, want := range map[*natted]natt.State{open: natt.Waiting, hidden: natt.Confirmed} {
		for name, v := range g.ways {
			if v.State != want {
				t.Errorf("the way to %s: %+v", name, v)
			}
		}
	}
}

// The vxlan wire is refused behind NAT, by both sides, with the remedy, and nothing is sent there.
func TestBehindNATVXLAN(t *testing.T) {
	_, open, hidden := behindNAT(t, config.CableVXLAN)
	open.reconcile()
	hidden.reconcile()
	open.learn(hidden)
	hidden.learn(open)
	open.reconcile()
	for _, g := range []*natted{hidden, open} {
		v := g.until("NAT", natt.Reachability.NAT)
		problems := g.reconcile()
		if len(problems) != 1 || v.Address.IsValid() || v.Reason == "" {
			t.Errorf("%s: problems %q, way %+v", g.objs.Config.ClusterID, problems, v)
		}
		c := g.connection()
		if c.Status != submarinerv1.ConnectionError || c.UsingIP != "" || !c.UsingNAT || !strings.Contains(c.StatusMessage, "--cable-driver wireguard") {
			t.Errorf("%s: connection %+v", g.objs.Config.ClusterID, c)
		}
	}
}

// connection is what the Gateway object says of the one peer.
func (g *natted) connection() submarinerv1.Connection {
	g.t.Helper()
	var r tables.Result
	r.State.Settings.Gateway = true
	r.Gateway = true
	o := status.Observation{Snapshot: status.NewSnapshot(g.seen, r, g.reach, false), Now: time.Now()}
	if err := g.ns.Do(func() (err error) {
		o.Peers, err = g.d.gateway.wire.Status()
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	return status.NewTracker("v3").Observe(o).Report.Gateway.Connections[0]
}

// status is that of the wire to the other gateway.
func (g *natted) status(o *natted) (st cable.Status) {
	g.t.Helper()
	if err := g.ns.Do(func() error {
		all, err := g.d.gateway.wire.Status()
		st = all[o.fabric()]
		return err
	}); err != nil {
		g.t.Fatal(err)
	}
	return st
}

// stream sends numbered datagrams from one gateway to the other through the wire, 1,000 a second,
// and the other sends a datagram as often as the data path probes idle paths.
type stream struct {
	t        *testing.T
	from, to net.PacketConn
	at       net.Addr
	sent     int
	mu       sync.Mutex
	received int
	last     time.Time
	gap      time.Duration
	done     chan struct{}
	running  sync.WaitGroup
}

func newStream(t *testing.T, from, to *natted) *stream {
	t.Helper()
	listen := func(g *natted) (c net.PacketConn) {
		if err := g.ns.Do(func() (err error) {
			c, err = net.ListenPacket("udp4", netip.AddrPortFrom(g.fabric(), 7000).String())
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return c
	}
	s := &stream{t: t, from: listen(from), to: listen(to), done: make(chan struct{})}
	s.at = s.to.LocalAddr()
	s.running.Go(func() {
		b := make([]byte, 100)
		for {
			if _, _, err := s.to.ReadFrom(b); err != nil {
				return
			}
			s.mu.Lock()
			now := time.Now()
			if s.received > 0 {
				s.gap = max(s.gap, now.Sub(s.last))
			}
			s.last = now
			s.received++
			s.mu.Unlock()
		}
	})
	s.running.Go(func() {
		for {
			// a wire that has no keys yet drops it
			_, _ = s.to.WriteTo([]byte("probe"), s.from.LocalAddr())
			select {
			case <-s.done:
				return
			case <-time.After(probe.Idle):
			}
		}
	})
	return s
}

// awaitFirst sends until something has come.
func (s *stream) awaitFirst() {
	s.t.Helper()
	s.awaitMore()
	time.Sleep(100 * time.Millisecond) // what is still on its way must not count
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent, s.received, s.gap = 0, 0, 0
}

// awaitMore sends until another datagram has come.
func (s *stream) awaitMore() {
	s.t.Helper()
	count := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.received
	}
	before := count()
	await.True(s.t, "a datagram comes through the wire", func() bool {
		s.run(20 * time.Millisecond)
		return count() > before
	})
}

func (s *stream) run(d time.Duration) {
	b := make([]byte, 8)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); time.Now().Before(end); <-tick.C {
		s.sent++
		binary.BigEndian.PutUint64(b, uint64(s.sent))
		_, _ = s.from.WriteTo(b, s.at) // what does not go out is lost, and counted as such
	}
}

func (s *stream) end() (lost int, gap time.Duration) {
	all := func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.received >= s.sent
	}
	for end := time.Now().Add(time.Second); !all() && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
	}
	close(s.done)
	s.from.Close()
	s.to.Close()
	s.running.Wait()
	return s.sent - s.received, s.gap
}
