//go:build linux

package natt

import (
	"net"
	"net/netip"
	"testing"
	"time"
)

// receive waits for the next message on an attacker's socket.
func receive(t *testing.T, c *net.UDPConn) ([]byte, netip.AddrPort) {
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

func send(t *testing.T, c *net.UDPConn, b []byte, to netip.AddrPort) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(b, to); err != nil {
		t.Fatal(err)
	}
}

// An attacker has the address that a takes for b's private one, and receives all that a sends
// there. It has no key.
func TestSpoofedAndReplayedAnswers(t *testing.T) {
	i := newInternet(t)
	hostM := i.attach("m", "198.51.100.66/24", "198.51.100.67/24")
	b := open(t, i.attach("b", "203.0.113.2/24"), "b", "psk", peer("a", "10.0.9.9", ""))
	a := open(t, i.attach("a", "192.0.2.1/24"), "a", "psk", peer("b", "198.51.100.66", ""))
	asked, other := udp(t, hostM, "198.51.100.66:4490"), udp(t, hostM, "198.51.100.67:4490")
	relay := udp(t, hostM, "198.51.100.66:0")
	toB := netip.MustParseAddrPort("203.0.113.2:4490")

	// Its own request back: not from b.
	ask, client := receive(t, asked)
	send(t, asked, ask, client)
	a.counted("not_for_us", 1)
	// The request, kind changed.
	forged := append([]byte(nil), ask...)
	forged[5] = byte(answer)
	send(t, asked, forged, client)
	a.counted("foreign_key", 1)
	// b answers the attacker, which forwards the answer from an address that was not probed.
	send(t, relay, ask, toB)
	old, _ := receive(t, relay)
	b.counted("requests", 1)
	ask, client = receive(t, asked) // while the next one is outstanding
	send(t, relay, ask, toB)
	fresh, _ := receive(t, relay)
	send(t, other, fresh, client)
	a.counted("from_elsewhere", 1)
	// From the right address, but long after its request.
	send(t, asked, old, client)
	a.counted("replayed", 1)
	if len(old) > len(ask) {
		t.Errorf("an answer of %d bytes to a request of %d", len(old), len(ask))
	}
	if v := a.Reachability()["b"]; v.State == Confirmed || a.Counters()["answers"] != 0 {
		t.Errorf("a believes %+v, %v", v, a.Counters())
	}
	// The attacker's requests in a's name are no confirmation, and b does not take it for a.
	if v := b.Reachability()["a"]; v.Source.IsValid() || b.Counters()["calls"] != 0 {
		t.Errorf("b believes %+v, %v", v, b.Counters())
	}
}

// An exchange that is replayed from another source has no effect, and the answers to replayed
// requests are limited.
func TestReplayedCalls(t *testing.T) {
	i := newInternet(t)
	hostM := i.attach("m", "198.51.100.66/24")
	b := open(t, i.attach("b", "203.0.113.2/24"), "b", "psk", peer("a", "192.0.2.1", ""))
	attacker, honest := udp(t, hostM, "198.51.100.66:0"), udp(t, i.attach("a", "192.0.2.1/24"), "192.0.2.1:0")
	toB := netip.MustParseAddrPort("203.0.113.2:4490")

	// A whole exchange by hand, as a would do it.
	c := testCodec(t, "psk")
	ask := c.encode(message{kind: request, nonce: nonce{1}, from: c.id("a"), to: c.id("b"), destination: toB})
	send(t, honest, ask, toB)
	raw, _ := receive(t, honest)
	reply, err := c.decode(raw)
	own := netip.MustParseAddrPort(honest.LocalAddr().String())
	if err != nil || reply.kind != answer || reply.echo != (nonce{1}) || reply.source != own || reply.destination != toB {
		t.Fatalf("answer %+v, %v", reply, err)
	}
	called := c.encode(message{kind: confirmation, echo: reply.nonce, from: c.id("a"), to: c.id("b"), source: own, destination: toB})
	send(t, honest, called, toB)
	v := b.wait("a", "a caller", func(v Reachability) bool { return v.Source == own })
	if v.In.Any() {
		t.Errorf("a call straight from a: %+v", v)
	}

	send(t, attacker, called, toB)
	b.counted("replayed", 1)
	send(t, honest, c.encode(message{kind: confirmation, echo: nonce{5}, from: c.id("a"), to: c.id("b"), source: own, destination: toB}), toB)
	b.counted("replayed", 2)
	send(t, honest, c.encode(message{kind: request, from: c.id("nobody"), to: c.id("b")}), toB)
	b.counted("unknown_peer", 1)
	send(t, honest, c.encode(message{kind: answer, from: c.id("a"), to: c.id("b")}), toB)
	send(t, honest, []byte("hello"), toB)
	b.counted("malformed", 2)
	if v := b.Reachability()["a"]; v.Source != own {
		t.Errorf("the caller is now %s", v.Source)
	}

	before := b.Counters()["requests"]
	start := time.Now()
	// in portions that the socket's buffer holds, each with an end to wait for
	for n := range uint64(10) {
		for range 50 {
			send(t, attacker, ask, toB)
		}
		send(t, attacker, []byte("end"), toB)
		b.counted("malformed", 3+n)
	}
	b.counted("too_many", 1)
	allowed := uint64(burstPerSource + ratePerSource*(1+time.Since(start).Seconds()))
	if n := b.Counters()["requests"] - before; n > allowed {
		t.Errorf("%d answers to 500 replayed requests; want at most %d", n, allowed)
	}
	send(t, honest, ask, toB) // another source does not suffer
	if _, from := receive(t, honest); from != toB {
		t.Errorf("an answer from %s", from)
	}
}
