package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/dataplane"
)

// fleet is a node of each kind on the way between two clusters.
type fleet struct {
	// node 2 of cluster 1, gateway 1 of cluster 1, gateway 1 of cluster 2, a node of cluster 2
	na, ga, gb, nb *Kernel
}

func newFleet(t testing.TB, nbNode uint16) fleet {
	t.Helper()
	f := fleet{na: load(t, 1, 2), ga: load(t, 1, 1), gb: load(t, 2, 1), nb: load(t, 2, nbNode)}
	f.na.Apply(t, oneGateway(1, 2))
	f.ga.Apply(t, oneGateway(1, 1))
	f.gb.Apply(t, oneGateway(2, 1))
	f.nb.Apply(t, oneGateway(2, nbNode))
	for _, k := range []*Kernel{f.ga, f.gb} {
		k.answered(t)
	}
	return f
}

// oneGateway is state with one gateway on each side, so that the way of a packet is known.
func oneGateway(cluster int, node uint16) dataplane.State {
	s := state(cluster, node)
	s.Gateways = []uint16{1}
	if node == 1 {
		s.Clusters[uint16(3-cluster)] = s.Clusters[uint16(3-cluster)][:1]
	}
	return s
}

// there takes a packet of a pod at NA to the pod at NB. It returns what the overlay showed on its
// three legs and what the pod sees.
func (f fleet) there(t testing.TB, p Packet) (legs []Overlay, seen Packet) {
	t.Helper()
	legs = append(legs, f.na.sent(t, f.na.fromPod(t, p), "edge-out sent"))
	legs = append(legs, f.ga.sent(t, f.ga.arrive(t, legs[0]), "uplink-in switched"))
	legs = append(legs, f.gb.sent(t, f.gb.arrive(t, legs[1]), "uplink-in switched"))
	return legs, f.nb.delivered(t, f.nb.arrive(t, legs[2]))
}

// back takes an answer of the pod at NB to the pod at NA.
func (f fleet) back(t testing.TB, p Packet) (legs []Overlay, seen Packet) {
	t.Helper()
	legs = append(legs, f.nb.sent(t, f.nb.fromPod(t, p), "edge-out sent"))
	legs = append(legs, f.gb.sent(t, f.gb.arrive(t, legs[0]), "uplink-in switched"))
	legs = append(legs, f.ga.sent(t, f.ga.arrive(t, legs[1]), "uplink-in switched"))
	return legs, f.na.delivered(t, f.na.arrive(t, legs[2]))
}

// TestWalk follows a connection from pod 10.7.2.10 of cluster 1 to service 120.2.0.21 of cluster 2,
// whose only backend is pod 10.7.2.10 there, hop by hop and field by field.
func TestWalk(t *testing.T) { bothHooks(t, throughWalk) }

func throughWalk(t *testing.T) {
	f := newFleet(t, 2)
	request := tcpPacket(SYN, to(global(2, 21)), func(p *Packet) { p.TOS = 0xb9 /* EF, ECT(1) */ })
	legs, seen := f.there(t, request)

	// The inner packet on the wire: the pod is behind the egress IP, on a port of its node's block.
	inner := decode(t, legs[0].Inner)
	port := inner.TCP.Source
	if port < blockOf(2) || port >= blockOf(3) {
		t.Fatalf("outside port %d; want one of block %d of node 2", port, blockOf(2))
	}
	wantInner := request.with(from("120.1.0.1"), ports(port, 80))
	wantInner.Protocol = ProtocolTCP
	wantEqual(t, "inner packet", wantInner, inner)

	entropy := legs[0].SourcePort
	if entropy < 0xc000 {
		t.Errorf("outer source port %#x; want one of the range 0xc000–0xffff", entropy)
	}
	want := []Overlay{
		overlay(1, 2, 1, legs[0].Inner), cable(1, 1, 1, legs[0].Inner), overlay(2, 1, 2, legs[0].Inner),
	}
	for i := range want {
		want[i].TOS, want[i].SourcePort, want[i].TTL = 0xb9, entropy, uint8(64-i)
		sentBy("10.7.2.10")(&want[i])
	}
	wantEqual(t, "legs of the request", want, legs)

	wantSeen := wantInner.with(to(ip("10.7.2.10")), ports(port, 8080))
	wantEqual(t, "what the pod sees", wantSeen, seen)

	// The answer tells node 2 as the holder of the flow.
	answer := seen.answer()
	legs, seen = f.back(t, answer)
	wantInner = answer.with(from("120.2.0.21"), ports(80, port))
	wantEqual(t, "inner answer", wantInner, decode(t, legs[0].Inner))
	want = []Overlay{
		overlay(2, 2, 1, legs[0].Inner), cable(2, 1, 1, legs[0].Inner), overlay(1, 1, 2, legs[0].Inner),
	}
	for i := range want {
		want[i].TOS, want[i].SourcePort, want[i].TTL, want[i].Node = 0xb9, legs[0].SourcePort, uint8(64-i), 2
		sentBy("10.7.2.10")(&want[i])
	}
	wantEqual(t, "legs of the answer", want, legs)
	wantEqual(t, "what the client sees", wantInner.with(to(ip("10.7.2.10")), ports(80, 40000)), seen)

	// From now on the request says it too.
	legs, _ = f.there(t, tcpPacket(ACK, to(global(2, 21))))
	for i, leg := range legs {
		if leg.Node != 2 {
			t.Errorf("leg %d of the next request names node %d; want 2, which answered", i, leg.Node)
		}
	}
}

