package packet

import (
	"testing"

	"github.com/pelago-net/pelago/dataplane"
)

// noBackend takes the backends of services 20 and 21 of the own cluster.
func noBackend(s *dataplane.State) {
	for key, v := range s.Services {
		v.Backends, v.Table = nil, nil
		s.Services[key] = v
	}
}

// refusal is what the sender of a refused packet gets: a reset (RFC 9293 3.10.7.1) or a port
// unreachable (RFC 1122 3.2.2.1).
func wantRefusal(t testing.TB, p, got Packet) {
	t.Helper()
	if p.UDP != nil {
		if got.ICMP == nil || got.ICMP.Type != Unreachable || got.ICMP.Code != 3 || got.Source != p.Destination || got.Destination != p.Source {
			t.Fatalf("the answer is %+v; want port unreachable", got)
		}
		wantQuote(t, p, got, 8)
		return
	}
	want := p.with(func(q *Packet) {
		q.Source, q.Destination, q.TTL, q.Protocol = p.Destination, p.Source, got.TTL, ProtocolTCP
		ports(p.TCP.Destination, p.TCP.Source)(q)
		if p.TCP.Flags&ACK != 0 {
			q.TCP.Flags, q.TCP.Sequence, q.TCP.Ack = RST, p.TCP.Ack, 0
			return
		}
		q.TCP.Flags, q.TCP.Sequence, q.TCP.Ack = RST|ACK, 0, p.TCP.Sequence+uint32(len(p.Payload))+1
	})
	wantEqual(t, "reset", want, got)
}

// The client's edge answers a packet to a ClusterSetIP that no cluster serves, or not at that port.
func TestRefusedAtTheClient(t *testing.T) {
	mss := func(p *Packet) { p.TCP.Options = []byte{2, 4, 5, 180} }
	data := func(p *Packet) { p.Payload = []byte("data of a SYN") }
	vip := to(clustersetIP)
	for name, tt := range map[string]struct {
		weights [3]int
		port    uint16
		verdict string
	}{
		"no backend": {[3]int{-1, -1, -1}, 0, "edge-out drop-no-backend"},
		"no port":    {[3]int{-1, 1, 1}, 81, "edge-out drop-no-service"},
	} {
		t.Run(name, func(t *testing.T) {
			k := balancing(t, tt.weights)
			cookie, _, err := k.Loader.Marks()
			if err != nil {
				t.Fatal(err)
			}
			at := func(p Packet) Packet {
				source, destination := p.ports()
				if tt.port != 0 {
					destination = tt.port
				}
				return p.with(ports(source, destination))
			}
			for what, p := range map[string]Packet{
				"SYN": tcpPacket(SYN, vip), "SYN with options": tcpPacket(SYN, vip, mss), "SYN with data": tcpPacket(SYN, vip, mss, data),
				"end of the sequence space": tcpPacket(SYN, vip, func(p *Packet) { p.TCP.Sequence = 0xffffffff }),
				"UDP":                       udpPacket("a question longer than what is quoted of it", vip), "empty UDP": udpPacket("", vip),
				"UDP without a checksum": udpPacket("x", vip, func(p *Packet) { p.UDP.NoChecksum = true }),
				"first fragment":         udpPacket("sixteen bytes...", vip, func(p *Packet) { p.MoreFragments = true }),
			} {
				p = at(p)
				r := k.fromPod(t, p)
				if r.Action != Redirect || r.Verdict != tt.verdict || r.Mark != cookie {
					t.Fatalf("%s: action %d, verdict %q, mark %#x; want an answer on pelago0", what, r.Action, r.Verdict, r.Mark)
				}
				inner, err := DecodeDelivered(r.Frame)
				if err != nil {
					t.Fatalf("%s: %v", what, err)
				}
				wantRefusal(t, p, decode(t, inner))
				if r := k.Run(t, k.EdgeIn, r.Frame, Context{Mark: r.Mark}); r.Action != Next || r.Verdict != "edge-in delivered" {
					t.Errorf("%s: edge_in: action %d, %q", what, r.Action, r.Verdict)
				}
			}
			for what, p := range map[string]Packet{
				"echo": echoPacket(Echo, vip), "reset": tcpPacket(RST|ACK, vip), "error": icmpError(udpPacket("x", from(clustersetIP.String()), to(ip("10.7.2.10"))), ip("10.7.2.10"), clustersetIP, 8),
				"SCTP": sctpPacket(5000, 5000, vip),
				"later fragment": udpPacket("", vip, func(p *Packet) {
					p.Protocol, p.UDP, p.Offset, p.Payload = ProtocolUDP, nil, 1480, []byte("the rest")
				}),
				"TCP fragment": tcpPacket(SYN, vip, func(p *Packet) { p.MoreFragments, p.DontFragment = true, false }),
				"IP options":   udpPacket("x", vip, func(p *Packet) { p.Options = []byte{1, 1, 1, 1} }),
			} {
				if r := k.fromPod(t, at(p)); r.Action != Drop {
					t.Errorf("%s: action %d, %q; want it dropped", what, r.Action, r.Verdict)
				}
			}
			if r := k.Run(t, k.EdgeOut, Frame(at(tcpPacket(SYN, vip)).Encode()), Context{IngressIfindex: podDevice + 1}); r.Action != Drop || r.Verdict != "edge-out drop-unknown-source" {
				t.Errorf("forged by another device: action %d, %q", r.Action, r.Verdict)
			}
			if got := k.flows(t); got != 0 {
				t.Errorf("%d flows: %v", got, k.list(t))
			}
			if err := k.Answers.Put(uint32(0), uint64(nanotime(t))+3600e9); err != nil {
				t.Fatal(err)
			}
			if r := k.fromPod(t, at(tcpPacket(SYN, vip))); r.Action != Drop || r.Verdict != tt.verdict {
				t.Errorf("beyond the rate: action %d, %q", r.Action, r.Verdict)
			}
		})
	}
}

