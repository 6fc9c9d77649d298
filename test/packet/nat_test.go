package packet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// checkTable checks the invariants of the flow table: every flow has exactly its two entries, each
// the inverse of the other, so no two flows share a tuple on either side, and what one entry does
// the other undoes.
func (k *Kernel) checkTable(t testing.TB) (flows int) {
	t.Helper()
	entries := k.entries(t)
	usage := map[bpf.PelagoUsageKey]int64{}
	for key, f := range entries {
		other, ok := entries[bpf.PelagoFlowKey{
			Saddr: f.Daddr, Daddr: f.Saddr, Sport: f.Dport, Dport: f.Sport, Proto: key.Proto, Direction: key.Direction ^ 1,
		}]
		switch {
		case f.State&1 != 0:
			t.Errorf("a dying entry is left: %+v %+v", key, f)
		case !ok:
			t.Errorf("an entry is alone: %+v %+v", key, f)
		case other.Primary == f.Primary:
			t.Errorf("both or none of two entries are primary: %+v %+v %+v", key, f, other)
		case other.Saddr != key.Daddr || other.Daddr != key.Saddr || other.Sport != key.Dport || other.Dport != key.Sport:
			t.Errorf("an answer would not come back to where it belongs: %+v %+v %+v", key, f, other)
		}
		flows += int(f.Primary)
		if f.Primary == 0 {
			continue
		}
		usage[bpf.PelagoUsageKey{}]++
		switch {
		case f.Tcp&uint8(bpf.PelagoTcpSeenFLOW_EXTERNAL) != 0 && key.Direction == uint8(bpf.PelagoDirectionDIRECTION_MAPPING):
			usage[bpf.PelagoUsageKey{Cluster: 1<<16 | 1<<17}]++
		case f.Tcp&uint8(bpf.PelagoTcpSeenFLOW_EXTERNAL) != 0:
			usage[bpf.PelagoUsageKey{Cluster: 1 << 17}]++
		case key.Direction == uint8(bpf.PelagoDirectionDIRECTION_MAPPING):
			usage[bpf.PelagoUsageKey{Source: key.Saddr, Cluster: 1 << 16}]++
		case f.Role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT):
			usage[bpf.PelagoUsageKey{Source: key.Saddr}]++
		default:
			usage[bpf.PelagoUsageKey{Cluster: uint32(f.Cluster)}]++
		}
	}
	wantEqual(t, "flows by source and cluster", usage, k.usage(t))
	if len(entries) != 2*flows {
		t.Errorf("%d entries of %d flows", len(entries), flows)
	}
	return flows
}

