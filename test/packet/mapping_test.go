package packet

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/need"
)

// mappedState is the state of a node of cluster 1 whose sources with an egress IP have
// endpoint-independent mappings; 10.7.N.11 has no address of its own.
func mappedState(node uint16, open bool, blocks ...uint16) dataplane.State {
	s := state(1, node)
	if len(blocks) == 0 {
		blocks = []uint16{blockOf(node)}
	}
	s.Egresses[global(1, 1)] = blocks
	s.Sources[netip.AddrFrom4([4]byte{10, 7, byte(node), 11})] = dataplane.Source{Egress: global(1, 1), Ifindex: podDevice}
	for a, src := range s.Sources {
		src.Mapped, src.Open = true, open
		s.Sources[a] = src
	}
	return s
}

func mappedNode(t *testing.T, open bool, blocks ...uint16) *Kernel {
	t.Helper()
	k := load(t, 1, 2)
	k.Apply(t, mappedState(2, open, blocks...))
	return k
}

// shown is the port that other clusters see of a UDP packet.
func (k *Kernel) shown(t testing.TB, p Packet) uint16 {
	t.Helper()
	inner := decode(t, k.sent(t, k.fromPod(t, p), "edge-out sent").Inner)
	if inner.Source != global(1, 1) {
		t.Fatalf("sent from %s; want the egress IP", inner.Source)
	}
	return inner.UDP.Source
}

// unasked is a UDP packet from another cluster to an egress port.
func unasked(port uint16, change ...func(*Packet)) Packet {
	return udpPacket("hello", from("120.2.0.77"), to(global(1, 1)), ports(7777, port)).with(change...)
}

func (k *Kernel) mappings(t testing.TB) (n int) {
	t.Helper()
	for _, f := range k.list(t) {
		if f.State == dump.StateMapping {
			n++
		}
	}
	return n
}

// A local address and port show one address and port to all remote endpoints (RFC 4787 REQ-1), its
// own if that is free, and share them with no other.
func TestMapping(t *testing.T) {
	k := mappedNode(t, false)
	first := k.shown(t, udpPacket("x"))
	if first&^255 != blockOf(2) {
		t.Errorf("port %d is of no block of this node", first)
	}
	used := map[uint16]string{first: "10.7.2.10:40000"}
	for _, d := range []netip.Addr{global(2, 21), global(2, 100), global(2, 1)} {
		for _, port := range []uint16{53, 1024, 40000} {
			if got := k.shown(t, udpPacket("x", to(d), ports(40000, port))); got != first {
				t.Errorf("%s:%d sees port %d; want %d, as the first endpoint", d, port, got, first)
			}
		}
	}
	own := blockOf(2) + 200
	for _, source := range []string{"10.7.2.10", "10.7.2.11", "172.16.1.2"} {
		for port := uint16(50000); port < 50040; port++ {
			p := udpPacket("x", from(source), ports(port, port))
			send := func(p Packet) uint16 {
				if source == "172.16.1.2" {
					return decode(t, k.sent(t, k.Run(t, k.EdgeOut, Frame(p.Encode()), Context{}), "edge-out sent").Inner).UDP.Source
				}
				return k.shown(t, p)
			}
			got, name := send(p), netip.AddrPortFrom(ip(source), port).String()
			if other, ok := used[got]; ok {
				t.Errorf("%s and %s are both shown as port %d", other, name, got)
			}
			used[got] = name
			if again := send(p.with(to(global(2, 21)))); again != got {
				t.Errorf("%s is shown as port %d and as %d", name, got, again)
			}
		}
	}
	if _, taken := used[own]; !taken {
		if got := k.shown(t, udpPacket("x", ports(own, 53))); got != own {
			t.Errorf("port %d, which is free, became %d", own, got)
		}
	}

	// Other protocols keep one port for each endpoint's use; an answer comes back, and only from
	// the endpoint that was addressed.
	k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent")
	k.sent(t, k.fromPod(t, echoPacket(Echo)), "edge-out sent")
	got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, unasked(first, from("120.2.0.21"), ports(1024, first)).Encode())))
	if got.Destination != ip("10.7.2.10") || got.UDP.Destination != 40000 || got.UDP.Source != 1024 {
		t.Errorf("the answer is delivered as %+v", got)
	}
	for name, p := range map[string]Packet{
		"an endpoint that was not addressed": unasked(first), "another port of one that was": unasked(first, from("120.2.0.21"), ports(1025, first)),
	} {
		if r := k.arrive(t, overlay(1, 1, 2, p.Encode())); r.Verdict != "uplink-in drop-no-flow" || r.Action != Drop {
			t.Errorf("%s: %q; want drop-no-flow", name, r.Verdict)
		}
	}
	k.checkTable(t)
}

