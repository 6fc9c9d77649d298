package packet

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
)

// reassemble puts fragments together again.
func reassemble(t testing.TB, pieces []Packet) Packet {
	t.Helper()
	slices.SortFunc(pieces, func(a, b Packet) int { return a.Offset - b.Offset })
	whole := pieces[0]
	whole.Payload, whole.MoreFragments = nil, false
	for i, p := range pieces {
		if p.Offset != len(whole.Payload) || p.MoreFragments != (i < len(pieces)-1) || p.ID != whole.ID {
			t.Fatalf("piece %d does not fit: %+v", i, p)
		}
		whole.Payload = append(whole.Payload, p.Payload...)
	}
	return decode(t, whole.Encode())
}

// carry takes the fragments of a packet through send, which is fleet.there or fleet.back, in the
// given order.
func carry(t testing.TB, p Packet, send func(testing.TB, Packet) ([]Overlay, Packet), order ...int) (legs []Overlay, seen Packet) {
	t.Helper()
	var pieces []Packet
	fragments := Fragments(p.Encode(), 1450)
	if len(order) != len(fragments) {
		t.Fatalf("%d fragments; the test wants to send %d", len(fragments), len(order))
	}
	for _, i := range order {
		l, piece := send(t, decode(t, fragments[i]))
		legs, pieces = append(legs, l...), append(pieces, piece)
	}
	return legs, reassemble(t, pieces)
}

func bytesOf(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i * 7)
	}
	return b
}

// Fragments follow their first one: the same translation, gateways and node; put together they are
// a right packet.
func TestFragments(t *testing.T) { bothHooks(t, throughFragments) }

func throughFragments(t *testing.T) {
	f := newFleet(t, 2)
	requests := map[string]Packet{
		"udp":              udpPacket(string(bytesOf(4000)), to(global(2, 100))),
		"udp, no checksum": udpPacket(string(bytesOf(4000)), to(global(2, 100)), func(p *Packet) { p.UDP.NoChecksum, p.ID = true, 4712 }),
		"echo":             echoPacket(Echo, func(p *Packet) { p.Payload, p.ID = bytesOf(4000), 4713 }),
		"tcp":              tcpPacket(SYN, to(global(2, 21)), func(p *Packet) { p.Payload, p.DontFragment = bytesOf(4000), false }),
	}
	for name, p := range requests {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][]int{{0, 1, 2}, {0, 2, 1}} {
				legs, seen := carry(t, p, f.there, order...)
				wantEqual(t, "payload", p.Payload, seen.Payload)
				source, destination := p.ports()
				for _, leg := range legs {
					if leg.Flags&Fragment == 0 {
						t.Fatalf("a leg does not say that it is a fragment: %+v", leg)
					}
					if got := leg.InnerSource; got[2] != legs[0].InnerSource[2] || got[3] != legs[0].InnerSource[3] {
						t.Errorf("pieces name different source ports: % x and % x", legs[0].InnerSource, got)
					}
				}
				answer := seen.answer()
				_, back := carry(t, answer, f.back, order...)
				wantEqual(t, "answer's payload", p.Payload, back.Payload)
				if s, d := back.ports(); s != destination || d != source {
					if p.ICMP == nil || d != source {
						t.Errorf("the answer goes from port %d to %d; want %d to %d", s, d, destination, source)
					}
				}
			}
		})
	}
}

// What comes before its first fragment is dropped and counted, and does no harm to what comes
// behind.
func TestEarlyFragment(t *testing.T) {
	k := load(t, 1, 2)
	pieces := Fragments(udpPacket(string(bytesOf(4000))).Encode(), 1450)
	for i, want := range []string{"edge-out drop-fragment", "edge-out sent", "edge-out sent"} {
		if r := k.Run(t, k.EdgeOut, Frame(pieces[[]int{2, 0, 1}[i]]), pod); r.Verdict != want {
			t.Errorf("piece %d: %s; want %s", i, r.Verdict, want)
		}
	}
	// Another datagram, protocol or receiver under the same identification is another thing.
	for name, p := range map[string]Packet{
		"identification": udpPacket(string(bytesOf(4000)), func(p *Packet) { p.ID++ }),
		"receiver":       udpPacket(string(bytesOf(4000)), to(global(2, 21))),
		"sender":         udpPacket(string(bytesOf(4000)), from("10.7.2.11")),
		"protocol":       echoPacket(Echo, to(global(2, 20)), func(p *Packet) { p.Payload = bytesOf(4000) }),
	} {
		later := Fragments(p.Encode(), 1450)[1]
		if r := k.Run(t, k.EdgeOut, Frame(later), pod); r.Verdict != "edge-out drop-fragment" {
			t.Errorf("a fragment of another %s: %s", name, r.Verdict)
		}
	}
}

// A source that sends any number of fragmented datagrams takes no entry of another one.
func TestFragmentsPerSource(t *testing.T) {
	k := load(t, 1, 2)
	victim := Fragments(udpPacket(string(bytesOf(4000)), from("10.7.2.11")).Encode(), 1450)
	k.sent(t, k.Run(t, k.EdgeOut, Frame(victim[0]), pod), "edge-out sent")
	for id := range uint16(10000) {
		first := Fragments(udpPacket(string(bytesOf(1500)), func(p *Packet) { p.ID = id }).Encode(), 1450)[0]
		if r, err := k.TryRun(k.EdgeOut, Frame(first), pod); err != nil || r.Action != Redirect {
			t.Fatalf("datagram %d: action %d, %v", id, r.Action, err)
		}
	}
	if n := count(t, k.Fragments); n != 64+1 {
		t.Errorf("%d datagrams are stored; want 64 of the one source and 1 of the other", n)
	}
	k.sent(t, k.Run(t, k.EdgeOut, Frame(victim[1]), pod), "edge-out sent")
}

// A first fragment with the source of another pod does not reach the entries of that pod's
// datagrams.
func TestForgedFirstFragment(t *testing.T) {
	const mtu = 1450
	for name, known := range map[string]bool{"of no flow": false, "of the flow": true} {
		t.Run(name, func(t *testing.T) {
			k := load(t, 1, 2)
			own := Fragments(udpPacket(string(bytesOf(4000))).Encode(), mtu)
			first := k.sent(t, k.Run(t, k.EdgeOut, Frame(own[0]), pod), "edge-out sent")
			forged := udpPacket(string(bytesOf(4000)), ports(50000, 5000))
			if known {
				forged = udpPacket(string(bytesOf(4000)))
			}
			before := count(t, k.Fragments)
			for id := range uint16(100) {
				forged.ID = 4711 + id // the first is that of the pod's datagram
				r := k.Run(t, k.EdgeOut, Frame(Fragments(forged.Encode(), mtu)[0]), Context{IngressIfindex: podDevice + 1})
				if r.Verdict != "edge-out drop-unknown-source" {
					t.Fatalf("the forged fragment: %s", r.Verdict)
				}
			}
			if n := count(t, k.Fragments); n != before {
				t.Errorf("%d datagrams are remembered after the forged ones; want %d", n, before)
			}
			later := k.sent(t, k.Run(t, k.EdgeOut, Frame(own[1]), pod), "edge-out sent")
			wantEqual(t, "ports of the later fragment", first.InnerSource, later.InnerSource)
		})
	}
}

// count counts the entries of a map.
func count(t testing.TB, m *ebpf.Map) (n int) {
	t.Helper()
	var key, value []byte
	for it := m.Iterate(); it.Next(&key, &value); {
		n++
	}
	return n
}