// Any packet arrives at a pod with right checksums and unchanged but for its addresses and ports,
// and any answer comes back to the sender under the address that was addressed; no two connections
// look alike to a pod. Three services and a global IP lead to two pods, of which two services lead
// to the same port.
func TestTranslationIsUndone(t *testing.T) {
	f := newFleet(t, 2)
	s := oneGateway(2, 2)
	backend := dataplane.Service{Backends: []netip.AddrPort{addrPort("10.7.2.10:8080")}}
	for _, n := range []byte{20, 21, 22} {
		for _, port := range []uint16{0, 1, 80, 8080, 40000} {
			for _, proto := range []uint8{ProtocolTCP, ProtocolUDP} {
				s.Services[dataplane.ServiceKey{Address: global(2, n), Port: port, Protocol: proto}] = backend
			}
		}
	}
	f.nb.Apply(t, s)
	gb := oneGateway(2, 1)
	for key := range s.Services {
		gb.Services[key] = dataplane.Service{Table: []uint16{2}}
	}
	f.gb.Apply(t, gb)

	type connection struct {
		source, destination netip.AddrPort
		proto               uint8
	}
	shown := map[connection]connection{} // as the pod sees it → as the client sees it
	rapid.Check(t, func(rt *rapid.T) {
		source := rapid.SampledFrom([]netip.Addr{ip("10.7.2.10"), ip("10.7.2.11")}).Draw(rt, "source")
		p := drawPacket(rt, source, global(2, rapid.SampledFrom([]byte{20, 21, 22, 100}).Draw(rt, "destination")))
		if p.ICMP != nil {
			p.Destination = global(2, 100)
		} else if p.Destination != global(2, 100) {
			s, _ := p.ports()
			ports(s, rapid.SampledFrom([]uint16{0, 1, 80, 8080, 40000}).Draw(rt, "service port"))(&p)
		}
		_, seen := f.there(t, p)
		want := p.with(func(q *Packet) {
			q.Source, q.Destination, q.Protocol, q.Payload = seen.Source, seen.Destination, p.protocol(), seen.Payload
			q.TCP, q.UDP, q.ICMP = seen.TCP, seen.UDP, seen.ICMP
		})
		wantEqual(t, "the packet at the pod, addresses, ports and payload aside", want, seen)
		if string(p.Payload) != string(seen.Payload) {
			rt.Fatalf("payload % x became % x", p.Payload, seen.Payload)
		}
		view := func(p Packet) connection {
			s, d := p.ports()
			return connection{netip.AddrPortFrom(p.Source, s), netip.AddrPortFrom(p.Destination, d), p.protocol()}
		}
		if other, ok := shown[view(seen)]; ok && other != view(p) {
			rt.Fatalf("the pod sees %v and %v as one: %v", other, view(p), view(seen))
		}
		shown[view(seen)] = view(p)

		answer := seen.answer()
		_, back := f.back(t, answer)
		expected := p.answer()
		if view(back) != view(expected) {
			rt.Fatalf("the answer to %v comes back as %v", view(p), view(back))
		}
	})
	for _, k := range []*Kernel{f.na, f.nb} {
		if k.checkTable(t) == 0 {
			t.Error("no flows")
		}
	}
}

// A source whose flow gets no port gets an ICMP error (RFC 5508 REQ-8), but not for TCP, whose
// sender would give up, nor without limit.
func TestExhaustionIsAnswered(t *testing.T) {
	k := load(t, 1, 2)
	exhaust(t, k)
	request := udpPacket("a longer question than what is quoted of it", ports(50000, 53))
	answer := func(p Packet) (Packet, bool) {
		r := k.fromPod(t, p)
		if r.Verdict != "edge-out drop-ports-exhausted" {
			t.Fatalf("%q; want no port", r.Verdict)
		}
		if r.Action == Drop {
			return Packet{}, false
		}
		if cookie, _, err := k.Loader.Marks(); err != nil || r.Action != Redirect || r.Mark != cookie {
			t.Fatalf("action %d, mark %#x, %v; want a redirect with the node's cookie", r.Action, r.Mark, err)
		}
		inner, err := DecodeDelivered(r.Frame)
		if err != nil {
			t.Fatal(err)
		}
		return decode(t, inner), true
	}
	for what, p := range map[string]Packet{
		"long": request, "empty": udpPacket("", ports(50000, 53)), "first of a connected socket": udpPacket("x", ports(50001, 53)),
		"first fragment": request.with(func(p *Packet) { p.MoreFragments = true }),
	} {
		got, ok := answer(p)
		if !ok || got.ICMP == nil || got.ICMP.Type != Unreachable || got.ICMP.Code != 13 {
			t.Fatalf("%s: the answer is %+v; want administratively prohibited", what, got)
		}
		if got.Source != p.Destination || got.Destination != p.Source {
			t.Errorf("%s: the answer goes from %s to %s", what, got.Source, got.Destination)
		}
		wantQuote(t, p, got, 8)
	}
	for what, p := range map[string]Packet{
		"options": request.with(func(p *Packet) { p.Options = []byte{1, 1, 1, 1} }),
	} {
		if got, ok := answer(p); ok {
			t.Errorf("%s is answered by %+v", what, got)
		}
	}
	if err := k.Answers.Put(uint32(0), uint64(nanotime(t))+3600e9); err != nil {
		t.Fatal(err)
	}
	if got, ok := answer(request); ok {
		t.Errorf("beyond the rate: %+v", got)
	}

	// The ports of TCP are others.
	k.Flush(t)
	for source := uint16(20000); source < 60000; source++ {
		if r := k.fromPod(t, tcpPacket(SYN, ports(source, 80))); r.Verdict == "edge-out drop-ports-exhausted" {
			if r.Action != Drop {
				t.Errorf("a SYN without a port: action %d; want it dropped", r.Action)
			}
			return
		}
	}
	t.Error("the ports never ran out")
}