// With endpoint-independent filtering (RFC 4787 REQ-8) every address of an accepted cluster reaches
// the pod behind a mapping, its answers leave from the mapping's port, and without an answer
// nothing is stored.
func TestOpenMapping(t *testing.T) { bothHooks(t, openMapping) }

func openMapping(t *testing.T) {
	k := mappedNode(t, true)
	port := k.shown(t, udpPacket("x"))
	before := k.checkTable(t)
	arrive := func(p Packet) Result { return k.arrive(t, overlay(1, 1, 2, p.Encode())) }
	for _, p := range []Packet{unasked(port), unasked(port, from("120.2.0.5")), unasked(port, ports(1, port))} {
		want := p.with(to(ip("10.7.2.10")), ports(p.UDP.Source, 40000))
		want.Protocol = ProtocolUDP
		wantEqual(t, "what the pod gets", want, k.delivered(t, arrive(p)))
	}
	if got := k.checkTable(t); got != before {
		t.Errorf("packets that nobody asked for left %d flows", got-before)
	}
	for name, c := range map[string]struct {
		p      Packet
		want   string
		action int
	}{
		"a port without a mapping":        {unasked(port ^ 1), "drop-no-flow", Drop},
		"TCP":                             {tcpPacket(SYN, from("120.2.0.77"), to(global(1, 1)), ports(7777, port)), "drop-no-flow", Drop},
		"an address of no cluster":        {unasked(port, from("120.9.0.1")), "drop-spoofed-source", Drop},
		"an ICMP error about no packet":   {icmpError(udpPacket("x", from("120.1.0.1"), ports(port, 9)), global(2, 20), global(1, 1), 8), "drop-no-flow", Drop},
		"an address that is not an own":   {unasked(port, to(ip("120.1.0.9"))), "drop-not-own", Drop},
		"a service at the mapping's port": {unasked(port, to(global(1, 20))), "drop-no-service", Redirect}, // answered
	} {
		if r := arrive(c.p); r.Verdict != "uplink-in "+c.want || r.Action != c.action {
			t.Errorf("%s: action %d, %q; want %d, %s", name, r.Action, r.Verdict, c.action, c.want)
		}
	}

	// The pod refuses one, and answers another; only that leaves a flow.
	refused := k.delivered(t, arrive(unasked(port)))
	sent := decode(t, k.sent(t, k.fromPod(t, icmpError(refused, refused.Destination, refused.Source, 8)), "edge-out sent").Inner)
	if sent.Source != global(1, 1) || sent.Destination != ip("120.2.0.77") {
		t.Errorf("the error goes from %s to %s", sent.Source, sent.Destination)
	}
	wantQuote(t, unasked(port), sent, 8)
	if r := k.fromPod(t, icmpError(refused, ip("10.7.2.11"), refused.Source, 8)); r.Verdict != "edge-out drop-no-flow" {
		t.Errorf("an error by another pod: %q", r.Verdict)
	}
	if got := k.checkTable(t); got != before {
		t.Errorf("an error left %d flows", got-before)
	}
	answer := decode(t, k.sent(t, k.fromPod(t, refused.answer()), "edge-out sent").Inner)
	if answer.UDP.Source != port || answer.Destination != ip("120.2.0.77") || answer.UDP.Destination != 7777 {
		t.Errorf("the answer is %+v; want it from port %d", answer, port)
	}
	if got := k.checkTable(t); got != before+1 {
		t.Errorf("an answer left %d flows; want 1", got-before)
	}

	// Fragments of a datagram.
	whole := unasked(port, func(p *Packet) { p.Payload = make([]byte, 2000) })
	for _, piece := range Fragments(whole.Encode(), 1400) {
		got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, piece, func(o *Overlay) {
			o.Flags = 2
			o.InnerSource = [6]byte{2, 0, 7777 >> 8, 7777 & 255, byte(port >> 8), byte(port)}
		})))
		if got.Destination != ip("10.7.2.10") {
			t.Errorf("a fragment is delivered to %s", got.Destination)
		}
	}

	// Filtering may be made dependent again at any time.
	k.Apply(t, mappedState(2, false))
	if r := arrive(unasked(port, from("120.2.0.6"))); r.Verdict != "uplink-in drop-no-flow" {
		t.Errorf("with dependent filtering: %q", r.Verdict)
	}
	k.delivered(t, arrive(unasked(port)))
}

