package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/await"
)

// Behind the header stand the number of the probe (12 bytes), 2 bytes of nothing, and of a full probe 144 bytes of body.
const (
	probeLength = 14 + 144
	probeDeaf   = 1
	probeShort  = 8
)

// body is struct probe_id and struct probe.
type body struct {
	Nonce           uint64
	Sequence        uint32
	_               uint16
	Promised        uint32
	Ready           uint32
	Generation, Age uint32
	Unreachable     [16]uint64
}

func (b body) encode() []byte {
	var w bytes.Buffer
	if err := binary.Write(&w, binary.NativeEndian, b); err != nil {
		panic(err) // the type has a fixed size
	}
	return w.Bytes()
}

func bodyOf(t testing.TB, o Overlay) (b body) {
	t.Helper()
	if len(o.Inner) != probeLength {
		t.Fatalf("a probe of %d bytes behind its header; want %d", len(o.Inner), probeLength)
	}
	if err := binary.Read(bytes.NewReader(o.Inner), binary.NativeEndian, &b); err != nil {
		t.Fatal(err)
	}
	return b
}

// probeOf is one on the cable, from gateway `from` of cluster `cluster`.
func probeOf(kind uint8, cluster, from int, b body) Overlay {
	return cable(cluster, from, 1, b.encode(), func(o *Overlay) { o.Type = kind })
}

// sendProbe has the node send a probe to a peer and returns it.
func (k *Kernel) sendProbe(t testing.TB, peer netip.Addr, promised time.Duration) Overlay {
	t.Helper()
	_, mark, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	return k.sent(t, k.Run(t, k.EdgeOut, probe.Frame(peer, promised), Context{Mark: mark}), "edge-out probe")
}

// answer is the reply of the peer to a probe.
func answer(t testing.TB, sent Overlay, change func(*body)) Overlay {
	b := bodyOf(t, sent)
	b.Ready = 1
	if change != nil {
		change(&b)
	}
	sent.Source, sent.Destination, sent.SourcePort, sent.Port = sent.Destination, sent.Source, sent.Port, sent.SourcePort
	sent.Type, sent.Inner = ProbeReply, b.encode()
	return sent
}

func (k *Kernel) path(t testing.TB, peer netip.Addr) loader.Path {
	t.Helper()
	p, ok, err := k.Loader.Path(peer)
	if err != nil || !ok {
		t.Fatalf("path to %s: %t, %v", peer, ok, err)
	}
	return p
}

// What the prober's frame becomes, on the overlay and on the cable.
func TestProbeIsSent(t *testing.T) {
	ga := load(t, 1, 1)
	for name, want := range map[string]Overlay{
		"overlay": {Destination: nodeIP(1, 4), SourcePort: overlayPort, Port: overlayPort, Token: overlayToken + 1},
		"cable":   {Destination: nodeIP(2, 4), SourcePort: cablePort, Port: cablePort, Token: cableToken},
	} {
		got := ga.sendProbe(t, want.Destination, 250*time.Millisecond)
		b := bodyOf(t, got)
		if b.Nonce == 0 || b.Sequence != 1 || b.Promised != 250 {
			t.Errorf("%s: %+v; want a nonce, sequence 1 and the promise of 250 ms", name, b)
		}
		want.Source, want.TTL, want.Type, want.Version = nodeIP(1, 1), 64, Probe, 1
		got.Inner = nil
		wantEqual(t, name, want, got)
		if p := ga.path(t, want.Destination); p.Open != 1 || p.Probes != 1 || p.Sent > time.Second {
			t.Errorf("%s: path %+v", name, p)
		}
	}
	// To somebody who is not probed, nothing goes out.
	_, mark, err := ga.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	for _, peer := range []netip.Addr{nodeIP(1, 2), ip("192.0.2.1")} {
		if r := ga.Run(t, ga.EdgeOut, probe.Frame(peer, 0), Context{Mark: mark}); r.Action != Drop || r.Verdict != "edge-out drop-unknown-peer" {
			t.Errorf("to %s: %d, %q", peer, r.Action, r.Verdict)
		}
	}
}

// A clone of a packet in hand becomes a short probe, whatever it is; it is reflected and taken like any other.
func TestCloneBecomesProbe(t *testing.T) { bothHooks(t, throughCloneBecomesProbe) }