// A client keeps its source port, or the identifier of its echo, where that is in a block of the
// node and free.
func TestPortPreservation(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	s.Egresses[global(1, 1)] = []uint16{1024, 4096, 8192, 40192, 65280}
	s.Sources[ip("10.7.2.13")] = dataplane.Source{Own: global(1, 113), Ifindex: podDevice}
	k.Apply(t, s)
	outside := func(p Packet) uint16 {
		source, _ := decode(t, k.sent(t, k.fromPod(t, p), "edge-out sent").Inner).ports()
		return source
	}
	for _, port := range []uint16{1024, 1279, 4100, 8447, 40192, 65280, 65535} {
		k.Flush(t) // the node's flow below has any port, also one of the next
		for what, p := range map[string]Packet{
			"udp": udpPacket("x", ports(port, 53)), "tcp": tcpPacket(SYN, ports(port, 80)), "echo": echoPacket(Echo, func(p *Packet) { p.ICMP = EchoHeader(Echo, port, 1) }),
		} {
			if got := outside(p); got != port {
				t.Errorf("%s from port %d leaves from %d", what, port, got)
			}
			if got := outside(p); got != port {
				t.Errorf("the second packet of %s from port %d leaves from %d", what, port, got)
			}
		}
		// The node itself, with the same address, gets another one.
		r := k.Run(t, k.EdgeOut, Frame(udpPacket("x", ports(port, 53), from("172.16.1.2")).Encode()), Context{})
		if got, _ := decode(t, k.sent(t, r, "edge-out sent").Inner).ports(); got == port {
			t.Errorf("port %d is given out twice", port)
		}
	}
	for _, port := range []uint16{1, 1023, 1280, 4095, 4352, 40191, 40448, 65279} {
		if got := outside(udpPacket("x", ports(port, 53))); got == port {
			t.Errorf("port %d is of no block of this node and left as it was", port)
		}
	}
	// A global IP of its own has all ports.
	for _, port := range []uint16{1, 700, 1023, 1280, 65279} {
		if got := outside(udpPacket("x", ports(port, 53), from("10.7.2.13"))); got != port {
			t.Errorf("port %d of a pod with a global IP leaves from %d", port, got)
		}
	}
}

