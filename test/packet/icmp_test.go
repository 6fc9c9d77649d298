package packet

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/dataplane"
)

// icmpError is a port unreachable of router about packet p, quoting its header and n bytes behind.
func icmpError(p Packet, router, destination netip.Addr, n int) Packet {
	quote := p.Encode()
	quote = quote[:min(len(quote), 20+len(p.Options)+n)]
	return Packet{Source: router, Destination: destination, TTL: 63, ICMP: &ICMP{Type: Unreachable, Code: 3}, Payload: quote}
}

// An ICMP error finds its way from either side to the sender of what it is about, who sees his own
// packet quoted (RFC 5508 REQ-4 and 5), whether the peer, the peer's node or a router made it.
func TestICMPErrors(t *testing.T) { bothHooks(t, throughICMPErrors) }

func throughICMPErrors(t *testing.T) {
	f := newFleet(t, 2)
	requests := map[string]Packet{
		"udp":              udpPacket("question", to(global(2, 100))),
		"udp, no checksum": udpPacket("question", to(global(2, 100)), func(p *Packet) { p.UDP.NoChecksum = true; p.UDP.Source = 40001 }),
		"tcp":              tcpPacket(SYN, to(global(2, 21))),
		"echo":             echoPacket(Echo),
		"behind options":   udpPacket("question", to(global(2, 100)), func(p *Packet) { p.Options = []byte{1, 1, 1, 1}; p.UDP.Source = 40002 }),
	}
	for name, request := range requests {
		for _, quoted := range []int{8, 28, 1000} {
			t.Run(name, func(t *testing.T) {
				_, seen := f.there(t, request)
				// The server's pod, its node and a router behind it complain about the request.
				for maker, router := range map[string]string{"pod": seen.Destination.String(), "node": "172.16.2.2"} {
					complaint := icmpError(seen, ip(router), seen.Source, quoted)
					context := Context{}
					if maker == "pod" {
						context = pod
					}
					r := f.nb.Run(t, f.nb.EdgeOut, Frame(complaint.Encode()), context)
					leg := f.nb.sent(t, r, "edge-out sent")
					leg = f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in switched")
					leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
					got := f.na.delivered(t, f.na.arrive(t, leg))
					if got.Source != request.Destination || got.Destination != request.Source {
						t.Errorf("the %s's error comes from %s for %s", maker, got.Source, got.Destination)
					}
					wantQuote(t, request, got, quoted)
				}
				if request.TCP != nil {
					return
				}
				// And the client complains about the answer.
				answer := seen.answer()
				_, back := f.back(t, answer)
				legs, got := f.there(t, icmpError(back, back.Destination, back.Source, quoted))
				if got.Source != answer.Destination || got.Destination != answer.Source {
					t.Errorf("the client's error comes from %s for %s", got.Source, got.Destination)
				}
				wantQuote(t, answer, got, quoted)
				if legs[2].Destination != nodeIP(2, 2) {
					t.Errorf("the client's error goes to %s", legs[2].Destination)
				}
			})
		}
	}
}

// wantQuote checks that the error quotes the packet as its sender sent it, n bytes of its
// transport.
func wantQuote(t testing.TB, sent, got Packet, n int) {
	t.Helper()
	want := sent.Encode()
	if whole := len(want); len(got.Payload) != min(whole, 20+len(sent.Options)+n) {
		t.Errorf("%d bytes are quoted of %d", len(got.Payload), whole)
	}
	wantEqual(t, "quoted bytes", want[:len(got.Payload)], got.Payload)
}

// A cluster has no effect on a flow between two others (RFC 5927): only the one to which the quoted
// packet was sent may report an error.
func TestICMPErrorOfAThirdCluster(t *testing.T) { bothHooks(t, throughThirdCluster) }