func throughCloneBecomesProbe(t *testing.T) {
	ga, gb := load(t, 1, 1), load(t, 1, 4)
	_, mark, err := ga.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	for i, size := range []int{0, 1, 300, 1400} {
		clone := overlay(1, 1, 4, udpPacket(string(make([]byte, size))).Encode())
		frame := clone.Encode()
		got := ga.sent(t, ga.Run(t, ga.EdgeOut, frame, Context{Mark: mark ^ 1}), "edge-out probe")
		number := [12]byte(got.Inner[:12])
		want := clone
		want.SourcePort, want.Type, want.Flags, want.InnerDestination, want.InnerSource = overlayPort, Probe, probeShort, [6]byte{}, [6]byte{}
		want.Inner = slices.Concat(number[:], frame[62:])
		wantEqual(t, "short probe", want, got)
		if number == [12]byte{} {
			t.Error("it has no number")
		}
		back := gb.sent(t, gb.arrive(t, got), "uplink-in probe")
		if back.Type != ProbeReply || back.Flags != probeShort || [12]byte(back.Inner[:12]) != number {
			t.Errorf("reply %+v", back)
		}
		if r := ga.arrive(t, back); r.Verdict != "uplink-in probe" || r.Action != Drop {
			t.Errorf("the answer: %d, %q", r.Action, r.Verdict)
		}
		if p := ga.path(t, nodeIP(1, 4)); p.Replies != uint64(i+1) || p.Open != 0 || p.Ready {
			t.Errorf("path %+v; want %d answers that tell nothing else", p, i+1)
		}
	}
}

// A probe comes back to its sender with nothing changed but the direction, the type and what the reflector tells.
func TestProbeReflection(t *testing.T) { bothHooks(t, throughProbeReflection) }

func throughProbeReflection(t *testing.T) {
	ga := load(t, 1, 1)
	if err := ga.Loader.Unreachable(map[uint16]bool{2: true, 700: true, 3: false}); err != nil {
		t.Fatal(err)
	}
	sent := body{Nonce: 0x1122334455667788, Sequence: 9, Promised: 10}
	request := probeOf(Probe, 2, 4, sent)
	request.SourcePort = 0x1234
	got := ga.sent(t, ga.arrive(t, request), "uplink-in probe")
	have, err := ga.Loader.Read()
	if err != nil {
		t.Fatal(err)
	}
	told := sent
	told.Ready, told.Generation = 1, have.Settings.Generation
	told.Unreachable[0], told.Unreachable[700/64] = 1<<2, 1<<(700%64)
	b := bodyOf(t, got)
	if b.Age > 60 {
		t.Errorf("the tables are %d s old", b.Age)
	}
	b.Age = 0
	wantEqual(t, "body", told, b)
	want := request
	want.Source, want.Destination, want.SourcePort, want.Port = request.Destination, request.Source, request.Port, request.SourcePort
	want.Type, want.InnerSource, want.InnerDestination, want.Inner = ProbeReply, [6]byte{}, [6]byte{}, got.Inner
	wantEqual(t, "reply", want, got)
	if p := ga.path(t, nodeIP(2, 4)); p.Heard > time.Minute {
		t.Errorf("path %+v; want the probe noted", p)
	}
}

// A gateway that is about to leave tells everybody to take others, also its own pods, and goes on switching. The next
// Apply takes it back.
func TestLeavingGateway(t *testing.T) {
	ga := load(t, 1, 1)
	for _, peer := range []netip.Addr{nodeIP(1, 4), nodeIP(2, 1), nodeIP(2, 4)} {
		ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	}
	ready := func() uint32 {
		t.Helper()
		return bodyOf(t, ga.sent(t, ga.arrive(t, probeOf(Probe, 2, 4, body{Nonce: 1})), "uplink-in probe")).Ready
	}
	if ready() != 1 {
		t.Fatal("it is not ready from the beginning")
	}
	if err := ga.Loader.Leave(); err != nil {
		t.Fatal(err)
	}
	if ready() != 0 {
		t.Error("it leaves and does not say so")
	}
	p := udpPacket("x", from("120.1.0.1"), func(p *Packet) { p.UDP.Source = blockOf(2) })
	ga.sent(t, ga.arrive(t, overlay(1, 2, 1, p.Encode())), "uplink-in switched")
	if err := ga.Loader.Apply(state(1, 1)); err != nil {
		t.Fatal(err)
	}
	if ready() != 1 {
		t.Error("it came back and does not say so")
	}
}