// The node that answered keeps the flow although the table now names another one; what has no entry
// there is reset.
func TestSticky(t *testing.T) { bothHooks(t, throughSticky) }

func throughSticky(t *testing.T) {
	f := newFleet(t, 3)
	change := func(node uint16, present bool) {
		s := oneGateway(2, 1)
		service := s.Services[serviceKey(20, 80, ProtocolTCP)]
		service.Table = []uint16{node}
		s.Services[serviceKey(20, 80, ProtocolTCP)] = service
		if !present {
			delete(s.Nodes, 3)
		}
		f.gb.Apply(t, s)
	}
	move := func(node uint16) { change(node, true) }
	move(3)
	legs, seen := f.there(t, tcpPacket(SYN))
	if got := legs[2].Destination; got != nodeIP(2, 3) {
		t.Fatalf("the connection was opened to %s; want node 3", got)
	}
	f.back(t, seen.answer())

	move(2)
	legs, _ = f.there(t, tcpPacket(ACK))
	if got := legs[2].Destination; got != nodeIP(2, 3) {
		t.Errorf("after the table changed the connection goes to %s; want node 3, which has it", got)
	}
	// A new connection follows the table.
	leg := f.na.sent(t, f.na.fromPod(t, tcpPacket(SYN, ports(40001, 80))), "edge-out sent")
	leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
	leg = f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in switched")
	if leg.Destination != nodeIP(2, 2) || leg.Node != 0 {
		t.Errorf("a new connection goes to %s with node index %d; want node 2 and none", leg.Destination, leg.Node)
	}
	// A node that has gone is not obeyed.
	change(2, false)
	leg = f.na.sent(t, f.na.fromPod(t, tcpPacket(ACK)), "edge-out sent")
	leg = f.ga.sent(t, f.ga.arrive(t, leg), "uplink-in switched")
	leg = f.gb.sent(t, f.gb.arrive(t, leg), "uplink-in switched")
	if leg.Destination != nodeIP(2, 2) {
		t.Errorf("after node 3 went the connection goes to %s; want node 2", leg.Destination)
	}
}

// A TCP flow stays with the node whose SYN-ACK its client has acknowledged, whatever other nodes
// send on its tuple.
func TestLateAnswers(t *testing.T) {
	type step struct {
		flags uint8
		node  uint16 // that answers; 0: the client sends
		after time.Duration
	}
	for name, tt := range map[string]struct {
		steps []step
		want  uint16
	}{
		"handshake":                              {[]step{{SYN, 0, 0}, {SYN | ACK, 2, 0}}, 2},
		"another node's SYN-ACK comes late":      {[]step{{SYN, 0, 0}, {SYN | ACK, 2, 0}, {ACK, 0, 0}, {SYN | ACK, 3, 0}}, 2},
		"after a pause":                          {[]step{{SYN, 0, 0}, {SYN | ACK, 2, 0}, {ACK, 0, 0}, {SYN | ACK, 3, 2 * time.Second}}, 2},
		"two SYN-ACKs at once":                   {[]step{{SYN, 0, 0}, {SYN | ACK, 2, 0}, {SYN | ACK, 3, 0}}, 2},
		"the former connection's node sends":     {[]step{{SYN, 0, 0}, {ACK, 3, 0}, {SYN | ACK, 2, 0}}, 2},
		"the client refuses the first SYN-ACK":   {[]step{{SYN, 0, 0}, {SYN | ACK, 3, 0}, {RST, 0, 0}, {SYN | ACK, 2, 0}}, 2},
		"the client does not get the first one":  {[]step{{SYN, 0, 0}, {SYN | ACK, 3, 0}, {SYN, 0, 2 * time.Second}, {SYN | ACK, 2, 0}}, 2},
		"an established flow that knows no node": {[]step{{SYN, 0, 0}, {ACK, 0, 0}, {ACK, 2, 0}}, 2},
		"opened again":                           {[]step{{SYN, 0, 0}, {SYN | ACK, 3, 0}, {ACK, 0, 0}, {RST, 3, 0}, {SYN, 0, 0}, {SYN | ACK, 2, 0}}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			k := load(t, 1, 2)
			var seen Packet
			var o Overlay
			for _, s := range append(tt.steps, step{ACK, 0, 0}) {
				k.age(t, s.after)
				if s.node > 0 {
					p := seen.answer().with(func(p *Packet) { p.TCP.Flags = s.flags })
					k.delivered(t, k.arrive(t, overlay(1, 1, 2, p.Encode(), func(o *Overlay) { o.Node = s.node })))
					continue
				}
				o = k.sent(t, k.fromPod(t, tcpPacket(s.flags)), "edge-out sent")
				seen = decode(t, o.Inner)
			}
			if o.Node != tt.want {
				t.Errorf("the last ACK goes to node %d; want %d", o.Node, tt.want)
			}
		})
	}
}

