package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// handshake is what begins a WireGuard session.
func handshake(kind uint32, source string, port uint16) []byte {
	payload := make([]byte, 148)
	binary.LittleEndian.PutUint32(payload, kind)
	return Frame(Packet{Source: ip(source), Destination: nodeIP(1, 1), TTL: 60, UDP: &UDP{Source: 40000, Destination: port}, Payload: payload}.Encode())
}

func handshakeWithOptions(t testing.TB, frame []byte) []byte {
	p := decode(t, frame[14:])
	p.Options = []byte{1, 1, 1, 1} // no operation
	return Frame(p.Encode())
}

// Unknown addresses share a budget of handshakes; known ones, data and everything else are nothing
// to the guard.
func TestHandshakes(t *testing.T) { bothHooks(t, throughHandshakes) }

func throughHandshakes(t *testing.T) {
	const stranger, peer = "198.51.100.7", "198.51.100.8"
	k := load(t, 1, 1)
	if err := k.Loader.Guard([]uint16{51820, 51821}, []netip.Addr{ip(peer)}); err != nil {
		t.Fatal(err)
	}
	frame := handshake(1, stranger, 51820)
	var passed, asked int
	begin := nanotime(t)
	k.networks(t, uint64(nanotime(t))+3600e9)
	for asked = 0; asked < 5000 && passed == asked; asked++ {
		if r := k.comeIn(t, frame); r.Action == Next {
			passed++
		}
	}
	elapsed := nanotime(t) - begin
	if least, most := 50, 52+int(elapsed/10e6); passed < least || passed > most {
		t.Errorf("%d of %d calls in %d ms passed; want between %d and %d", passed, asked, elapsed/1e6, least, most)
	}
	full := func() {
		t.Helper()
		if err := k.Calls.Put(uint32(0), uint64(nanotime(t))+3600e9); err != nil {
			t.Fatal(err)
		}
	}
	full()
	const drop = "uplink-in drop-handshake"
	for _, tt := range []struct {
		what  string
		frame []byte
		want  string
	}{
		{"a call to the second tunnel", handshake(1, stranger, 51821), drop},
		{"a call to a port that is not the wire's", handshake(1, stranger, 51822), ""},
		{"a call to the port below", handshake(1, stranger, 51819), ""},
		{"a call of a peer", handshake(1, peer, 51820), ""},
		{"an answer", handshake(2, stranger, 51820), ""},
		{"a cookie", handshake(3, stranger, 51820), ""},
		{"data from an address that nobody knows: the peer has moved", handshake(4, stranger, 51820), ""},
		{"something else", handshake(0x01000001, stranger, 51820), ""},
		{"two bytes", frame[:14+20+8+2], ""},
		{"a call with IP options", handshakeWithOptions(t, frame), drop},
	} {
		r := k.comeIn(t, tt.frame)
		if action := map[bool]int{true: Drop, false: Next}[tt.want == drop]; r.Verdict != tt.want || r.Action != action {
			t.Errorf("%s: action %d, %q; want %q", tt.what, r.Action, r.Verdict, tt.want)
		}
	}
	if err := k.Loader.Guard(nil, nil); err != nil {
		t.Fatal(err)
	}
	if r := k.comeIn(t, frame); r.Action != Next || r.Verdict != "" {
		t.Errorf("nothing to guard: action %d, %q", r.Action, r.Verdict)
	}
}

// Beyond the rate of all networks each one has a small rate of its own, so that a flood from one
// does not keep out the others.
func TestHandshakesOfOtherNetworks(t *testing.T) { bothHooks(t, throughHandshakesOfOtherNetworks) }

func throughHandshakesOfOtherNetworks(t *testing.T) {
	k := load(t, 1, 1)
	if err := errors.Join(k.Loader.Guard([]uint16{51820}, nil), k.Calls.Put(uint32(0), uint64(nanotime(t))+3600e9)); err != nil {
		t.Fatal(err)
	}
	begin := nanotime(t)
	passed := func(source string, n int) (passed int) {
		for range n {
			if k.comeIn(t, handshake(1, source, 51820)).Action == Next {
				passed++
			}
		}
		return passed
	}
	flood := passed("198.51.100.7", 200)
	if most := 6 + int((nanotime(t)-begin)/500e6); flood < 4 || flood > most {
		t.Errorf("%d of 200 calls of one network passed; want 4 to %d", flood, most)
	}
	if n := passed("198.51.100.99", 20); n > 2+int((nanotime(t)-begin)/500e6) {
		t.Errorf("another address of that network: %d of 20 passed", n)
	}
	// Of eight other networks one may share the bucket by chance.
	others := 0
	for i := range 8 {
		others += passed(fmt.Sprintf("203.0.%d.9", i), 1)
	}
	if others < 6 {
		t.Errorf("%d of 8 peers of other networks passed; want nearly all", others)
	}
}

// A handshake that XDP has let pass costs nothing more at uplink_in.
func TestHandshakePaidOnce(t *testing.T) {
	withXDP(t)
	k := load(t, 1, 1)
	if err := k.Loader.Guard([]uint16{51820}, nil); err != nil {
		t.Fatal(err)
	}
	if r, by := k.throughXDP(t, handshake(1, "198.51.100.7", 51820)); by || r.Action != Next {
		t.Fatalf("decided by XDP: %t, action %d", by, r.Action)
	}
	var full uint64
	if err := k.Calls.Lookup(uint32(0), &full); err != nil {
		t.Fatal(err)
	}
	if ahead := int64(full) - nanotime(t); ahead > 10e6 {
		t.Errorf("one call costs %d ms; want 10", ahead/1e6)
	}
}

func nanotime(t testing.TB) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano()
}