func throughThirdCluster(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	s.Routes[netip.PrefixFrom(global3(0), 24)] = 3
	s.Peers[nodeIP(3, 1)] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 3, Node: 1}
	k.Apply(t, s)
	for name, quoted := range map[string]Packet{
		"udp": udpPacket("q", from("120.1.0.1"), to(global(2, 20)), ports(blockOf(2)+7, 53)),
		"tcp": tcpPacket(ACK, from("120.1.0.1"), to(global(2, 20)), ports(blockOf(2)+7, 80)),
	} {
		t.Run(name, func(t *testing.T) {
			forged := cable(2, 1, 1, icmpError(quoted, global3(9), quoted.Source, 8).Encode(), func(o *Overlay) { o.Source, o.Node = nodeIP(3, 1), 3 })
			if r := k.arrive(t, forged); r.Verdict != "uplink-in drop-spoofed-source" {
				t.Errorf("an error of cluster 3 about a packet to cluster 2: %q", r.Verdict)
			}
			k.sent(t, k.arrive(t, cable(2, 1, 1, icmpError(quoted, global(2, 20), quoted.Source, 8).Encode())), "uplink-in switched")
		})
	}
}

// An error does not report which node has a connection.
func TestICMPErrorTeachesNoNode(t *testing.T) {
	f := newFleet(t, 2)
	_, seen := f.there(t, tcpPacket(SYN, to(global(2, 21))))
	legs, _ := f.back(t, seen.answer())
	before := f.na.entries(t)
	sent := decode(t, legs[2].Inner).answer()
	f.na.delivered(t, f.na.arrive(t, overlay(1, 1, 2, icmpError(sent, sent.Destination, sent.Source, 8).Encode(), func(o *Overlay) { o.Node = 3 })))
	wantEqual(t, "entries", before, f.na.entries(t))
}

// An error about a connection neither refreshes nor ends it.
func TestICMPErrorKeepsFlow(t *testing.T) {
	f := newFleet(t, 2)
	_, seen := f.there(t, tcpPacket(SYN, to(global(2, 21))))
	f.back(t, seen.answer())
	f.there(t, tcpPacket(ACK, to(global(2, 21))))
	before := f.nb.entries(t)
	f.nb.sent(t, f.nb.fromPod(t, icmpError(seen, seen.Destination, seen.Source, 8)), "edge-out sent")
	wantEqual(t, "entries", before, f.nb.entries(t))
	if got := f.nb.list(t)[0].State; got != "established" {
		t.Errorf("the connection is %s", got)
	}
}

// Wrong checksums stay wrong, so that the receiver can tell: nothing is made right by passing.
func TestICMPErrorWithWrongChecksum(t *testing.T) {
	f := newFleet(t, 2)
	_, seen := f.there(t, udpPacket("question", to(global(2, 100))))
	b := icmpError(seen, seen.Destination, seen.Source, 8).Encode()
	b[22] ^= 0x55 // of the ICMP checksum
	r := f.nb.Run(t, f.nb.EdgeOut, Frame(b), pod)
	o, err := DecodeOverlay(r.Frame)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Decode(o.Inner); err == nil {
		t.Error("the packet's wrong checksum became right")
	}
}

// Any error about any packet of a flow: right checksums at the end if they were right at the start.
func TestAnyICMPError(t *testing.T) {
	f := newFleet(t, 2)
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPacket(rt, ip("10.7.2.10"), global(2, 21))
		switch {
		case p.UDP != nil || p.ICMP != nil:
			p.Destination = global(2, 100)
		case p.TCP != nil:
			p.TCP.Destination = 80
		}
		_, seen := f.there(t, p)
		kind := rapid.SampledFrom([]uint8{Unreachable, TimeExceeded, ParameterProblem}).Draw(rt, "type")
		n := rapid.IntRange(8, 60).Draw(rt, "quoted")
		complaint := icmpError(seen, seen.Destination, seen.Source, n).with(func(q *Packet) {
			q.ICMP = &ICMP{Type: kind, Code: rapid.Byte().Draw(rt, "code"), Rest: [4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(rt, "rest"))}
		})
		_, got := f.back(t, complaint)
		wantEqual(t, "ICMP header", complaint.ICMP, got.ICMP)
		want := p.Encode()[:len(got.Payload)]
		if p.TCP != nil && n == 17 {
			// The quote ends inside the TCP checksum. Half of the translated one cannot be put
			// right without the other half, and no receiver is to check it (RFC 5508 REQ-3); all
			// before it is reserved.
			want, got.Payload = want[:len(want)-1], got.Payload[:len(got.Payload)-1]
		}
		if string(want) != string(got.Payload) {
			rt.Errorf("quoted % x; want % x", got.Payload, want)
		}
	})
}
