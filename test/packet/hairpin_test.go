package packet

import (
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/dataplane"
)

// hairpinned marks a packet to a global IP of the own cluster, for a gateway.
func hairpinned(o *Overlay) { o.Flags = Switch }

// loop runs edge_in on what a gateway's edge_out has sent to its own pelago0.
func (k *Kernel) loop(t testing.TB, r Result) Result {
	t.Helper()
	_, probeMark, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if r.Action != Redirect || r.Mark != probeMark {
		t.Fatalf("action %d, verdict %q, mark %#x; want a redirect with the node's second secret", r.Action, r.Verdict, r.Mark)
	}
	return k.Run(t, k.EdgeIn, r.Frame, Context{Mark: r.Mark})
}

// received checks that a hairpinned packet goes to a local pod, and reads it.
func (k *Kernel) received(t testing.TB, r Result) Packet {
	t.Helper()
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if r.Action != Redirect || r.Verdict != "hairpin delivered" || r.Mark != cookie {
		t.Fatalf("action %d, verdict %q, mark %#x; want it delivered with the node's cookie", r.Action, r.Verdict, r.Mark)
	}
	inner, err := DecodeDelivered(r.Frame)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, inner)
}

// TestHairpin follows packets of pod 10.7.3.10 to service 120.1.0.21 of its own cluster, whose only
// backend is pod 10.7.2.10 (RFC 4787 REQ-9, RFC 5382 REQ-8).
func TestHairpin(t *testing.T) { bothHooks(t, throughHairpin) }

func throughHairpin(t *testing.T) {
	na, ga, nb := load(t, 1, 3), load(t, 1, 1), load(t, 1, 2)
	for node, k := range map[uint16]*Kernel{3: na, 1: ga, 2: nb} {
		k.Apply(t, oneGateway(1, node))
	}
	ga.answered(t)
	there := func(p Packet, node uint16) Packet {
		leg := na.sent(t, na.fromPod(t, p), "edge-out sent")
		wantEqual(t, "to the gateway", overlay(1, 3, 1, leg.Inner, hairpinned, sentBy(p.Source.String())), plainHeader(leg, node))
		leg = ga.sent(t, ga.arrive(t, leg), "uplink-in switched")
		wantEqual(t, "to the backend's node", overlay(1, 1, 2, leg.Inner, sentBy(p.Source.String()), func(o *Overlay) { o.TTL = 63 }), plainHeader(leg, node))
		return nb.delivered(t, nb.arrive(t, leg))
	}
	back := func(p Packet) Packet {
		leg := nb.sent(t, nb.fromPod(t, p), "edge-out sent")
		wantEqual(t, "answer to the gateway", overlay(1, 2, 1, leg.Inner, hairpinned, sentBy(p.Source.String())), plainHeader(leg, 2))
		leg = ga.sent(t, ga.arrive(t, leg), "uplink-in switched")
		wantEqual(t, "answer to the client's node", overlay(1, 1, 3, leg.Inner, sentBy(p.Source.String()), func(o *Overlay) { o.TTL = 63 }), plainHeader(leg, 2))
		return na.delivered(t, na.arrive(t, leg))
	}
	request := tcpPacket(SYN, from("10.7.3.10"), to(global(1, 21)))
	seen := there(request, 0)
	port := seen.TCP.Source
	if port < blockOf(3) || port >= blockOf(4) {
		t.Fatalf("the backend sees port %d; want one of the block of node 3", port)
	}
	want := request.with(from("120.1.0.1"), to(ip("10.7.2.10")), ports(port, 8080))
	want.Protocol = ProtocolTCP
	wantEqual(t, "what the backend sees", want, seen)
	answer := back(seen.answer())
	if answer.Source != global(1, 21) || answer.Destination != request.Source || answer.TCP.Source != 80 || answer.TCP.Destination != 40000 {
		t.Errorf("the client gets the answer %+v", answer)
	}
	there(tcpPacket(ACK, from("10.7.3.10"), to(global(1, 21))), 2)

	// Errors pass in both directions (RFC 5508 REQ-7, RFC 7857 section 12).
	datagram := udpPacket("question", from("10.7.3.10"), to(global(1, 100)))
	seen = there(datagram, 0)
	wantQuote(t, datagram, back(icmpError(seen, seen.Destination, seen.Source, 8)), 8)
	echo := echoPacket(Echo, from("10.7.3.10"), to(global(1, 100)))
	if got := back(there(echo, 0).answer()); got.Source != global(1, 100) || got.ICMP.Identifier() != 77 {
		t.Errorf("reply to the echo: %+v", got)
	}

	// A segment without a flow is reset, by the same way.
	nb.Flush(t)
	reset := nb.sent(t, nb.arrive(t, overlay(1, 1, 2, tcpPacket(ACK, from("120.1.0.1"), to(global(1, 21)), ports(port, 80)).Encode())), "uplink-in drop-no-flow")
	wantEqual(t, "way of the reset", overlay(1, 2, 1, reset.Inner, hairpinned, func(o *Overlay) { o.TTL = 63 }), plainHeader(reset, 0))
	if got := decode(t, reset.Inner); got.TCP.Flags&RST == 0 || got.Destination != global(1, 1) {
		t.Errorf("reset: %+v", got)
	}
}