// Only the answer that names an outstanding nonce counts, and only once.
func TestProbeAnswer(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	first, second := ga.sendProbe(t, peer, 0), ga.sendProbe(t, peer, 0)
	take := func(o Overlay, verdict string) {
		t.Helper()
		if r := ga.arrive(t, o); r.Action != Drop || r.Verdict != verdict {
			t.Errorf("action %d, %q; want it consumed and %q", r.Action, r.Verdict, verdict)
		}
	}
	const bad = "uplink-in drop-bad-token"
	take(answer(t, first, func(b *body) { b.Nonce++ }), bad)
	take(answer(t, first, func(b *body) { b.Nonce = 0 }), bad)
	take(answer(t, first, func(b *body) { b.Nonce ^= 1 << 40 }), bad)
	take(answer(t, first, func(b *body) { b.Sequence++ }), bad)
	cut := answer(t, second, nil)
	cut.Inner = cut.Inner[:probeLength-1]
	take(cut, "uplink-in drop-malformed")
	if p := ga.path(t, peer); p.Replies != 0 || p.Open != 2 {
		t.Errorf("after forged answers: %+v", p)
	}
	take(answer(t, second, func(b *body) { b.Generation, b.Age, b.Unreachable[0] = 7, 9, 1<<5 }), "uplink-in probe")
	p := ga.path(t, peer)
	if p.Replies != 1 || p.Open != 0 || !p.Ready || p.Generation != 7 || p.Age != 9*time.Second || p.Reaches(5) || !p.Reaches(6) || p.RTT <= 0 || p.SRTT != p.RTT {
		t.Errorf("after the answer to the second: %+v", p)
	}
	if n := slices.Index(p.Histogram[:], 1); n < 0 || n > 0 && p.RTT < time.Microsecond<<(n-1) || n < len(p.Histogram)-1 && p.RTT >= time.Microsecond<<n {
		t.Errorf("RTT %s is counted at %d: %v", p.RTT, n, p.Histogram)
	}
	take(answer(t, second, nil), bad)
	take(answer(t, first, nil), "uplink-in probe") // late, but it has its nonce
	if p := ga.path(t, peer); p.Replies != 2 || p.Open != 0 {
		t.Errorf("after the late answer: %+v", p)
	}
}

// miss sends probes that nobody answers, for long enough.
func (k *Kernel) miss(t testing.TB, peers ...netip.Addr) {
	t.Helper()
	for range 4 {
		for _, p := range peers {
			k.sendProbe(t, p, 0)
		}
		time.Sleep(15 * time.Millisecond) // the rule asks for three probes and 30 ms
	}
}

// exits counts where 200 new flows of a pod leave.
func (k *Kernel) exits(t testing.TB) map[netip.Addr]int {
	t.Helper()
	out := map[netip.Addr]int{}
	for i := range 200 {
		p := udpPacket("x", func(p *Packet) { p.UDP.Source = uint16(20000 + i) })
		out[k.sent(t, k.fromPod(t, p), "edge-out sent").Destination]++
	}
	return out
}