// A gateway with backends of its own obeys its own index too, which is in no table of nodes.
func TestStickyAtGateway(t *testing.T) { bothHooks(t, throughStickyAtGateway) }

func throughStickyAtGateway(t *testing.T) {
	gb := load(t, 2, 1)
	table := func(node uint16) {
		s := oneGateway(2, 1)
		s.Services[serviceKey(20, 80, ProtocolTCP)] = dataplane.Service{
			Backends: []netip.AddrPort{addrPort("10.7.1.10:8080")}, Table: []uint16{node},
		}
		gb.Apply(t, s)
	}
	table(1)
	client := tcpPacket(SYN, from("120.1.0.1"), ports(1300, 80))
	seen := gb.delivered(t, gb.arrive(t, cable(1, 1, 1, client.Encode())))
	if o := gb.sent(t, gb.fromPod(t, seen.answer()), "edge-out sent"); o.Node != 1 {
		t.Fatalf("the answer names node %d; want 1", o.Node)
	}
	table(2)
	data := tcpPacket(ACK, from("120.1.0.1"), ports(1300, 80))
	gb.delivered(t, gb.arrive(t, cable(1, 1, 1, data.Encode(), func(o *Overlay) { o.Node = 1 })))
}

// The same packet takes the same way: every gateway of a cluster picks alike, and each gets a share
// of the flows.
func TestGatewaysShareFlows(t *testing.T) { bothHooks(t, throughGatewaysShareFlows) }

func throughGatewaysShareFlows(t *testing.T) {
	na := load(t, 1, 2)
	gateways := map[string]int{}
	for port := range uint16(400) {
		p := udpPacket("x", ports(30000+port%200, 53)) // every flow twice
		gateways[na.sent(t, na.fromPod(t, p), "edge-out sent").Destination.String()]++
	}
	for _, n := range gatewayNodes {
		if got := gateways[nodeIP(1, int(n)).String()]; got < 120 || got > 280 || got%2 != 0 {
			t.Errorf("gateway %d got %d of 400 packets of 200 flows; want about half, and both packets of a flow: %v", n, got, gateways)
		}
	}
	// A gateway picks for its own pods as everybody does: half of their flows go to the other one.
	ga := load(t, 1, 1)
	ga.answered(t)
	ports4500, ports4800 := 0, 0
	for port := range uint16(200) {
		switch o := ga.sent(t, ga.fromPod(t, udpPacket("x", from("10.7.1.10"), ports(30000+port, 53))), "edge-out sent"); o.Port {
		case cablePort:
			ports4500++
			if !slices.Contains([]string{"172.16.2.1", "172.16.2.4"}, o.Destination.String()) || o.Token != cableToken {
				t.Errorf("onto the cable to %s with token %#x", o.Destination, o.Token)
			}
		case overlayPort:
			ports4800++
			if o.Destination != nodeIP(1, 4) || o.Token != overlayToken+1 {
				t.Errorf("on the overlay to %s with token %#x", o.Destination, o.Token)
			}
		}
	}
	if ports4500 < 60 || ports4800 < 60 {
		t.Errorf("%d flows straight onto the cable, %d by the sibling; want about half each", ports4500, ports4800)
	}
}

// Without the gateway that a flow used, only that gateway's flows move.
func TestGatewayRemoval(t *testing.T) {
	na := load(t, 1, 2)
	way := func() map[uint16]string {
		out := map[uint16]string{}
		for port := uint16(30000); port < 30100; port++ {
			out[port] = na.sent(t, na.fromPod(t, udpPacket("x", ports(port, 53))), "edge-out sent").Destination.String()
		}
		return out
	}
	before := way()
	only4 := state(1, 2)
	only4.Gateways = []uint16{4}
	na.Apply(t, only4)
	want := map[uint16]string{}
	for port := range before {
		want[port] = "172.16.1.4"
	}
	if diff := cmp.Diff(want, way()); diff != "" {
		t.Errorf("with gateway 4 only:\n%s", diff)
	}
	na.Apply(t, state(1, 2))
	if diff := cmp.Diff(before, way()); diff != "" {
		t.Errorf("with both gateways again:\n%s", diff)
	}
}
