package clusters

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

// TestBlackHole has a link between the clusters that is narrower than the nodes' and whose router
// sends no error: the gateways find out how large packets may be, no path is taken for bad, and
// with routes of that MTU connections work.
func TestBlackHole(t *testing.T) {
	t.Parallel()
	const (
		narrow = 1380 // MTU of the link, one way
		passes = narrow - 50
	)
	s := New(t, Options{Nodes: 2, Gateways: 1})
	one, two := s.Clusters[1], s.Clusters[2]
	client, server := one.Nodes[1].AddPod(t), two.Nodes[1].AddPod(t)
	vip := two.Expose(80, []uint8{unix.IPPROTO_TCP, unix.IPPROTO_UDP}, server)
	s.Apply(t)
	serveTCP(t, server, 80, exchange(1<<20))
	echoUDP(t, server, 80)
	stop, prober := probers(t, s.Nodes()...)
	defer stop()

	router := func(command ...string) {
		t.Helper()
		if _, err := s.Router.Run(command[0], command[1:]...); err != nil {
			t.Fatal(err)
		}
	}
	full := liveness.Size{Full: edgeMTU, Passes: edgeMTU}
	// expect waits until everybody knows how large packets may be: gateways to each other, and
	// nodes to their gateway.
	expect := func(what string, between liveness.Size) {
		t.Helper()
		holds := func() bool {
			for _, c := range s.Clusters[1:] {
				for i, n := range c.Nodes {
					want := map[netip.Addr]liveness.Size{c.Nodes[0].Address: full}
					if i == 0 {
						want = map[netip.Addr]liveness.Size{c.Other.Nodes[0].Address: between}
					}
					got := prober[n].Sizes()
					for a, size := range want {
						if got[a] != size {
							return false
						}
					}
				}
			}
			return true
		}
		for end := time.Now().Add(3 * time.Minute); !holds(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: gateways know %v and %v, nodes %v; want %v between the clusters", what,
					prober[one.Nodes[0]].Sizes(), prober[two.Nodes[0]].Sizes(), prober[one.Nodes[1]].Sizes(), between)
			}
		}
		for _, n := range s.Nodes() {
			paths, err := n.Loader.Paths()
			must(t, err)
			for a, p := range paths {
				if p.Probed && p.Dead() {
					t.Errorf("%s: %s calls the path to %s dead: %+v", what, n.Name, a, p)
				}
			}
		}
	}
	large := func() error {
		c, err := dial(client, "udp", netip.AddrPortFrom(vip, 80))
		must(t, err)
		defer c.Close()
		return pingPath(c, 1400)
	}
	limit := func(size int) {
		t.Helper()
		for _, n := range s.Nodes() {
			n.Limit = size
		}
		s.Apply(t)
		for _, n := range s.Nodes() {
			if routes := n.MustRun(t, "ip", "route", "show", "table", "4800", "dev", "pelago0"); strings.Contains(routes, "mtu 1330") != (size > 0) {
				t.Errorf("%s with limit %d has routes %q", n.Name, size, routes)
			}
		}
	}

	expect("at first", full)
	if err := large(); err != nil {
		t.Fatalf("at first: %v", err)
	}
	router("nft", "add table ip silent; add chain ip silent out { type filter hook output priority 0; }; "+
		"add rule ip silent out icmp type destination-unreachable drop")
	router("ip", "link", "set", "br2", "mtu", "1380")
	expect("a narrow link", liveness.Size{Full: edgeMTU, Passes: passes})
	if large() == nil {
		t.Error("a datagram of 1,400 bytes passes: there is no black hole to be found")
	}
	limit(passes)
	if err := large(); err != nil {
		t.Errorf("a datagram of 1,400 bytes, with routes that say how large packets may be: %v", err)
	}
	if err := bulk(client, netip.AddrPortFrom(vip, 80), 1<<20); err != nil {
		t.Errorf("TCP, with these routes: %v", err)
	}
	c, err := dial(client, "tcp", netip.AddrPortFrom(vip, 80))
	must(t, err)
	if got := option(t, c, unix.IPPROTO_TCP, unix.TCP_MAXSEG); got > passes-40 || got < passes-60 {
		t.Errorf("segments of up to %d bytes; want %d and hardly less", got, passes-40)
	}
	must(t, c.Close())
	router("ip", "link", "set", "br2", "mtu", "1500")
	expect("the link is wide again", full)
	limit(0)
	if err := bulk(client, netip.AddrPortFrom(vip, 80), 1<<20); err != nil {
		t.Errorf("TCP in the end: %v", err)
	}
}