// The edge steers around a gateway that does not answer, or that says it cannot pass the packet on, and comes back to it.
// If all are bad, all are used.
func TestEdgeSteers(t *testing.T) {
	one, four := nodeIP(1, 1), nodeIP(1, 4)
	good := func(k *Kernel, peer netip.Addr, change func(*body)) {
		k.arrive(t, answer(t, k.sendProbe(t, peer, 0), change))
	}
	na := load(t, 1, 2)
	all := na.exits(t) // nobody has answered yet
	good(na, one, nil)
	if got := na.exits(t); got[one] != 200 {
		t.Errorf("gateway 4 has not answered yet: flows leave by %v; want all by %s", got, one)
	}
	good(na, four, nil)
	wantEqual(t, "both answer", all, na.exits(t))
	if all[one] < 60 || all[four] < 60 {
		t.Fatalf("with two good gateways flows leave by %v; want them shared", all)
	}
	only := func(what string, want netip.Addr) {
		t.Helper()
		if got := na.exits(t); got[want] != 200 {
			t.Errorf("%s: flows leave by %v; want all by %s", what, got, want)
		}
	}
	shared := func(what string) {
		t.Helper()
		wantEqual(t, what, all, na.exits(t))
	}
	// before returns where flows leave a node to which both gateways have answered and whose paths bad then changes. It repeats
	// until none of alive was given up meanwhile: that takes 450 ms, and a busy machine may take longer for 200 packets.
	before := func(bad func(k *Kernel), alive ...netip.Addr) (exits map[netip.Addr]int) {
		t.Helper()
		await.True(t, "200 packets before the paths are given up", func() bool {
			k := load(t, 1, 2)
			good(k, one, nil)
			good(k, four, nil)
			bad(k)
			exits = k.exits(t)
			return !slices.ContainsFunc(alive, func(peer netip.Addr) bool { return k.path(t, peer).Dead() })
		})
		return exits
	}
	na.miss(t, one)
	if p := na.path(t, one); !p.Suspect() {
		t.Errorf("path %+v is not suspect", p)
	}
	only("gateway 1 is suspect", four)
	good(na, one, nil)
	shared("gateway 1 answers again")
	good(na, four, func(b *body) { b.Unreachable[0] = 1 << 2 })
	only("gateway 4 does not reach cluster 2", one)
	good(na, four, func(b *body) { b.Unreachable[0] = 1 << 3 })
	shared("gateway 4 does not reach another cluster")
	good(na, four, func(b *body) { b.Ready = 0 })
	only("gateway 4 is not ready", one)
	notReady := func(k *Kernel) {
		good(k, four, func(b *body) { b.Ready = 0 })
		k.miss(t, one)
	}
	if got := before(notReady, one); got[one] != 200 {
		t.Errorf("gateway 4 is not ready, gateway 1 is suspect: flows leave by %v; want all by %s", got, one)
	}
	na.miss(t, one)
	good(na, four, nil)
	await.True(t, "gateway 1 is given up", func() bool { return na.path(t, one).Dead() })
	longAndShort := func(k *Kernel) {
		k.miss(t, one)
		await.True(t, "gateway 1 is given up", func() bool { return k.path(t, one).Dead() })
		good(k, four, nil)
		k.miss(t, four)
	}
	if got := before(longAndShort, four); got[four] != 200 {
		t.Errorf("gateway 1 has been silent for long, gateway 4 for a moment: flows leave by %v; want all by %s", got, four)
	}
	na.miss(t, four)
	await.True(t, "gateway 4 is given up", func() bool { return na.path(t, four).Dead() })
	time.Sleep(10 * time.Millisecond) // the programs' clock is the coarse one, up to a tick behind ours
	shared("both are given up")
	good(na, one, nil)
	good(na, four, func(b *body) { b.Age = 500 })
	only("gateway 4 has old tables", one)
	na.miss(t, one)
	only("gateway 4 has old tables, gateway 1 is suspect", four)
	if got := before(func(k *Kernel) { k.miss(t, one, four) }, one, four); got[one] < 60 || got[four] < 60 {
		t.Errorf("both are suspect: flows leave by %v; want them shared", got)
	}
	lossy := func(peer netip.Addr) {
		t.Helper()
		for i := range 60 {
			if o := na.sendProbe(t, peer, 0); i%4 > 0 {
				na.arrive(t, answer(t, o, nil))
			}
		}
		if p := na.path(t, peer); p.Suspect() || p.Loss < 0.15 || !p.Degraded() {
			t.Fatalf("a path that loses a quarter of its probes: %+v", p)
		}
	}
	lossy(four)
	only("gateway 4 is lossy, gateway 1 is suspect", four)
	good(na, one, nil)
	only("gateway 4 is lossy", one)
	lossy(one)
	shared("both are lossy")
}

// With one gateway for all flows everybody picks the same, which dataplane.First knows, and another when it fails.
func TestOneGatewayForAllFlows(t *testing.T) {
	single := func(cluster int, node uint16) *Kernel {
		t.Helper()
		k := load(t, cluster, node)
		s := state(cluster, node)
		s.Settings.Single = true
		k.Apply(t, s)
		return k
	}
	gateways := []uint16{1, 4}
	first := dataplane.First(gateways)
	other := gateways[0] + gateways[1] - first
	na := single(1, 2)
	for _, g := range gateways {
		na.arrive(t, answer(t, na.sendProbe(t, nodeIP(1, int(g)), 0), nil))
	}
	if got := na.exits(t); got[nodeIP(1, int(first))] != 200 {
		t.Errorf("flows leave by %v, want all by gateway %d", got, first)
	}
	na.miss(t, nodeIP(1, int(first)))
	if got := na.exits(t); got[nodeIP(1, int(other))] != 200 {
		t.Errorf("gateway %d is suspect: flows leave by %v, want all by gateway %d", first, got, other)
	}
	ga := single(1, 1)
	for _, g := range gateways {
		ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(2, int(g)), 0), nil))
	}
	for i := range 20 {
		p := udpPacket("x", from("120.1.0.1"), func(p *Packet) { p.UDP.Source = blockOf(2) + uint16(i) })
		if o := ga.sent(t, ga.arrive(t, overlay(1, 2, 1, p.Encode())), "uplink-in switched"); o.Destination != nodeIP(2, int(first)) {
			t.Fatalf("a flow goes to %s of the other cluster, want its gateway %d", o.Destination, first)
		}
	}
}

