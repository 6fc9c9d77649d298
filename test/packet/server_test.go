package packet

import (
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane"
)

// Two services on one pod port, reached from one outside port, are two connections to the pod; each
// answer goes back under the address and to the port that it belongs to. So are a service and the
// pod's own global IP.
func TestTwoServicesOnOnePod(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	s.Globals[global(1, 100)] = dataplane.Global{Kind: dataplane.GlobalPod, Node: 2, Pod: ip("10.7.2.10")}
	s.Services[own(20, 80)] = dataplane.Service{Backends: []netip.AddrPort{addrPort("10.7.2.10:8080")}}
	k.Apply(t, s)
	targets := []Packet{
		clientTCP(SYN, to(global(1, 20))), clientTCP(SYN, to(global(1, 21))), clientTCP(SYN, to(global(1, 100)), ports(1500, 8080)),
	}
	tuples := map[[4]any]string{}
	for round := range 2 { // the second time the flows are there
		for _, p := range targets {
			seen := k.delivered(t, k.arrive(t, overlay(1, 1, 2, p.Encode())))
			if seen.Source != p.Source || seen.Destination != ip("10.7.2.10") || seen.TCP.Destination != 8080 {
				t.Fatalf("the pod sees %v", seen)
			}
			tuple := [4]any{seen.Source, seen.TCP.Source, seen.Destination, seen.TCP.Destination}
			if other := tuples[tuple]; other != "" && other != p.Destination.String() {
				t.Fatalf("the connections to %s and %s are one to the pod: %v", other, p.Destination, tuple)
			}
			tuples[tuple] = p.Destination.String()
			answer := k.sent(t, k.fromPod(t, seen.answer()), "edge-out sent")
			got := decode(t, answer.Inner)
			if got.Source != p.Destination || got.TCP.Source != p.TCP.Destination || got.Destination != p.Source || got.TCP.Destination != 1500 {
				t.Errorf("round %d: the answer for %s is %s:%d > %s:%d", round, p.Destination, got.Source, got.TCP.Source, got.Destination, got.TCP.Destination)
			}
		}
	}
	if len(tuples) != 3 {
		t.Errorf("the pod sees %d tuples; want 3: %v", len(tuples), tuples)
	}
}

// A headless pod answers from the address that was addressed, and opens connections from it; a
// selector's egress IP, if it has one as well, is for what it opens only.
func TestHeadlessPodInTwoRoles(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	s.Sources[ip("10.7.2.11")] = dataplane.Source{Egress: global(1, 1), Ifindex: podDevice}
	k.Apply(t, s)
	seen := k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 100)), ports(1500, 9000)).Encode())))
	got := decode(t, k.sent(t, k.fromPod(t, seen.answer()), "edge-out sent").Inner)
	if got.Source != global(1, 100) || got.TCP.Source != 9000 {
		t.Errorf("the answer comes from %s:%d", got.Source, got.TCP.Source)
	}
	got = decode(t, k.sent(t, k.fromPod(t, tcpPacket(SYN, from("10.7.2.11"), ports(9000, 80))), "edge-out sent").Inner)
	if got.Source != global(1, 1) {
		t.Errorf("a connection of its own comes from %s", got.Source)
	}
	// Without a selector: its own address, port and all.
	k.Apply(t, state(1, 2))
	k.Flush(t)
	got = decode(t, k.sent(t, k.fromPod(t, tcpPacket(SYN, from("10.7.2.11"), ports(9000, 80))), "edge-out sent").Inner)
	if got.Source != global(1, 100) || got.TCP.Source != 9000 {
		t.Errorf("with an address of its own, a connection comes from %s:%d", got.Source, got.TCP.Source)
	}
}