// Many flows over few ports, opened, used, closed, aged and swept in any order: the table stays
// sound, a port is never given to two live flows towards one endpoint, and while the flow lives it
// keeps its port.
func TestPortsAreNeverShared(t *testing.T) {
	k := loadTimers(t, loader.Timers{
		UDP: 20 * time.Millisecond, ICMP: 15 * time.Millisecond, TCPTransitory: 20 * time.Millisecond,
		TCPEstablished: 40 * time.Millisecond, ClosedFloor: 5 * time.Millisecond,
	}, 1, 2)
	type outside struct {
		port   uint16
		remote netip.AddrPort
		proto  uint8
	}
	rapid.Check(t, func(rt *rapid.T) {
		k.Flush(t)
		steps := rapid.SliceOfN(rapid.IntRange(0, 39), 30, 200).Draw(rt, "steps")
		pressure := uint16(rapid.SampledFrom([]int{20, 300, 2000}).Draw(rt, "source ports"))
		next := uint16(0)
		for _, step := range steps {
			next = next*31 + uint16(step)
			source := 1024 + next%pressure
			var p Packet
			switch {
			case step < 16:
				p = tcpPacket(SYN, ports(source, 80))
			case step < 22:
				p = udpPacket("x", ports(source, 53))
			case step < 24:
				p = echoPacket(Echo, func(p *Packet) { p.ICMP = EchoHeader(Echo, source, 1) })
			case step < 32:
				p = tcpPacket(ACK|FIN, ports(source, 80))
			case step < 36:
				p = tcpPacket(ACK|RST, ports(source, 80))
			case step == 36:
				time.Sleep(6 * time.Millisecond) // flows age
				continue
			case step < 39:
				if _, err := k.Loader.Sweep(time.Millisecond); err != nil {
					rt.Fatal(err)
				}
				continue
			default:
				time.Sleep(25 * time.Millisecond) // flows run out
				continue
			}
			r, err := k.TryRun(k.EdgeOut, Frame(p.Encode()), pod)
			if err != nil {
				rt.Fatal(err)
			}
			if r.Action != Redirect {
				continue // no flow, or no port
			}
			if reset, err := DecodeDelivered(r.Frame); err == nil {
				if p := decode(t, reset); (p.TCP == nil || p.TCP.Flags != RST) && (p.ICMP == nil || p.ICMP.Code != 13) {
					rt.Fatalf("a pod without a flow is answered by %+v", p)
				}
				continue
			}
			o, err := DecodeOverlay(r.Frame)
			if err != nil {
				rt.Fatal(err)
			}
			if _, err := Decode(o.Inner); err != nil {
				rt.Fatal(err)
			}
		}
		k.checkTable(t)
		owners := map[outside]string{}
		for _, f := range k.list(t) {
			o := outside{f.Translated.Source.Port(), f.Translated.Destination, map[string]uint8{"tcp": 6, "udp": 17, "icmp": 1}[f.Protocol]}
			owner := fmt.Sprint(f.Opening)
			if other, ok := owners[o]; ok {
				rt.Errorf("%v belongs to %s and to %s", o, other, owner)
			}
			owners[o] = owner
		}
	})
}

// A flow keeps its outside port, and its IP is the pod's; ports are of the node's own blocks,
// scattered as they may be, nearly all of them in use at last; and which port comes next is hard to
// guess.
func TestPortsOfBlocks(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	blocks := []uint16{1024, 4096, 65280}
	s.Egresses[global(1, 1)] = blocks
	k.Apply(t, s)
	used := map[uint16]bool{}
	var opened []uint16
	last, consecutive := uint16(0), 0
	for source := uint16(2000); len(opened) < 650; source++ {
		r := k.fromPod(t, udpPacket("x", ports(source, 53)))
		if r.Verdict != "edge-out sent" {
			t.Fatalf("with %d of 768 ports in use: %s", len(opened), r.Verdict)
		}
		inner := decode(t, k.sent(t, r, "edge-out sent").Inner)
		if inner.Source != global(1, 1) {
			t.Fatalf("the pod leaves as %s; its egress IP is %s", inner.Source, global(1, 1))
		}
		got := inner.UDP.Source
		if got == last+1 {
			consecutive++
		}
		last = got
		if used[got] {
			t.Fatalf("port %d is given out twice", got)
		}
		if block := got &^ 255; block != blocks[0] && block != blocks[1] && block != blocks[2] {
			t.Fatalf("port %d is of no block of this node", got)
		}
		used[got] = true
		opened = append(opened, source)
		if len(opened)%100 == 0 { // towards another endpoint the same ports are free
			if r := k.fromPod(t, udpPacket("x", ports(source, 53), to(global(2, 21)))); r.Verdict != "edge-out sent" {
				t.Fatalf("towards another endpoint: %s", r.Verdict)
			}
		}
	}
	if consecutive > 20 {
		t.Errorf("%d of 650 ports are the one behind the port before", consecutive)
	}
	for _, source := range opened[:50] {
		again := decode(t, k.sent(t, k.fromPod(t, udpPacket("x", ports(source, 53))), "edge-out sent").Inner).UDP.Source
		if !used[again] {
			t.Errorf("source port %d changed its outside port to %d", source, again)
		}
	}
	k.checkTable(t)
}