// A gateway steers around a remote gateway; if it reaches none, its sibling is asked once, and the nodes are told.
func TestGatewaySteers(t *testing.T) { bothHooks(t, throughGatewaySteers) }

func throughGatewaySteers(t *testing.T) {
	ga := load(t, 1, 1)
	sibling := nodeIP(1, 4)
	remote := []netip.Addr{nodeIP(2, 1), nodeIP(2, 4)}
	out := func(flags uint8, verdict string) map[netip.Addr]int {
		t.Helper()
		got := map[netip.Addr]int{}
		for i := range 100 {
			p := udpPacket("x", from("120.1.0.1"), func(p *Packet) { p.UDP.Source = blockOf(2) + uint16(i) })
			o := ga.sent(t, ga.arrive(t, overlay(1, 2, 1, p.Encode(), func(o *Overlay) { o.Flags = flags })), "uplink-in "+verdict)
			got[o.Destination]++
		}
		return got
	}
	for _, peer := range append(remote, sibling) {
		ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	}
	if got := out(0, "switched"); got[remote[0]] < 25 || got[remote[1]] < 25 {
		t.Fatalf("two good remote gateways: %v", got)
	}
	ga.miss(t, remote[0])
	if got := out(0, "switched"); got[remote[1]] != 100 {
		t.Errorf("one is suspect: %v; want all to the other", got)
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, sibling, 0), nil))
	ga.miss(t, remote...)
	ga.arrive(t, answer(t, ga.sendProbe(t, sibling, 0), nil))
	if got := out(0, "bounced"); got[sibling] != 100 {
		t.Errorf("both are suspect: %v; want all to the sibling", got)
	}
	told := bodyOf(t, ga.sent(t, ga.arrive(t, overlay(1, 2, 1, body{Nonce: 1}.encode(), func(o *Overlay) { o.Type = Probe })), "uplink-in probe"))
	if told.Unreachable[0] != 1<<2 {
		t.Errorf("the nodes are told %b; want the bit of cluster 2", told.Unreachable[0])
	}
	if got := out(Bounced, "switched"); got[remote[0]]+got[remote[1]] != 100 {
		t.Errorf("both are suspect and the packet was bounced: %v; want it tried all the same", got)
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, sibling, 0), func(b *body) { b.Unreachable[0] = 1 << 2 }))
	if got := out(0, "switched"); got[remote[0]]+got[remote[1]] != 100 {
		t.Errorf("the sibling reaches it no better: %v; want it tried", got)
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, remote[1], 0), nil))
	if got := out(0, "switched"); got[remote[1]] != 100 {
		t.Errorf("one answers again: %v", got)
	}
}

// A node that gets no answers is reached by way of the sibling. A prober that is late is no reason.
func TestDeafNode(t *testing.T) { bothHooks(t, throughDeafNode) }

func throughDeafNode(t *testing.T) {
	ga := load(t, 1, 1)
	answerFor3 := cable(2, 1, 1, answerTo(3).Encode())
	hear := func(promised uint32, flags uint8) {
		ga.arrive(t, overlay(1, 3, 1, body{Nonce: 1, Promised: promised}.encode(), func(o *Overlay) { o.Type, o.Flags = Probe, flags }))
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(1, 4), 0), nil))
	for _, tt := range []struct {
		promised uint32
		flags    uint8
		want     string
		to       netip.Addr
	}{
		{0, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, 0, "uplink-in switched", nodeIP(1, 3)},
		{10, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, probeDeaf, "uplink-in bounced", nodeIP(1, 4)},
	} {
		hear(tt.promised, tt.flags)
		time.Sleep(60 * time.Millisecond) // the promise of 10 ms is broken by now, that of 1,000 ms is not
		ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(1, 4), 0), nil))
		if o := ga.sent(t, ga.arrive(t, answerFor3), tt.want); o.Destination != tt.to {
			t.Errorf("promised %d ms, flags %d: to %s; want %s", tt.promised, tt.flags, o.Destination, tt.to)
		}
	}
	again := answerFor3
	again.Flags = Bounced | Switch
	again.Source, again.Destination = nodeIP(1, 4), nodeIP(1, 1)
	again.Token, again.Port = overlayToken+1, overlayPort
	if o := ga.sent(t, ga.arrive(t, again), "uplink-in switched"); o.Destination != nodeIP(1, 3) {
		t.Errorf("bounced to this gateway: on to %s", o.Destination)
	}
}