// A mapping lives as long as its flows, by traffic of either direction (RFC 4787 REQ-6), and as any
// UDP flow without them. What was not solicited refreshes nothing.
func TestMappingTimers(t *testing.T) {
	k := loadTimers(t, testTimers, 1, 2)
	k.Apply(t, mappedState(2, true))
	const step = 1500 * time.Millisecond
	sweep := func() int {
		if _, err := k.Loader.Sweep(0); err != nil {
			t.Fatal(err)
		}
		k.checkTable(t)
		return k.mappings(t)
	}
	var port uint16
	for name, traffic := range map[string]func(){
		"out": func() { k.shown(t, udpPacket("x")) },
		"in": func() {
			k.delivered(t, k.arrive(t, overlay(1, 1, 2, unasked(port, from("120.2.0.20"), ports(53, port)).Encode())))
		},
	} {
		k.Flush(t)
		port = k.shown(t, udpPacket("x"))
		for range 6 {
			k.age(t, step)
			traffic()
			if sweep() != 1 {
				t.Fatalf("%s: the mapping of a flow in use is gone", name)
			}
		}
		k.age(t, testTimers.UDP+time.Second)
		if sweep() != 0 {
			t.Errorf("%s: the mapping is left after %s", name, testTimers.UDP)
		}
	}
	port = k.shown(t, udpPacket("x"))
	for range 6 {
		k.age(t, step)
		k.arrive(t, overlay(1, 1, 2, unasked(port).Encode()))
	}
	if r := k.arrive(t, overlay(1, 1, 2, unasked(port).Encode())); r.Verdict != "uplink-in drop-no-flow" {
		t.Errorf("by an expired mapping: %q", r.Verdict)
	}
	if k.mappings(t) != 0 {
		t.Error("packets that nobody asked for keep a mapping")
	}
}

