//go:build linux

package natt

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/netns"
)

func TestBothPublic(t *testing.T) {
	i := newInternet(t)
	a := open(t, i.attach("a", "192.0.2.1/24", "2001:db8:a::1/64"), "a", "psk",
		peer("b", "203.0.113.2", ""), peer("b6", "2001:db8:b::2", ""))
	hostB := i.attach("b", "203.0.113.2/24", "2001:db8:b::2/64")
	b := open(t, hostB, "b", "psk", peer("a", "10.9.9.9", "192.0.2.1"))

	v := a.wait("b", "confirmed", is(Confirmed))
	if v.Address != netip.MustParseAddr("203.0.113.2") || !v.Private || v.NAT() || v.Seen.Addr() != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("a about b: %+v", v)
	}
	v = b.wait("a", "confirmed and called", func(v Reachability) bool { return v.State == Confirmed && v.Source.IsValid() })
	if v.Address != netip.MustParseAddr("192.0.2.1") || v.Private || v.NAT() || v.Source.Addr() != netip.MustParseAddr("192.0.2.1") {
		t.Errorf("b about a: %+v", v)
	}

	// The same over IPv6, with another gateway at the same host.
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	b6 := open(t, hostB, "b6", "psk", peer("a", "2001:db8:a::1", ""))
	for _, v := range []Reachability{a.wait("b6", "confirmed", is(Confirmed)), b6.wait("a", "confirmed", is(Confirmed))} {
		if !v.Address.Is6() || v.NAT() {
			t.Errorf("over IPv6: %+v", v)
		}
	}
}

// A peer that ends stays confirmed for a while, then it is unreachable, and when it is back it is
// found again.
func TestPeerGoesAndComesBack(t *testing.T) {
	i := newInternet(t)
	hostB := i.attach("b", "203.0.113.2/24")
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "203.0.113.2", ""))
	b := open(t, hostB, "b", "psk", peer("a", "192.0.2.1", ""))
	a.wait("b", "confirmed", is(Confirmed))
	b.wait("a", "confirmed", is(Confirmed))
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	v := a.wait("b", "unreachable", is(Unreachable))
	if v.Address != netip.MustParseAddr("203.0.113.2") {
		t.Errorf("unreachable, but which address to try on? %+v", v)
	}
	open(t, hostB, "b", "psk", peer("a", "192.0.2.1", ""))
	a.wait("b", "confirmed", is(Confirmed))

	a.mu.Lock()
	defer a.mu.Unlock()
	var states []string
	for n, v := range a.told {
		if n > 0 && v == a.told[n-1] {
			t.Errorf("told twice: %+v", v)
		}
		if s := v.State.String(); len(states) == 0 || states[len(states)-1] != s {
			states = append(states, s)
		}
	}
	if got, want := strings.Join(states, " "), "probing confirmed unreachable confirmed"; got != want {
		t.Errorf("states %s, want %s", got, want)
	}
}

// The answer comes from the address that was asked, though the kernel would take another one.
func TestAnswersFromTheAddressAsked(t *testing.T) {
	i := newInternet(t)
	b := i.attach("b", "203.0.113.2/24")
	for _, second := range []string{"203.0.113.22/24", "10.7.7.7/32"} {
		if err := b.AddAddr("out", netip.MustParsePrefix(second)); err != nil {
			t.Fatal(err)
		}
	}
	if err := i.router.AddRoute(netip.MustParsePrefix("10.7.7.7/32"), netip.MustParseAddr("203.0.113.2"), "net1"); err != nil {
		t.Fatal(err)
	}
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "10.7.7.7", "203.0.113.22"))
	open(t, b, "b", "psk", peer("a", "192.0.2.1", ""))
	v := a.wait("b", "confirmed at its private address", func(v Reachability) bool { return v.State == Confirmed && v.Private })
	if v.Address != netip.MustParseAddr("10.7.7.7") || v.NAT() {
		t.Errorf("a about b: %+v", v)
	}
	a.counted("answers", 2)
	if n := a.Counters()["from_elsewhere"]; n != 0 {
		t.Errorf("%d answers came from an address that was not asked", n)
	}
}