// A node whose daemon is dead promises nothing: the gateway's program probes it beside its packets.
func TestNodeWithoutDaemon(t *testing.T) { bothHooks(t, throughNodeWithoutDaemon) }

func throughNodeWithoutDaemon(t *testing.T) {
	ga := load(t, 1, 1)
	node, sibling := nodeIP(1, 3), nodeIP(1, 4)
	_, mark, err := ga.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	hear := func(flags uint8) {
		short := overlay(1, 3, 1, make([]byte, 60), func(o *Overlay) { o.Type, o.Flags, o.SourcePort = Probe, probeShort|flags, overlayPort })
		ga.sent(t, ga.arrive(t, short), "uplink-in probe")
	}
	goes := func(what, verdict string, to netip.Addr) {
		t.Helper()
		ga.arrive(t, answer(t, ga.sendProbe(t, sibling, 0), nil))
		if o := ga.sent(t, ga.arrive(t, cable(2, 1, 1, answerTo(3).Encode())), verdict); o.Destination != to {
			t.Errorf("%s: to %s; want %s", what, o.Destination, to)
		}
	}
	hear(0)
	goes("it was heard", "uplink-in switched", node)
	clone := overlay(1, 1, 3, udpPacket("x").Encode()).Encode()
	for range 4 {
		ga.sent(t, ga.Run(t, ga.EdgeOut, clone, Context{Mark: mark ^ 1}), "edge-out probe")
		time.Sleep(15 * time.Millisecond) // as in miss
	}
	goes("it does not answer", "uplink-in bounced", sibling)
	hear(probeDeaf)
	goes("it gets no answers", "uplink-in bounced", sibling)
	hear(0)
	goes("it gets answers", "uplink-in switched", node)
}

// Loss makes the rule stricter, RTT makes it patient.
func TestSuspectIsPatient(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	first := ga.sendProbe(t, peer, 0)
	time.Sleep(80 * time.Millisecond) // the path's round-trip time
	ga.arrive(t, answer(t, first, nil))
	ga.miss(t, peer)
	if p := ga.path(t, peer); p.Suspect() || p.SRTT < 80*time.Millisecond {
		t.Errorf("after 60 ms without an answer, on a path of 80 ms: %+v", p)
	}
	time.Sleep(250 * time.Millisecond) // silence that is too long for this path too
	if p := ga.path(t, peer); !p.Suspect() {
		t.Errorf("after 310 ms: %+v", p)
	}
	// A third of the probes is lost.
	for i := range 60 {
		if o := ga.sendProbe(t, peer, 0); i%3 > 0 {
			ga.arrive(t, answer(t, o, nil))
		}
	}
	if p := ga.path(t, peer); p.Loss < 0.15 || p.Loss > 0.5 || !p.Degraded() {
		t.Errorf("a third is lost: %+v", p)
	}
}

// Neither the programs nor the loader make or keep paths that the tables do not ask for.
func TestPathsFollowTables(t *testing.T) {
	ga := load(t, 1, 1)
	keys := func() []netip.Addr {
		paths, err := ga.Loader.Paths()
		if err != nil {
			t.Fatal(err)
		}
		var out []netip.Addr
		for a := range paths {
			out = append(out, a)
		}
		slices.SortFunc(out, netip.Addr.Compare)
		return out
	}
	ga.sendProbe(t, nodeIP(2, 1), 0)
	wantEqual(t, "paths of a gateway", []netip.Addr{nodeIP(1, 2), nodeIP(1, 3), nodeIP(1, 4), nodeIP(2, 1), nodeIP(2, 4)}, keys())
	s := state(1, 1)
	s.Clusters = map[uint16][]dataplane.RemoteGateway{}
	ga.Apply(t, s)
	wantEqual(t, "without remote gateways", []netip.Addr{nodeIP(1, 2), nodeIP(1, 3), nodeIP(1, 4)}, keys())
	ga.Apply(t, state(1, 1))
	if p := ga.path(t, nodeIP(2, 1)); p.Probes != 0 {
		t.Errorf("a gateway that came back begins with %+v", p)
	}
}