// Backends that come and go concern new connections only.
func TestBackendChange(t *testing.T) {
	k := load(t, 1, 2)
	with := func(backends ...string) {
		s := state(1, 2)
		service := dataplane.Service{}
		for _, b := range backends {
			service.Backends = append(service.Backends, addrPort(b))
		}
		s.Services[own(20, 80)] = service
		k.Apply(t, s)
	}
	backendsOf := func(flags uint8) map[uint16]netip.Addr {
		out := map[uint16]netip.Addr{}
		for port := uint16(2000); port < 2050; port++ {
			p := k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(flags, ports(port, 80)).Encode())))
			out[port] = p.Destination
		}
		return out
	}
	with("10.7.2.10:8080", "10.7.2.11:8080")
	before := backendsOf(SYN)
	count := map[netip.Addr]int{}
	for _, b := range before {
		count[b]++
	}
	if len(count) != 2 || count[ip("10.7.2.10")] < 10 || count[ip("10.7.2.11")] < 10 {
		t.Errorf("50 connections are spread as %v", count)
	}
	with("10.7.2.10:8080", "10.7.2.11:8080", "10.7.2.12:8080")
	wantEqual(t, "with a third backend", before, backendsOf(ACK))
	with("10.7.2.10:8080")
	wantEqual(t, "with one backend", before, backendsOf(ACK))
	// A closed connection's tuple, opened again, requests a backend of today.
	for port, backend := range before {
		if backend != ip("10.7.2.11") {
			continue
		}
		k.arrive(t, overlay(1, 1, 2, clientTCP(RST|ACK, ports(port, 80)).Encode()))
		p := k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, ports(port, 80)).Encode())))
		if p.Destination != ip("10.7.2.10") {
			t.Errorf("a new connection from port %d goes to %s, which is no backend any more", port, p.Destination)
		}
	}
	if got := k.flows(t); got != 50 {
		t.Errorf("%d flows; want 50", got)
	}
}

// UDP leaves a backend that is no longer one within a second; TCP and other UDP flows stay.
func TestUDPLeavesBackend(t *testing.T) {
	k := load(t, 1, 2)
	with := func(backends ...string) {
		s := state(1, 2)
		var udp, tcp dataplane.Service
		for _, b := range backends {
			udp.Backends = append(udp.Backends, netip.AddrPortFrom(ip(b), 5353))
			tcp.Backends = append(tcp.Backends, netip.AddrPortFrom(ip(b), 8080))
		}
		s.VIPPods = nil
		s.Serve(dataplane.ServiceKey{Address: global(1, 20), Port: 53, Protocol: ProtocolUDP}, udp)
		s.Serve(own(20, 80), tcp)
		k.Apply(t, s)
	}
	backendsOf := func(packet func(...func(*Packet)) Packet, port uint16) map[uint16]netip.Addr {
		out := map[uint16]netip.Addr{}
		for from := uint16(2000); from < 2050; from++ {
			out[from] = k.delivered(t, k.arrive(t, overlay(1, 1, 2, packet(ports(from, port)).Encode()))).Destination
		}
		return out
	}
	segment := func(flags uint8) func(...func(*Packet)) Packet {
		return func(change ...func(*Packet)) Packet { return clientTCP(flags, change...) }
	}
	with("10.7.2.10", "10.7.2.11")
	udp, tcp := backendsOf(clientUDP, 53), backendsOf(segment(SYN), 80)
	with("10.7.2.10", "10.7.2.11", "10.7.2.12")
	k.age(t, 1500*time.Millisecond)
	wantEqual(t, "UDP with a third backend", udp, backendsOf(clientUDP, 53))
	with("10.7.2.10", "10.7.2.12")
	wantEqual(t, "UDP that was checked just before", udp, backendsOf(clientUDP, 53))
	k.age(t, 1500*time.Millisecond)
	moved := 0
	for from, backend := range backendsOf(clientUDP, 53) {
		switch former := udp[from]; {
		case backend == ip("10.7.2.11"):
			t.Errorf("UDP from port %d stays with %s, which is no backend any more", from, backend)
		case former == ip("10.7.2.11"):
			moved++
		case former != backend:
			t.Errorf("UDP from port %d moved from %s, which is a backend, to %s", from, former, backend)
		}
	}
	if moved < 10 {
		t.Errorf("%d flows moved; want those of the removed backend", moved)
	}
	wantEqual(t, "TCP", tcp, backendsOf(segment(ACK), 80))
	if got := k.flows(t); got != 100 {
		t.Errorf("%d flows; want 100", got)
	}
	with()
	k.age(t, 1500*time.Millisecond)
	bounced := k.sent(t, k.arrive(t, overlay(1, 1, 2, clientUDP(ports(2000, 53)).Encode())), "uplink-in bounced")
	if bounced.Flags&Bounced == 0 {
		t.Errorf("without a backend here the datagram goes on with %+v; want it bounced", bounced)
	}
	s := state(1, 2)
	delete(s.Globals, global(1, 20))
	k.Apply(t, s)
	if got := k.arrive(t, overlay(1, 1, 2, clientUDP(ports(2001, 53)).Encode())); got.Verdict != "uplink-in drop-not-own" {
		t.Errorf("the service is not exported any more: %s", got.Verdict)
	}
}