// plainHeader removes the entropy of the outer port, and the node index if it is the one wanted.
func plainHeader(o Overlay, node uint16) Overlay {
	o.SourcePort = 0xc123
	if o.Node == node {
		o.Node = 0
	}
	return o
}

// A gateway finds the node for its own pods, be it itself.
func TestHairpinAtGateway(t *testing.T) {
	ga, nb := load(t, 1, 1), load(t, 1, 2)
	s := oneGateway(1, 1)
	local := dataplane.ServiceKey{Address: global(1, 22), Port: 80, Protocol: ProtocolTCP}
	s.Services[local] = dataplane.Service{Backends: []netip.AddrPort{addrPort("10.7.1.11:8080")}, Table: dataplane.Maglev(map[uint16]int{1: 1})}
	ga.Apply(t, s)
	nb.Apply(t, oneGateway(1, 2))
	ga.answered(t)

	// To a backend on another node, and back.
	leg := ga.sent(t, ga.loop(t, ga.fromPod(t, tcpPacket(SYN, from("10.7.1.10"), to(global(1, 21))))), "hairpin switched")
	if leg.Source != nodeIP(1, 1) || leg.Destination != nodeIP(1, 2) || leg.Flags != 0 {
		t.Errorf("to the backend's node: %+v", leg)
	}
	seen := nb.delivered(t, nb.arrive(t, leg))
	leg = nb.sent(t, nb.fromPod(t, seen.answer()), "edge-out sent")
	if got := ga.delivered(t, ga.arrive(t, leg)); got.Source != global(1, 21) || got.Destination != ip("10.7.1.10") {
		t.Errorf("the client gets the answer %+v", got)
	}

	// To a backend on the gateway itself, and back; the same pod is client and backend at the end.
	for _, client := range []string{"10.7.1.10", "10.7.1.11"} {
		seen = ga.received(t, ga.loop(t, ga.fromPod(t, tcpPacket(SYN, from(client), to(global(1, 22))))))
		if seen.Source != global(1, 1) || seen.Destination != ip("10.7.1.11") || seen.TCP.Destination != 8080 {
			t.Errorf("the backend sees %+v", seen)
		}
		if got := ga.received(t, ga.loop(t, ga.fromPod(t, seen.answer()))); got.Source != global(1, 22) || got.Destination != ip(client) || got.TCP.Destination != 40000 {
			t.Errorf("the client gets the answer %+v", got)
		}
	}

	// A GSO packet, whose number of segments the kernel has forgotten by then, goes to the vxlan
	// receiver, from an address that the reverse path filter expects on pelago0.
	r := ga.fromPod(t, tcpPacket(ACK, from("10.7.1.10"), to(global(1, 22))))
	r = ga.Run(t, ga.EdgeIn, r.Frame, Context{Mark: r.Mark, GSOSize: 10})
	if o, err := DecodeHandedOver(r.Frame); err != nil || r.Verdict != "hairpin delivered" || r.Action != Next || o.Source != global(1, 1) {
		t.Errorf("a GSO packet: action %d, %q, from %s, %v; want it from %s to the receiver", r.Action, r.Verdict, o.Source, err, global(1, 1))
	}

	// What it cannot deliver has its reason.
	for name, c := range map[string]struct {
		to     netip.Addr
		want   string
		action int
	}{
		"nobody's address": {global(1, 77), "hairpin drop-not-own", Drop},
		"port of a pod":    {global(1, 20), "hairpin drop-no-service", Redirect}, // answered
	} {
		if r := ga.loop(t, ga.fromPod(t, tcpPacket(SYN, from("10.7.1.10"), to(c.to), ports(40000, 81)))); r.Verdict != c.want || r.Action != c.action {
			t.Errorf("%s: action %d, %q; want %d, %q", name, r.Action, r.Verdict, c.action, c.want)
		}
	}
}