// What loader.Path says of a path is what the programs do about it. Gateway 1 has any state; of flows that pick it by their
// hash, it loses those to a good gateway 4 when it is suspect, and those to a bad one when it is dead.
func TestOneLivenessRule(t *testing.T) {
	na := load(t, 1, 2)
	one, four := nodeIP(1, 1), nodeIP(1, 4)
	put := func(peer netip.Addr, p bpf.PelagoPath) {
		key := peer.As4()
		if err := na.Paths.Put(key, p); err != nil {
			t.Fatal(err)
		}
	}
	good := bpf.PelagoPath{Probed: 1, Ready: 1, Seen: uint64(nanotime(t)), Ring: farRing(nanotime(t))}
	bad := good
	bad.Deaf = 1
	put(one, good)
	put(four, good)
	source := uint16(1)
	for ; !na.leavesBy(t, source, one); source++ {
	}
	seen := map[[2]bool]int{}
	rapid.Check(t, func(rt *rapid.T) {
		now := uint64(nanotime(t))
		ms := func(name string, values ...uint64) uint64 { return 1e6 * rapid.SampledFrom(values).Draw(rt, name) }
		p := good
		p.Seen = now - ms("silent", 0, 100, 430, 500, 2000, 60000)
		p.Srtt, p.Rttvar = uint32(ms("srtt", 0, 1, 80, 900)), uint32(ms("rttvar", 0, 1, 30))
		p.Loss = rapid.SampledFrom([]uint32{0, 3276, 3277, 6000}).Draw(rt, "loss")
		p.Sequence = rapid.Uint32Range(100, 200).Draw(rt, "sequence")
		p.Answered = p.Sequence - rapid.Uint32Range(0, 40).Draw(rt, "open")
		interval := ms("interval", 1, 10, 150)
		for i := range p.Ring {
			n := p.Sequence - uint32(i)
			p.Ring[n%16].Sent = now - uint64(i)*interval
		}
		put(one, younger(p))
		before := na.path(t, one)
		put(one, p)
		put(four, good)
		suspect := !na.leavesBy(t, source, one)
		put(one, p) // without what that packet noted
		put(four, bad)
		dead := !na.leavesBy(t, source, one)
		put(one, p)
		after := na.path(t, one)
		// Ages only grow: where both readings agree, so must the programs, whose clock is up to a tick behind.
		if before.Suspect() == after.Suspect() && suspect != before.Suspect() || before.Dead() == after.Dead() && dead != before.Dead() {
			rt.Errorf("the programs: suspect %t, dead %t; loader: suspect %t, dead %t of %+v", suspect, dead, before.Suspect(), before.Dead(), before)
		}
		seen[[2]bool{suspect, dead}]++
	})
	for _, state := range [][2]bool{{false, false}, {true, false}, {true, true}} {
		if seen[state] == 0 {
			t.Errorf("never drawn: suspect %t, dead %t", state[0], state[1])
		}
	}
}

// younger is a path of 20 ms ago, which is more than a tick.
func younger(p bpf.PelagoPath) bpf.PelagoPath {
	const tick = 20e6
	p.Seen += tick
	for i := range p.Ring {
		p.Ring[i].Sent += tick
	}
	return p
}

// farRing is a ring of which no probe is overdue for an hour.
func farRing(now int64) (ring [16]bpf.PelagoProbeSlot) {
	for i := range ring {
		ring[i].Sent = uint64(now) + 3600e9
	}
	return ring
}

// leavesBy reports whether a flow from a source port leaves by the gateway.
func (k *Kernel) leavesBy(t testing.TB, source uint16, gateway netip.Addr) bool {
	t.Helper()
	o, err := DecodeOverlay(k.fromPod(t, udpPacket("x", ports(source, 53), from("10.7.2.11"), to(global(2, 100)))).Frame)
	if err != nil {
		t.Fatal(err)
	}
	return o.Destination == gateway
}