// One gateway behind a masquerading router: it reaches the other one, which waits for it. When the
// mapping changes, and when the router's own address changes, both see it.
func TestBehindNAT(t *testing.T) {
	i := newInternet(t)
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "10.0.0.2", "203.0.113.2"))
	router, hosts := i.behind("b", "203.0.113.2/24", "10.0.0.2/24")
	b := open(t, hosts[0], "b", "psk", peer("a", "192.0.2.1", ""))

	masqueraded := Rewriting{SourceIP: true, SourcePort: true}
	from := func(address string, base uint16) func(netip.AddrPort) bool {
		return func(at netip.AddrPort) bool {
			return at.Addr() == netip.MustParseAddr(address) && at.Port() >= base && at.Port() < base+1000
		}
	}
	check := func(what string, mapped func(netip.AddrPort) bool) {
		t.Helper()
		v := b.wait("a", what, func(v Reachability) bool { return v.State == Confirmed && mapped(v.Seen) })
		if v.Address != netip.MustParseAddr("192.0.2.1") || v.Out != masqueraded || v.In != (Rewriting{}) || !v.NAT() {
			t.Errorf("%s: b about a: %+v", what, v)
		}
		v = a.wait("b", what, func(v Reachability) bool { return v.State == Waiting && mapped(v.Source) })
		if v.Address.IsValid() || v.In != masqueraded || v.Seen.IsValid() || !strings.Contains(v.Reason, "cannot be reached from outside") {
			t.Errorf("%s: a about b: %+v", what, v)
		}
	}
	check("mapped to 203.0.113.2:20xxx", from("203.0.113.2", 20000))

	masquerade(t, router, 30000)
	check("mapped to other ports", from("203.0.113.2", 30000))

	if _, err := router.Run("ip", "addr", "flush", "dev", "out"); err != nil {
		t.Fatal(err)
	}
	if err := router.AddAddr("out", netip.MustParsePrefix("203.0.113.77/24")); err != nil {
		t.Fatal(err)
	}
	route(t, router, netip.MustParsePrefix("203.0.113.77/24"), netip.MustParseAddr("203.0.113.254"), "out")
	masquerade(t, router, 10000)
	check("mapped to another address", from("203.0.113.77", 10000))

	// Now the router forwards the port, and the agent has published its new address.
	masquerade(t, router, 10000, `iifname "out" udp dport 4490 dnat to 10.0.0.2`)
	if err := a.Set([]Peer{peer("b", "10.0.0.2", "203.0.113.77")}); err != nil {
		t.Fatal(err)
	}
	v := a.wait("b", "confirmed", is(Confirmed))
	if v.Address != netip.MustParseAddr("203.0.113.77") || v.Private || v.Out != (Rewriting{Destination: true}) {
		t.Errorf("forwarded: a about b: %+v", v)
	}
}

// Both behind NAT, neither port forwarded: both say so, and what to do.
func TestBothBehindNAT(t *testing.T) {
	i := newInternet(t)
	_, hostsA := i.behind("a", "198.51.100.2/24", "10.0.1.2/24")
	_, hostsB := i.behind("b", "203.0.113.2/24", "10.0.0.2/24")
	a := open(t, hostsA[0], "a", "psk", peer("b", "10.0.0.2", "203.0.113.2"))
	b := open(t, hostsB[0], "b", "psk", peer("a", "10.0.1.2", "198.51.100.2"))
	for name, v := range map[string]Reachability{"203.0.113.2": a.wait("b", "unreachable", is(Unreachable)), "198.51.100.2": b.wait("a", "unreachable", is(Unreachable))} {
		if v.Address != netip.MustParseAddr(name) || !strings.Contains(v.Reason, "if both sides are behind NAT, forward these ports on one side and set gateway.submariner.io/public-ip there") {
			t.Errorf("reachability %+v", v)
		}
	}
	time.Sleep(2 * fast.Recheck) // and it stays so: our own requests do not open the way
	if v := a.Reachability()["b"]; v.State != Unreachable || a.Counters()["answers"] != 0 {
		t.Errorf("later: %+v, %v", v, a.Counters())
	}
}

func TestWrongPSK(t *testing.T) {
	i := newInternet(t)
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "203.0.113.2", ""))
	b := open(t, i.attach("b", "203.0.113.2/24"), "b", "another psk", peer("a", "192.0.2.1", ""))
	for _, v := range []Reachability{a.wait("b", "unreachable", is(Unreachable)), b.wait("a", "unreachable", is(Unreachable))} {
		if !strings.Contains(v.Reason, "has its cluster the same PSK (Secret submariner-ipsec-psk)?") {
			t.Errorf("reason: %s", v.Reason)
		}
	}
	for _, g := range []*gate{a, b} {
		c := g.Counters()
		if c["foreign_key"] == 0 || c["requests"] != 0 || c["answers"] != 0 || c["calls"] != 0 {
			t.Errorf("%s: %v; want foreign_key only", g.name, c)
		}
	}
}