// The edge that finds no backend, or no port, answers the pod in the other cluster, through the
// gateways of both: a gateway, or the last node that a packet is bounced to.
func TestRefusedByTheService(t *testing.T) { bothHooks(t, throughRefusal) }

func throughRefusal(t *testing.T) {
	requests := map[string]Packet{
		"tcp": tcpPacket(SYN, func(p *Packet) { p.TCP.Options = []byte{2, 4, 5, 130} }), "udp": udpPacket("a question longer than what is quoted of it"),
		"short udp": udpPacket(""), "no checksum": udpPacket("x", func(p *Packet) { p.UDP.NoChecksum = true }),
		"first fragment": udpPacket("sixteen bytes...", func(p *Packet) { p.MoreFragments = true }),
	}
	// home takes the answer from the edge that refuses to the pod.
	home := func(t *testing.T, f fleet, p Packet, leg Overlay) {
		t.Helper()
		leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
		wantRefusal(t, p, f.na.delivered(t, f.na.arrive(t, leg)))
	}
	for name, request := range requests {
		t.Run("the gateway, "+name, func(t *testing.T) {
			f := newFleet(t, 2)
			s := oneGateway(2, 1)
			noBackend(&s)
			f.gb.Apply(t, s)
			for verdict, p := range map[string]Packet{
				"uplink-in drop-no-backend": request,
				"uplink-in drop-no-service": request.with(ports(40000, 81)),
			} {
				leg := f.na.sent(t, f.na.fromPod(t, p), "edge-out sent")
				leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
				leg = f.gb.sent(t, f.gb.arrive(t, leg), verdict)
				if leg.Destination != nodeIP(1, 1) || leg.Port != cablePort || leg.Token != cableToken || leg.Node != 0 || leg.Flags != 0 || leg.TTL != 62 {
					t.Errorf("the answer travels as %+v", leg)
				}
				home(t, f, p, leg)
			}
		})
		t.Run("a node, "+name, func(t *testing.T) {
			f := newFleet(t, 2)
			s := oneGateway(2, 2)
			noBackend(&s)
			f.nb.Apply(t, s)
			leg := f.na.sent(t, f.na.fromPod(t, request), "edge-out sent")
			leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
			leg = f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in switched")
			leg.Flags |= Bounced
			leg.Destination = nodeIP(2, 2)
			leg = f.nb.sent(t, f.nb.arrive(t, leg), "uplink-in drop-no-backend")
			if leg.Destination != nodeIP(2, 1) || leg.Port != overlayPort || leg.Flags != 0 {
				t.Errorf("the answer travels as %+v", leg)
			}
			home(t, f, request, f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in switched"))
		})
	}
	t.Run("a segment of a connection whose service is gone", func(t *testing.T) {
		f := newFleet(t, 2)
		s := oneGateway(2, 1)
		noBackend(&s)
		f.gb.Apply(t, s)
		f.na.sent(t, f.na.fromPod(t, tcpPacket(SYN)), "edge-out sent")
		p := tcpPacket(ACK|PSH, func(p *Packet) { p.Payload = []byte("data") })
		leg := f.na.sent(t, f.na.fromPod(t, p), "edge-out sent")
		leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
		home(t, f, p, f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in drop-no-backend"))
	})
	t.Run("the own cluster", func(t *testing.T) {
		na, ga := load(t, 1, 3), load(t, 1, 1)
		s := oneGateway(1, 1)
		noBackend(&s)
		na.Apply(t, oneGateway(1, 3))
		ga.Apply(t, s)
		for _, request := range []Packet{tcpPacket(SYN), udpPacket("question")} {
			p := request.with(from("10.7.3.10"), to(global(1, 20)))
			r := ga.arrive(t, na.sent(t, na.fromPod(t, p), "edge-out sent"))
			if r.Verdict != "uplink-in drop-no-backend" {
				t.Fatalf("%q", r.Verdict)
			}
			leg := ga.sent(t, ga.loop(t, r), "hairpin switched")
			wantRefusal(t, p, na.delivered(t, na.arrive(t, leg)))
		}
		// A pod of the gateway itself.
		p := tcpPacket(SYN, from("10.7.1.10"), to(global(1, 20)))
		r := ga.loop(t, ga.fromPod(t, p))
		if r.Verdict != "hairpin drop-no-backend" {
			t.Fatalf("%q", r.Verdict)
		}
		wantRefusal(t, p, ga.received(t, ga.loop(t, r)))
	})
}

// What a service does not answer: whom it is not exported to, what is no request, and more than the
// rate of a cluster.
func TestNotRefused(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	noBackend(&s)
	silent := func(what string, p Packet, verdict string) {
		t.Helper()
		if r := k.arrive(t, cable(2, 1, 1, p.Encode())); r.Action != Drop || r.Verdict != verdict {
			t.Errorf("%s: action %d, %q; want it dropped, %q", what, r.Action, r.Verdict, verdict)
		}
	}
	k.Apply(t, s)
	silent("reset", clientTCP(RST|ACK), "uplink-in drop-no-backend")
	silent("echo", echoPacket(Echo, from("120.2.0.1"), to(global(1, 20))), "uplink-in drop-no-service")
	silent("SCTP", sctpPacket(5000, 5000, from("120.2.0.1"), to(global(1, 20))), "uplink-in drop-no-service")
	silent("an address of none", clientTCP(SYN, to(global(1, 77))), "uplink-in drop-not-own")
	r := k.Run(t, k.UplinkIn, cable(2, 1, 1, clientTCP(ACK).Encode()).Encode(), Context{GSOSegments: 3, GSOSize: 10})
	if r.Action != Drop || r.Verdict != "uplink-in drop-no-backend" {
		t.Errorf("a segmented packet: action %d, %q", r.Action, r.Verdict)
	}

	if err := k.Refusals.Put(uint32(2), uint64(nanotime(t))+3600e9); err != nil {
		t.Fatal(err)
	}
	silent("beyond the rate", clientTCP(SYN), "uplink-in drop-no-backend")
	// The rate of another cluster is its own.
	hairpin := overlay(1, 2, 1, tcpPacket(SYN, from("120.1.0.1"), to(global(1, 20)), ports(blockOf(2)+7, 80)).Encode(), hairpinned)
	if r := k.arrive(t, hairpin); r.Action != Redirect || r.Verdict != "uplink-in drop-no-backend" {
		t.Errorf("the own cluster: action %d, %q; want it answered", r.Action, r.Verdict)
	}
	k.Flush(t)

	s = state(1, 1)
	noBackend(&s)
	exportTo(global(1, 20), 3)(&s)
	k.Apply(t, s)
	silent("a service exported to others", clientTCP(SYN), "uplink-in drop-no-backend")
	silent("its other ports", clientTCP(SYN, ports(1500, 81)), "uplink-in drop-no-service")
}