// With session affinity a client keeps its backend whatever its ports are, and clients are spread.
func TestClientIPAffinity(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	service := dataplane.Service{Affinity: 60}
	for _, b := range []string{"10.7.2.10:8080", "10.7.2.11:8080", "10.7.2.12:8080"} {
		service.Backends = append(service.Backends, addrPort(b))
	}
	s.Services[own(20, 80)] = service
	s.Routes[netip.MustParsePrefix("120.2.0.0/16")] = 2
	k.Apply(t, s)
	used := map[netip.Addr]int{}
	for client := range byte(60) {
		backend := netip.Addr{}
		for port := uint16(2000); port < 2004; port++ {
			p := clientTCP(SYN, ports(port, 80), func(p *Packet) { p.Source = netip.AddrFrom4([4]byte{120, 2, 1, client}) })
			got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, p.Encode()))).Destination
			if backend.IsValid() && got != backend {
				t.Errorf("client %d went to %s and to %s", client, backend, got)
			}
			backend = got
		}
		used[backend]++
	}
	for b, n := range used {
		if n < 8 {
			t.Errorf("backend %s has %d of 60 clients: %v", b, n, used)
		}
	}
	if len(used) != 3 {
		t.Errorf("backends used: %v", used)
	}
}

// A packet of a flow that this node has lost is reset towards whoever sent it, by the way that
// answers take.
func TestReset(t *testing.T) {
	data := clientTCP(ACK|PSH, func(p *Packet) {
		p.TCP.Options, p.Payload = []byte{1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2}, []byte("are you still there?")
	})
	want := func(p Packet) Packet {
		return p.with(func(q *Packet) {
			q.Source, q.Destination, q.Protocol = p.Destination, p.Source, ProtocolTCP
			ports(p.TCP.Destination, p.TCP.Source)(q)
			q.TCP.Flags, q.TCP.Sequence, q.TCP.Ack = RST, p.TCP.Ack, 0
		})
	}
	t.Run("a node", func(t *testing.T) {
		k := load(t, 1, 2)
		arrived := overlay(1, 1, 2, data.Encode(), func(o *Overlay) { o.Node, o.Flags, o.TTL = 2, Bounced, 61 })
		got := k.sent(t, k.arrive(t, arrived), "uplink-in drop-no-flow")
		wantEqual(t, "reset", want(data), decode(t, got.Inner))
		if got.Node != 0 || got.Flags != 0 || got.TTL != 60 || got.Port != overlayPort {
			t.Errorf("it travels as %+v", got)
		}
		if k.flows(t) != 0 {
			t.Errorf("a segment made a flow: %v", k.list(t))
		}
	})
	t.Run("the only gateway, which is the node as well", func(t *testing.T) {
		k := load(t, 1, 1)
		k.Apply(t, oneGateway(1, 1))
		got := k.sent(t, k.arrive(t, cable(2, 1, 1, data.Encode(), func(o *Overlay) { o.Node = 1 })), "uplink-in drop-no-flow")
		wantEqual(t, "reset", want(data), decode(t, got.Inner))
		if got.Destination != nodeIP(2, 1) || got.Port != cablePort || got.Token != cableToken {
			t.Errorf("it travels as %+v", got)
		}
	})
	t.Run("the client's node", func(t *testing.T) {
		k := load(t, 1, 2)
		answer := clientTCP(SYN|ACK, from("120.2.0.20"), to(global(1, 1)), ports(80, blockOf(2)+9))
		got := k.sent(t, k.arrive(t, overlay(1, 1, 2, answer.Encode())), "uplink-in drop-no-flow")
		wantEqual(t, "reset", want(answer), decode(t, got.Inner))
	})
	t.Run("a pod of this node", func(t *testing.T) {
		k := load(t, 1, 2)
		cookie, _, err := k.Loader.Marks()
		if err != nil {
			t.Fatal(err)
		}
		p := tcpPacket(ACK|PSH, func(p *Packet) { p.Payload = []byte("the table was lost") })
		r := k.fromPod(t, p)
		if r.Action != Redirect || r.Verdict != "edge-out drop-no-flow" || r.Mark != cookie {
			t.Fatalf("action %d, %q, mark %#x; want a reset on pelago0", r.Action, r.Verdict, r.Mark)
		}
		inner, err := DecodeDelivered(r.Frame)
		if err != nil {
			t.Fatal(err)
		}
		wantEqual(t, "reset", want(p), decode(t, inner))
		if r := k.Run(t, k.EdgeOut, Frame(p.Encode()), Context{IngressIfindex: podDevice + 1}); r.Action != Drop || r.Verdict != "edge-out drop-unknown-source" {
			t.Errorf("forged by another device: action %d, %q", r.Action, r.Verdict)
		}
	})
	t.Run("segments that are not answered", func(t *testing.T) {
		k := load(t, 1, 2)
		for name, p := range map[string]Packet{
			"reset": clientTCP(RST | ACK), "no ACK": clientTCP(FIN), "nothing": clientTCP(0), "SYN and FIN": clientTCP(SYN | FIN),
		} {
			if r := k.arrive(t, overlay(1, 1, 2, p.Encode())); r.Action != Drop || r.Verdict != "uplink-in drop-no-flow" {
				t.Errorf("%s: action %d, %q", name, r.Action, r.Verdict)
			}
		}
		r := k.Run(t, k.UplinkIn, overlay(1, 1, 2, data.Encode()).Encode(), Context{GSOSegments: 3, GSOSize: 10})
		if r.Action != Drop || r.Verdict != "uplink-in drop-no-flow" {
			t.Errorf("a segmented packet: action %d, %q", r.Action, r.Verdict)
		}
	})
}