// Both sites use 10.0.0.0/24. At b's private address a's own network has another gateway of the
// same clusterset. It must not be taken for b, whose public address is the right one.
func TestSomebodyElseAtThePrivateAddress(t *testing.T) {
	i := newInternet(t)
	_, hostsA := i.behind("a", "198.51.100.2/24", "10.0.0.3/24", "10.0.0.2/24")
	routerB, hostsB := i.behind("b", "203.0.113.2/24", "10.0.0.2/24")
	masquerade(t, routerB, 20000, `iifname "out" udp dport 4490 dnat to 10.0.0.2`)
	stranger := open(t, hostsA[1], "stranger", "psk", peer("a", "10.0.0.3", ""))
	a := open(t, hostsA[0], "a", "psk", peer("b", "10.0.0.2", "203.0.113.2"), peer("stranger", "10.0.0.2", ""))
	b := open(t, hostsB[0], "b", "psk", peer("a", "10.0.0.3", "198.51.100.2"))

	v := a.wait("b", "confirmed", is(Confirmed))
	if v.Address != netip.MustParseAddr("203.0.113.2") || !v.Out.Destination || !v.Out.SourceIP {
		t.Errorf("a about b: %+v", v)
	}
	if v := a.wait("stranger", "confirmed", is(Confirmed)); v.Address != netip.MustParseAddr("10.0.0.2") || v.NAT() {
		t.Errorf("a about the stranger: %+v", v)
	}
	stranger.counted("not_for_us", 1)
	// b probes 10.0.0.3, which does not exist there, and waits for a's requests.
	v = b.wait("a", "waiting", is(Waiting))
	if v.Source.Addr() != netip.MustParseAddr("198.51.100.2") || v.Address.IsValid() {
		t.Errorf("b about a: %+v", v)
	}
}

func TestBehindLoadBalancer(t *testing.T) {
	i := newInternet(t)
	i.attach("b", "203.0.113.2/24") // passes nothing on
	p := peer("b", "10.0.0.2", "203.0.113.2")
	p.BehindLB = true
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", p)
	v := a.wait("b", "unreachable", is(Unreachable))
	if v.Address != netip.MustParseAddr("203.0.113.2") || !strings.Contains(v.Reason, "unconfirmed") {
		t.Errorf("reachability %+v", v)
	}
}

func TestNoRoute(t *testing.T) {
	a := open(t, netns.ForTest(t, "a"), "a", "psk", peer("b", "203.0.113.2", ""))
	v := a.wait("b", "unreachable", is(Unreachable))
	if !strings.Contains(v.Reason, "203.0.113.2:4490 (private, network is unreachable)") {
		t.Errorf("reason: %s", v.Reason)
	}
}

func TestOpenAndSetRefuse(t *testing.T) {
	n := netns.ForTest(t, "a")
	a := open(t, n, "a", "psk", peer("b", "203.0.113.2", ""))
	err := n.Do(func() error { _, err := Open(Config{Name: "x", PSK: []byte("psk")}); return err })
	if !errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "natt-discovery-port") {
		t.Errorf("the port is taken: %v; want an error that names the remedy", err)
	}
	if _, err := Open(Config{PSK: []byte("psk")}); err == nil {
		t.Error("no name is taken")
	}
	if _, err := Open(Config{Name: "x"}); err == nil {
		t.Error("no key is taken")
	}
	noPort := peer("d", "203.0.113.4", "")
	noPort.Port = 0
	err = a.Set([]Peer{peer("b", "203.0.113.2", ""), peer("b", "203.0.113.9", ""), peer("a", "203.0.113.5", ""), noPort, peer("c", "203.0.113.3", "")})
	for _, part := range []string{`"b": two have this name`, `"a": this is the own name`, `"d" at port 0: it needs a name and a port`} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("Set: %v; want %s", err, part)
		}
	}
	if v := a.Reachability(); len(v) != 2 || v["c"].State != Probing {
		t.Errorf("reachability %v; want b and c", v)
	}
	if err := a.Set(nil); err != nil || len(a.Reachability()) != 0 {
		t.Errorf("no peers any more: %v, %v", err, a.Reachability())
	}
	if err := errors.Join(a.Close(), a.Close()); err != nil {
		t.Error(err)
	}
	err = n.Do(func() error {
		d, err := Open(Config{Name: "x", PSK: []byte("psk")})
		if err != nil {
			return err
		}
		return d.Close()
	})
	if err != nil {
		t.Errorf("open the port again after Close: %v", err)
	}
}
