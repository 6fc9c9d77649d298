package natt

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// hear waits for the next message on an attacker's socket.
func hear(t *testing.T, c *net.UDPConn) ([]byte, netip.AddrPort) {
	t.Helper()
	b := make([]byte, 2*messageSize)
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, from, err := c.ReadFromUDPAddrPort(b)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n], from
}

func say(t *testing.T, c *net.UDPConn, b []byte, to netip.AddrPort) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
		t.Fatal(err)
	}
}

// An attacker sits at the address that a takes for b's private one, and hears all that a sends there. It knows no key.
func TestSpoofedAndReplayedAnswers(t *testing.T) {
	i := newInternet(t)
	hostM := i.attach("m", "198.51.100.66/24", "198.51.100.67/24")
	b := open(t, i.attach("b", "203.0.113.2/24"), "b", "psk", peer("a", "10.0.9.9", ""))
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "198.51.100.66", ""))
	asked, other := udp(t, hostM, "198.51.100.66:4490"), udp(t, hostM, "198.51.100.67:4490")
	relay := udp(t, hostM, "198.51.100.66:0")
	toB := netip.MustParseAddrPort("203.0.113.2:4490")

	// Its own request back: not from b.
	ask, client := hear(t, asked)
	say(t, asked, ask, client)
	a.counted("not_for_us", 1)
	// The request, kind changed.
	forged := append([]byte(nil), ask...)
	forged[5] = byte(answer)
	say(t, asked, forged, client)
	a.counted("foreign_key", 1)
	// b answers the attacker, who passes the answer on from an address that was not asked.
	say(t, relay, ask, toB)
	old, _ := hear(t, relay)
	b.counted("requests", 1)
	ask, client = hear(t, asked) // while the next one is out
	say(t, relay, ask, toB)
	fresh, _ := hear(t, relay)
	say(t, other, fresh, client)
	a.counted("from_elsewhere", 1)
	// From the right address, but long after its request.
	say(t, asked, old, client)
	a.counted("replayed", 1)
	if len(old) > len(ask) {
		t.Errorf("an answer of %d bytes to a request of %d", len(old), len(ask))
	}
	if v := a.Reachability()["b"]; v.State == Confirmed || a.Counters()["answers"] != 0 {
		t.Errorf("a believes %+v, %v", v, a.Counters())
	}
	// The attacker's requests in a's name prove no call, and b does not take him for a.
	if v := b.Reachability()["a"]; v.Source.IsValid() || b.Counters()["calls"] != 0 {
		t.Errorf("b believes %+v, %v", v, b.Counters())
	}
}

// A recorded exchange, played again from elsewhere, changes nothing; and however often it is played, few answers go out.
func TestReplayedCalls(t *testing.T) {
	i := newInternet(t)
	hostM := i.attach("m", "198.51.100.66/24")
	b := open(t, i.attach("b", "203.0.113.2/24"), "b", "psk", peer("a", "192.0.2.1", ""))
	attacker, honest := udp(t, hostM, "198.51.100.66:0"), udp(t, i.attach("a", "192.0.2.1/24"), "192.0.2.1:0")
	toB := netip.MustParseAddrPort("203.0.113.2:4490")

	// A whole exchange by hand, as a would do it.
	c := testCodec(t, "psk")
	ask := c.encode(message{kind: request, nonce: nonce{1}, from: c.id("a"), to: c.id("b"), destination: toB})
	say(t, honest, ask, toB)
	raw, _ := hear(t, honest)
	reply, err := c.decode(raw)
	own := netip.MustParseAddrPort(honest.LocalAddr().String())
	if err != nil || reply.kind != answer || reply.echo != (nonce{1}) || reply.source != own || reply.destination != toB {
		t.Fatalf("answer %+v, %v", reply, err)
	}
	called := c.encode(message{kind: confirmation, echo: reply.nonce, from: c.id("a"), to: c.id("b"), source: own, destination: toB})
	say(t, honest, called, toB)
	v := b.wait("a", "a caller", func(v Reachability) bool { return v.Source == own })
	if v.In.Any() {
		t.Errorf("a call straight from a: %+v", v)
	}

	say(t, attacker, called, toB)
	b.counted("replayed", 1)
	say(t, honest, c.encode(message{kind: confirmation, echo: nonce{5}, from: c.id("a"), to: c.id("b"), source: own, destination: toB}), toB)
	b.counted("replayed", 2)
	say(t, honest, c.encode(message{kind: request, from: c.id("nobody"), to: c.id("b")}), toB)
	b.counted("unknown_peer", 1)
	say(t, honest, c.encode(message{kind: answer, from: c.id("a"), to: c.id("b")}), toB)
	say(t, honest, []byte("hello"), toB)
	b.counted("malformed", 2)
	if v := b.Reachability()["a"]; v.Source != own {
		t.Errorf("the caller is now %s", v.Source)
	}

	before := b.Counters()["requests"]
	start := time.Now()
	for n := range uint64(10) { // in portions that the socket's buffer holds, each with an end to wait for
		for range 50 {
			say(t, attacker, ask, toB)
		}
		say(t, attacker, []byte("end"), toB)
		b.counted("malformed", 3+n)
	}
	b.counted("too_many", 1)
	allowed := uint64(burstPerSource + ratePerSource*(1+time.Since(start).Seconds()))
	if n := b.Counters()["requests"] - before; n > allowed {
		t.Errorf("%d answers to 500 replayed requests; want at most %d", n, allowed)
	}
	say(t, honest, ask, toB) // another source does not suffer
	if _, from := hear(t, honest); from != toB {
		t.Errorf("an answer from %s", from)
	}
}