// A packet for a pod of this node is decapsulated in place, and edge_in accepts it by its mark; a
// GSO packet takes the kernel's vxlan receiver.
func TestDelivery(t *testing.T) {
	k := load(t, 1, 2)
	p := clientTCP(SYN)
	direct := k.arrive(t, overlay(1, 1, 2, p.Encode()))
	got := k.delivered(t, direct)
	in := k.Run(t, k.EdgeIn, direct.Frame, Context{Mark: direct.Mark})
	if in.Action != Next || in.Verdict != "edge-in delivered" || in.Mark != 0 {
		t.Errorf("edge_in: action %d, %q, mark %#x; want it accepted without a mark", in.Action, in.Verdict, in.Mark)
	}
	for _, mark := range []uint32{0, 1, direct.Mark ^ 1} {
		if r := k.Run(t, k.EdgeIn, direct.Frame, Context{Mark: mark}); r.Action != Drop || r.Verdict != "edge-in drop-unverified" {
			t.Errorf("mark %#x: action %d, %q; want drop-unverified", mark, r.Action, r.Verdict)
		}
	}
	gso := k.Run(t, k.UplinkIn, overlay(1, 1, 2, p.Encode()).Encode(), Context{GSOSegments: 3, GSOSize: 10})
	wantEqual(t, "the GSO packet", got, k.handedOver(t, gso))
}