// A source with many flows leaves ports to others, also towards the destination of all its flows
// (RFC 6888 REQ-4).
func TestPortsPerSource(t *testing.T) {
	for name, open := range map[string]func(source uint16) Packet{
		"udp": func(source uint16) Packet { return udpPacket("x", ports(source, 53)) },
		"tcp": func(source uint16) Packet { return tcpPacket(SYN, ports(source, 80)) },
	} {
		t.Run(name, func(t *testing.T) {
			k := load(t, 1, 2)
			s := state(1, 2)
			s.Sources[ip("10.7.2.11")] = s.Sources[ip("10.7.2.10")]
			k.Apply(t, s)
			greedy := 0
			for source := uint16(20000); source < 20500; source++ {
				switch r := k.fromPod(t, open(source)); r.Verdict {
				case "edge-out sent":
					greedy++
				case "edge-out drop-ports-exhausted":
				default:
					t.Fatal(r.Verdict)
				}
			}
			// Seven eighths of the ports, and those that it drew of the others while it had fewer flows:
			// 10 on average, more than 24 once in ten thousand runs.
			if greedy < 224 || greedy > 248 {
				t.Errorf("the greedy pod has %d of 256 ports; want 224 to 248", greedy)
			}
			modest := 0
			for source := uint16(20000); source < 20032; source++ {
				if k.fromPod(t, open(source).with(from("10.7.2.11"))).Verdict == "edge-out sent" {
					modest++
				}
			}
			if modest+greedy < 250 || modest < 6 {
				t.Errorf("its neighbour has %d ports", modest)
			}
			k.checkTable(t)
		})
	}
}

// Remote clusters do not compete for ports: a port serves a flow to each remote endpoint, and remote
// clients keep the ports that their own cluster gave them, more than this node has.
func TestPortsPerCluster(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	s.Routes[netip.MustParsePrefix("120.3.0.0/24")] = 3
	k.Apply(t, s)
	exhaust(t, k)
	if got := k.fromPod(t, udpPacket("x", ports(50000, 53))).Verdict; got != "edge-out drop-ports-exhausted" {
		t.Fatalf("towards an endpoint with flows on all ports: %s", got)
	}
	k.sent(t, k.fromPod(t, udpPacket("x", ports(50000, 53), to(global(3, 20)))), "edge-out sent")
	for source := range uint16(512) {
		p := clientUDP(ports(1024+source, 53))
		if got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, p.Encode()))); got.UDP.Source != 1024+source {
			t.Fatalf("the pod sees the client's port %d as %d", 1024+source, got.UDP.Source)
		}
	}
}

// Only the endpoint that was addressed may answer, and it may open the connection from its side as
// well.
func TestFiltering(t *testing.T) {
	k := load(t, 1, 2)
	port := decode(t, k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent").Inner).TCP.Source
	in := func(change ...func(*Packet)) Packet {
		p := tcpPacket(SYN, from("120.2.0.20"), to(global(1, 1)), ports(80, port))
		return p.with(change...)
	}
	for name, p := range map[string]Packet{
		"another address":  in(from("120.2.0.21")),
		"another port":     in(ports(81, port)),
		"another protocol": udpPacket("x", from("120.2.0.20"), to(global(1, 1)), ports(80, port)),
		"to another port":  in(ports(80, port^1)),
	} {
		if r := k.arrive(t, overlay(1, 1, 2, p.Encode())); r.Verdict != "uplink-in drop-no-flow" || r.Action != Drop {
			t.Errorf("from %s: %s, action %d; want it dropped without an answer", name, r.Verdict, r.Action)
		}
	}
	// Simultaneous open (RFC 9293 3.5).
	if got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, in().Encode()))); got.Destination != ip("10.7.2.10") || got.TCP.Destination != 40000 {
		t.Errorf("the endpoint's own SYN is delivered to %s:%d", got.Destination, got.TCP.Destination)
	}
}