// The ports are bounded: a source has half of them, and one that needs a port gets that of a
// mapping without replies, but none in use.
func TestMappingPorts(t *testing.T) {
	// No mapping is old enough to be evicted before age() makes it so.
	timers := loader.Timers{UDP: 10 * time.Minute, Unreplied: 30 * time.Second}
	k := loadTimers(t, timers, 1, 2)
	k.Apply(t, mappedState(2, false))
	open := func(source string, port uint16) string {
		c := pod
		if source == "172.16.1.2" {
			c = Context{}
		}
		frame := Frame(udpPacket("x", from(source), ports(port, 5353)).Encode())
		if r, err := k.TryRun(k.EdgeOut, frame, c); err == nil && r.Action == Redirect {
			if _, err := DecodeOverlay(r.Frame); err == nil {
				return "edge-out sent" // without the time that the counters take
			}
		}
		return k.Run(t, k.EdgeOut, frame, c).Verdict
	}
	fill := func(source string, first uint16, stop string) (opened int) {
		for port := first; port < first+600; port++ {
			switch v := open(source, port); v {
			case "edge-out sent":
				opened++
			case "edge-out " + stop:
				return opened
			case "edge-out drop-ports-exhausted": // among the last few that are free
			default:
				t.Fatalf("%s, port %d: %q", source, port, v)
			}
		}
		t.Fatalf("%s: no %s", source, stop)
		return 0
	}
	held := func() map[string]int {
		out := map[string]int{}
		for _, f := range k.list(t) {
			if f.State == dump.StateMapping {
				out[f.Pod.String()]++
			}
		}
		return out
	}
	if got := fill("10.7.2.10", 20000, "drop-quota"); got != 128 {
		t.Errorf("a source has %d mappings; want half of 256", got)
	}
	fill("10.7.2.11", 20000, "drop-quota")
	fill("172.16.1.2", 20000, "drop-ports-exhausted")
	for _, f := range k.list(t) {
		if f.State != dump.StateMapping && f.Pod == ip("10.7.2.10") {
			answer := udpPacket("y", from(f.Translated.Destination.Addr().String()), to(global(1, 1)), ports(5353, f.Translated.Source.Port()))
			k.delivered(t, k.arrive(t, overlay(1, 1, 2, answer.Encode())))
		}
	}
	k.age(t, timers.Unreplied+time.Second)
	if got := fill("172.16.1.2", 30000, "drop-quota"); got < 100 {
		t.Errorf("%d mappings got the port of one without replies", got)
	}
	k.checkTable(t)
	if left := held(); left["10.7.2.10"] != 128 || left["172.16.1.2"] != 128 || left["10.7.2.11"] > 10 {
		t.Errorf("mappings by source: %v; want those with replies and the new ones", left)
	}

	// The demand for blocks follows the mappings, and their blocks are in use.
	stats, err := k.Loader.Sweep(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if got := stats.Crowding[global(1, 1)]; got < 250 {
		t.Errorf("demand by %d mappings; want all", got)
	}
	if !stats.InUse[dataplane.BlockKey{Address: global(1, 1), First: blockOf(2)}] {
		t.Errorf("blocks in use: %v", stats.InUse)
	}

	// A pod that is gone takes its mappings along, and so does its quota.
	if _, err := k.Loader.PurgeFunc(equals(ip("10.7.2.10"))); err != nil {
		t.Fatal(err)
	}
	if v := open("10.7.2.10", 20000); v != "edge-out sent" {
		t.Errorf("after the purge: %q", v)
	}
	k.checkTable(t)
}

// A mapping in a withdrawn block, or of an egress IP that its source has no more, opens nothing;
// its flows keep their port.
func TestMappingWithdrawn(t *testing.T) {
	k := mappedNode(t, true)
	port := k.shown(t, udpPacket("x"))
	reach := func(to uint16) string {
		return k.arrive(t, overlay(1, 1, 2, unasked(to).Encode())).Verdict
	}
	for name, c := range map[string]struct {
		s    dataplane.State
		want string
	}{
		"another block": {mappedState(2, true, blockOf(2)+1024), "uplink-in drop-no-flow"},
		"no block":      {func() dataplane.State { s := mappedState(2, true); s.Egresses = nil; return s }(), "uplink-in drop-no-flow"},
		"not mapped":    {state(1, 2), "uplink-in drop-no-flow"},
		"as it was":     {mappedState(2, true), "uplink-in delivered"},
		"another egress IP": {func() dataplane.State {
			s := mappedState(2, true)
			s.Sources[ip("10.7.2.10")] = dataplane.Source{Egress: global(1, 2), Ifindex: podDevice, Mapped: true, Open: true}
			s.Egresses[global(1, 2)] = []uint16{blockOf(2)}
			return s
		}(), "uplink-in drop-no-flow"},
	} {
		k.Apply(t, c.s)
		if got := reach(port); got != c.want {
			t.Errorf("%s: %q; want %q", name, got, c.want)
		}
	}
	k.Apply(t, mappedState(2, true, blockOf(2)+1024))
	other := k.shown(t, udpPacket("x", to(global(2, 21))))
	if other&^255 != blockOf(2)+1024 {
		t.Errorf("a new flow leaves from port %d; want one of the new block", other)
	}
	if got := k.shown(t, udpPacket("x")); got != port {
		t.Errorf("the flow before leaves from port %d; want %d as before", got, port)
	}
	if got := reach(other); got != "uplink-in delivered" {
		t.Errorf("to the new port: %q", got)
	}
	k.checkTable(t)
	if k.mappings(t) != 1 {
		t.Errorf("%d mappings; want the new one", k.mappings(t))
	}
}

// Flows from before an egress IP was mapped are removed, since their ports could become those of
// mappings. Until then a packet that would show what another flow shows is dropped.
func TestMappingBegins(t *testing.T) {
	k := load(t, 1, 2)
	dependent := mappedState(2, false)
	for a, src := range dependent.Sources {
		src.Mapped = false
		dependent.Sources[a] = src
	}
	k.Apply(t, dependent)
	port := blockOf(2) + 7
	if got := k.shown(t, udpPacket("x", ports(port, 5353))); got != port {
		t.Fatalf("port %d; want %d", got, port)
	}
	k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent")
	mapped := mappedState(2, false)
	k.Apply(t, mapped)
	other := udpPacket("x", from("10.7.2.11"), ports(port, 5353))
	if got := k.shown(t, other.with(to(global(2, 21)))); got != port {
		t.Fatalf("mapped to port %d; want %d", got, port)
	}
	if r := k.fromPod(t, other); r.Verdict != "edge-out drop-tuple-clash" {
		t.Errorf("two sources with one tuple: %q", r.Verdict)
	}
	if removed, err := k.Loader.PurgeUnmapped(mapped.Mapped()); err != nil || removed != 1 {
		t.Errorf("removed %d, %v; want 1 flow", removed, err)
	}
	if got := k.shown(t, other); got != port {
		t.Errorf("port %d; want %d", got, port)
	}
	if got := k.shown(t, udpPacket("x", ports(port, 5353))); got == port {
		t.Errorf("the port of another source's mapping")
	}
	if k.checkTable(t) != 6 { // two mappings, three flows of UDP, one of TCP
		t.Errorf("%d flows", len(k.list(t)))
	}
}

// Many CPUs with packets of one source to many endpoints agree on one mapping.
func TestManyOpenOneMapping(t *testing.T) {
	k := mappedNode(t, false)
	for round := range uint16(100) {
		frames := make([][]byte, 8)
		for i := range frames {
			frames[i] = Frame(udpPacket("x", ports(2000+round, 53+uint16(i))).Encode())
		}
		onePort(t, k, frames)
	}
	if k.checkTable(t); k.mappings(t) != 100 {
		t.Errorf("%d mappings; want 100", k.mappings(t))
	}
}

// Two pods of one cluster reach each other by their mappings (RFC 4787 REQ-9), each seeing the
// other's egress IP and port, and a pod reaches its own.
func TestMappingHairpin(t *testing.T) {
	na, ga, nb := load(t, 1, 3), load(t, 1, 1), load(t, 1, 2)
	one := func(s dataplane.State) dataplane.State { s.Gateways = []uint16{1}; return s }
	na.Apply(t, one(mappedState(3, true)))
	nb.Apply(t, one(mappedState(2, true)))
	ga.Apply(t, oneGateway(1, 1))
	ga.answered(t)
	portB := nb.shown(t, udpPacket("x"))
	nodes := map[*Kernel]int{na: 3, nb: 2}
	cross := func(from, to *Kernel, p Packet) Packet {
		leg := ga.sent(t, ga.arrive(t, from.sent(t, from.fromPod(t, p), "edge-out sent")), "uplink-in switched")
		if leg.Destination != nodeIP(1, nodes[to]) {
			t.Fatalf("the gateway sends it to %s", leg.Destination)
		}
		return to.delivered(t, to.arrive(t, leg))
	}
	seen := cross(na, nb, udpPacket("x", from("10.7.3.10"), to(global(1, 1)), ports(5000, portB)))
	if seen.Source != global(1, 1) || seen.UDP.Source&^255 != blockOf(3) || seen.Destination != ip("10.7.2.10") || seen.UDP.Destination != 40000 {
		t.Errorf("the pod sees %+v", seen)
	}
	if got := cross(nb, na, seen.answer()); got.Source != global(1, 1) || got.UDP.Source != portB || got.Destination != ip("10.7.3.10") || got.UDP.Destination != 5000 {
		t.Errorf("the answer is %+v", got)
	}
	own := cross(nb, nb, udpPacket("x", to(global(1, 1)), ports(40000, portB)))
	if own.Source != global(1, 1) || own.UDP.Source != portB || own.Destination != ip("10.7.2.10") || own.UDP.Destination != 40000 {
		t.Errorf("to its own mapping: %+v", own)
	}
	na.checkTable(t)
	nb.checkTable(t)
}

// A version without mappings, or without one count of hosts outside the cluster, does not count those
// that it removes: the next start does.
func TestMappingUsageIsRestored(t *testing.T) {
	k := loadTimers(t, loader.Timers{}, 1, 2)
	k.Apply(t, mappedState(2, false))
	k.shown(t, udpPacket("x"))
	k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10")), Cluster: 1 << 16}, 99)
	k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.11")), Cluster: 1 << 16}, 99)
	k.useUp(t, bpf.PelagoUsageKey{Cluster: 1 << 17}, 99)
	again, err := loader.Open(loader.Options{PinPath: filepath.Join(pool.dir, fmt.Sprintf("node%d", pool.made)), MaxFlows: maxFlows})
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	k.checkTable(t)
}

// Programs without mappings over the same maps keep the flows of one, and do not mistake it for a
// flow; the next version continues with it.
func TestMappingDowngrade(t *testing.T) {
	need.Root(t)
	path := filepath.Join(pool.dir, "downgrade")
	open := func() *Kernel {
		k, err := Open(path, loader.Timers{})
		if err != nil {
			t.Fatal(err)
		}
		k.Apply(t, mappedState(2, true))
		return k
	}
	k := open()
	port := k.shown(t, udpPacket("x"))
	answer := unasked(port, from("120.2.0.20"), ports(53, port))
	former(t, path, func(edgeOut, uplinkIn *ebpf.Program) {
		r := k.Run(t, edgeOut, Frame(udpPacket("x").Encode()), pod)
		o, err := DecodeOverlay(r.Frame)
		if err != nil || r.Action != Redirect {
			t.Fatalf("the flow: action %d, %v", r.Action, err)
		}
		if got := decode(t, o.Inner).UDP.Source; got != port {
			t.Errorf("the flow leaves from port %d; want %d", got, port)
		}
		if r := k.Run(t, uplinkIn, overlay(1, 1, 2, answer.Encode()).Encode(), Context{}); r.Action == Drop {
			t.Error("the answer is dropped")
		}
		if r := k.Run(t, uplinkIn, overlay(1, 1, 2, unasked(port).Encode()).Encode(), Context{}); r.Action != Drop {
			t.Errorf("a packet without a flow: action %d", r.Action)
		}
	})
	if err := k.Close(); err != nil {
		t.Fatal(err)
	}
	k = open()
	if got := k.shown(t, udpPacket("x", to(global(2, 21)))); got != port {
		t.Errorf("afterwards another endpoint sees port %d; want %d", got, port)
	}
	k.delivered(t, k.arrive(t, overlay(1, 1, 2, unasked(port).Encode())))
	if got := k.checkTable(t); got != 3 || k.mappings(t) != 1 {
		t.Errorf("%d flows with %d mappings; want 3 with 1", got, k.mappings(t))
	}
	if err := k.Close(); err != nil {
		t.Error(err)
	}
}

// A pod whose packets bypass the stack gets mappings towards other clusters alone, and the same as
// by the stack.
func TestMappingBypass(t *testing.T) {
	k := bypassing(t, dataplane.Fast)
	s := mappedState(2, true)
	s.Endpoints = map[netip.Addr]dataplane.Endpoint{ip("10.7.2.10"): {Ifindex: loopback, MAC: podMAC, Datapath: dataplane.Fast}}
	k.Apply(t, s)
	bypass := func(p Packet) Result { return k.Run(t, k.PodOut, Frame(p.Encode()), Context{}) }
	if r := bypass(udpPacket("x", to(ip("8.8.8.8")))); r.Action != Next || k.mappings(t) != 0 {
		t.Errorf("to the Internet: action %d and %d mappings; want it left to the stack without any", r.Action, k.mappings(t))
	}
	port := decode(t, k.sent(t, bypass(udpPacket("x")), "pod-out sent").Inner).UDP.Source
	if got := k.shown(t, udpPacket("x", to(global(2, 21)))); got != port {
		t.Errorf("shown as port %d by the stack, as %d past it", got, port)
	}
	got, err := Decode(k.arrive(t, overlay(1, 1, 2, unasked(port).Encode())).Frame[14:])
	if err != nil || got.Destination != ip("10.7.2.10") || got.UDP.Destination != 40000 {
		t.Errorf("a packet that nobody asked for: %+v, %v", got, err)
	}
	k.checkTable(t)
}

// Hosts outside the cluster have mappings at their gateway.
func TestMappingOutside(t *testing.T) {
	k := load(t, 1, 1)
	s := mappedState(1, true)
	withExternals(&s)
	host := s.Sources[ip("192.0.2.8")]
	host.Mapped, host.Open = true, true
	s.Externals[netip.MustParsePrefix("192.0.2.0/24")] = host
	k.Apply(t, s)
	k.answered(t)
	host1 := udpPacket("x", from("192.0.2.9"), ports(5000, 53))
	shown := func(p Packet) uint16 {
		return decode(t, k.sent(t, k.Run(t, k.EdgeOut, Frame(p.Encode()), beside), "edge-out sent").Inner).UDP.Source
	}
	port := shown(host1)
	if got := shown(host1.with(to(global(2, 21)))); got != port {
		t.Errorf("shown as port %d and as %d", port, got)
	}
	got := k.delivered(t, k.arrive(t, cable(2, 1, 1, unasked(port).Encode())))
	if got.Destination != ip("192.0.2.9") || got.UDP.Destination != 5000 {
		t.Errorf("delivered to %s:%d", got.Destination, got.UDP.Destination)
	}
	k.checkTable(t)
}