// The outer ECN field affects the inner one as RFC 6040, section 4.2, requires of an egress in
// normal mode.
func TestDeliveryOfCongestion(t *testing.T) {
	const notECT, ect1, ect0, ce = 0, 1, 2, 3
	k := load(t, 1, 2)
	for _, c := range []struct {
		inner, outer uint8
		want         int // the inner field delivered; -1: dropped
	}{
		{notECT, notECT, notECT}, {notECT, ce, -1}, {ect0, ect0, ect0}, {ect0, ce, ce}, {ect1, ect1, ect1}, {ect1, ce, ce}, {ce, ce, ce}, {ce, ect0, ce},
	} {
		const dscp = 0x2e << 2
		p := clientTCP(SYN)
		p.TOS = dscp | c.inner
		r := k.arrive(t, overlay(1, 1, 2, p.Encode(), func(o *Overlay) { o.TOS = dscp | c.outer }))
		if c.want < 0 {
			if r.Action != Drop || r.Verdict != "uplink-in drop-malformed" {
				t.Errorf("inner %d, outer %d: action %d, %q; want drop-malformed", c.inner, c.outer, r.Action, r.Verdict)
			}
			continue
		}
		if got := k.delivered(t, r); got.TOS != dscp|uint8(c.want) {
			t.Errorf("inner %d, outer %d: TOS %#x delivered, want ECN %d", c.inner, c.outer, got.TOS, c.want)
		}
	}
}

// A bounced packet does not come back: the gateway picks among the other nodes.
func TestBounceLeavesOutTheSender(t *testing.T) {
	ga := load(t, 1, 1)
	for port := uint16(2000); port < 2040; port++ {
		p := clientTCP(SYN, ports(port, 80))
		o := overlay(1, 2, 1, p.Encode(), func(o *Overlay) { o.Flags = Bounced | Switch })
		got := ga.sent(t, ga.arrive(t, o), "uplink-in switched")
		if got.Destination != nodeIP(1, 3) || got.Flags != Bounced {
			t.Errorf("from port %d: to %s with flags %d; want node 3, bounced", port, got.Destination, got.Flags)
		}
	}
	// What a node bounces goes to a gateway, keeps its packet and loses its node index.
	nb := load(t, 1, 2)
	s := state(1, 2)
	s.Services[own(20, 80)] = dataplane.Service{}
	nb.Apply(t, s)
	p := clientTCP(SYN)
	got := nb.sent(t, nb.arrive(t, overlay(1, 1, 2, p.Encode(), func(o *Overlay) { o.Node = 2 })), "uplink-in bounced")
	want := overlay(1, 2, 1, p.Encode(), func(o *Overlay) {
		o.Destination, o.TTL, o.Flags = got.Destination, 63, Bounced|Switch
	})
	wantEqual(t, "bounced", want, got)
	if got.Destination != nodeIP(1, 1) && got.Destination != nodeIP(1, 4) {
		t.Errorf("it goes to %s, which is no gateway", got.Destination)
	}
}

// What another cluster's gateways bounced among themselves is not bounced yet here, and its
// sender's index is that of another node.
func TestBounceIsForgottenOnTheCable(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	s.Services[own(20, 80)] = dataplane.Service{Table: dataplane.Maglev(map[uint16]int{4: 1})}
	k.Apply(t, s)
	got := k.sent(t, k.arrive(t, cable(2, 4, 1, clientTCP(SYN).Encode(), func(o *Overlay) { o.Flags = Bounced })), "uplink-in switched")
	if got.Destination != nodeIP(1, 4) || got.Flags != 0 {
		t.Errorf("to %s with flags %d; want node 4, none", got.Destination, got.Flags)
	}
}
