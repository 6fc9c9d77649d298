//go:build linux

package natt

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/netns"
)

// fast are the production times, shortened. Tests wait for states with a deadline that is far
// longer.
var fast = Timing{Probe: 200 * time.Millisecond, Grace: 100 * time.Millisecond, Total: 2 * time.Second, TotalLB: 800 * time.Millisecond, Recheck: time.Second}

// internet is a router that knows public networks only: packets to private addresses end there.
//
//	host a 192.0.2.1/24 ───┐
//	                   internet ─── router 203.0.113.2/24 ─ NAT ─ 10.0.0.1/24 ─── host b 10.0.0.2/24
type internet struct {
	t      *testing.T
	router *netns.NS
	links  int
}

func newInternet(t *testing.T) *internet {
	t.Helper()
	router := netns.ForTest(t, "inet")
	forward(t, router)
	if err := router.Sysctl("net/ipv6/conf/all/forwarding", "1"); err != nil {
		t.Fatal(err)
	}
	return &internet{t: t, router: router}
}

func forward(t *testing.T, n *netns.NS) {
	t.Helper()
	if err := n.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
}

// attach makes a host with public addresses; the first address of each network is the host's, the
// router has .254 (::fe).
func (i *internet) attach(name string, addresses ...string) *netns.NS {
	i.t.Helper()
	host := netns.ForTest(i.t, name)
	i.links++
	inner := fmt.Sprintf("net%d", i.links)
	var mine, theirs []netip.Prefix
	for _, a := range addresses {
		p := netip.MustParsePrefix(a)
		mine = append(mine, p)
		if g := netip.PrefixFrom(gateway(p), p.Bits()); !slices.Contains(theirs, g) {
			theirs = append(theirs, g)
		}
	}
	if err := netns.Veth(netns.End{NS: host, Name: "out", Addrs: mine}, netns.End{NS: i.router, Name: inner, Addrs: theirs}); err != nil {
		i.t.Fatal(err)
	}
	for _, p := range mine {
		route(i.t, host, p, gateway(p), "out")
	}
	return host
}

func gateway(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	b[len(b)-1] = 254
	a, _ := netip.AddrFromSlice(b)
	return a
}

func route(t *testing.T, n *netns.NS, of netip.Prefix, via netip.Addr, dev string) {
	t.Helper()
	all := netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	if of.Addr().Is6() {
		all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
	}
	if err := n.AddRoute(all, via, dev); err != nil {
		t.Fatal(err)
	}
}

// behind makes a NAT router with a public address, and hosts behind it. The router lets nothing in
// by itself.
func (i *internet) behind(name, public string, private ...string) (router *netns.NS, hosts []*netns.NS) {
	i.t.Helper()
	router = i.attach(name+"-nat", public)
	forward(i.t, router)
	// A switch, so that hosts of one network see each other.
	if _, err := router.Run("ip", "link", "add", "in", "type", "bridge"); err != nil {
		i.t.Fatal(err)
	}
	if _, err := router.Run("ip", "link", "set", "in", "up"); err != nil {
		i.t.Fatal(err)
	}
	for n, a := range private {
		p := netip.MustParsePrefix(a)
		host, port := netns.ForTest(i.t, fmt.Sprintf("%s-%d", name, n)), fmt.Sprintf("port%d", n)
		if err := netns.Veth(netns.End{NS: host, Name: "eth0", Addrs: []netip.Prefix{p}}, netns.End{NS: router, Name: port}); err != nil {
			i.t.Fatal(err)
		}
		if _, err := router.Run("ip", "link", "set", port, "master", "in"); err != nil {
			i.t.Fatal(err)
		}
		if n == 0 {
			if err := router.AddAddr("in", netip.PrefixFrom(gateway(p), p.Bits())); err != nil {
				i.t.Fatal(err)
			}
		}
		route(i.t, host, p, gateway(p), "eth0")
		hosts = append(hosts, host)
	}
	masquerade(i.t, router, 20000)
	return router, hosts
}

// masquerade gives the hosts behind a router its address and ports of the thousand from base on
// (below 32768, where no host takes its ports from), and forgets the mappings of before.
func masquerade(t *testing.T, router *netns.NS, base int, more ...string) {
	t.Helper()
	rules := fmt.Sprintf(`table ip nat
delete table ip nat
table ip nat {
	chain post { type nat hook postrouting priority 100; oifname "out" meta l4proto udp masquerade to :%d-%d; }
	chain pre { type nat hook prerouting priority -100; %s }
}
`, base, base+999, joined(more))
	if _, err := router.RunInput(rules, "nft", "-f", "-"); err != nil {
		t.Fatal(err)
	}
	if _, err := router.Run("conntrack", "-F"); err != nil {
		t.Fatal(err)
	}
}

func joined(rules []string) (out string) {
	for _, r := range rules {
		out += r + "; "
	}
	return out
}

// gate is a Discovery in a namespace, with what it told.
type gate struct {
	*Discovery
	t    *testing.T
	mu   sync.Mutex
	told []Reachability
	// counts are the received messages by outcome.
	counts map[string]uint64
}

// Enabled and the following methods make a gate the slog.Handler of its Discovery.
func (g *gate) Enabled(context.Context, slog.Level) bool { return true }
func (g *gate) WithAttrs([]slog.Attr) slog.Handler       { return g }
func (g *gate) WithGroup(string) slog.Handler            { return g }

func (g *gate) Handle(_ context.Context, r slog.Record) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "outcome" {
			g.counts[a.Value.String()]++
		}
		return true
	})
	return nil
}

// Counters are the received messages by outcome.
func (g *gate) Counters() map[string]uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.counts)
}

func open(t *testing.T, n *netns.NS, name, psk string, peers ...Peer) *gate {
	t.Helper()
	g := &gate{t: t, counts: map[string]uint64{}}
	err := n.Do(func() (err error) {
		g.Discovery, err = Open(Config{
			Name: name, PSK: []byte(psk), Timing: fast, Log: slog.New(g),
			Changed: func(_ string, v Reachability) {
				g.mu.Lock()
				defer g.mu.Unlock()
				g.told = append(g.told, v)
			},
		})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() }) // once more where a test closed it
	if err := g.Set(peers); err != nil {
		t.Fatal(err)
	}
	return g
}

// wait waits until the reachability of a peer is as it should be.
func (g *gate) wait(peer, what string, ok func(Reachability) bool) Reachability {
	g.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		v := g.Reachability()[peer]
		if ok(v) {
			return v
		}
		if time.Now().After(deadline) {
			g.t.Fatalf("%s about %s: want %s, still %+v; counters %v", g.name, peer, what, v, g.Counters())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func is(s State) func(Reachability) bool { return func(v Reachability) bool { return v.State == s } }

// counted waits until a counter has reached at least n.
func (g *gate) counted(name string, n uint64) {
	g.t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for g.Counters()[name] < n {
		if time.Now().After(deadline) {
			g.t.Fatalf("%s: counter %s stays below %d: %v", g.name, name, n, g.Counters())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func peer(name, private, public string) Peer {
	p := Peer{Name: name, Port: DefaultPort}
	if private != "" {
		p.Private = netip.MustParseAddr(private)
	}
	if public != "" {
		p.Public = netip.MustParseAddr(public)
	}
	return p
}

// udp opens a socket in a namespace.
func udp(t *testing.T, n *netns.NS, address string) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	err := n.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}
