package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/probe"
	"github.com/pelago-net/pelago/test/await"
)

// The header is followed by the number of the probe (12 bytes), 2 bytes of padding, and in a full
// probe 144 bytes of body and 128 that the former version does not know.
const (
	probeLength  = 14 + 144 + 128
	oldProbe     = 14 + 144 // of the former version
	probeNoReply = 1
	probeShort   = 8
)

// body is struct probe_id and struct probe.
type body struct {
	Nonce           uint64
	Sequence        uint32
	_               uint16
	NextProbe       uint32
	Ready           uint32
	Generation, Age uint32
	Unreachable     [16]uint64
	Lossy           [16]uint64
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
func (k *Kernel) sendProbe(t testing.TB, peer netip.Addr, next time.Duration) Overlay {
	t.Helper()
	_, mark, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	return k.sent(t, k.Run(t, k.EdgeOut, probe.Frame(peer, next), Context{Mark: mark}), "edge-out probe")
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

func (k *Kernel) path(t testing.TB, peer netip.Addr) liveness.Path {
	t.Helper()
	p, ok, err := k.Loader.Path(peer)
	if err != nil || !ok {
		t.Fatalf("path to %s: %t, %v", peer, ok, err)
	}
	return p
}

// awaitDead waits until a path is dead by the clock of the programs as well, the coarse one, which
// is up to a tick behind.
func (k *Kernel) awaitDead(t testing.TB, peer netip.Addr) {
	t.Helper()
	await.True(t, fmt.Sprintf("the path to %s is dead", peer), func() bool { return k.path(t, peer).Dead() })
	dead := nanotime(t)
	await.True(t, "the coarse clock follows", func() bool {
		var now unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
			t.Fatal(err)
		}
		return now.Nano() >= dead
	})
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
		if b.Nonce == 0 || b.Sequence != 1 || b.NextProbe != 250 {
			t.Errorf("%s: %+v; want a nonce, sequence 1 and the promise of 250 ms", name, b)
		}
		want.Source, want.TTL, want.Type, want.Version = nodeIP(1, 1), 64, Probe, 1
		got.Inner = nil
		wantEqual(t, name, want, got)
		if p := ga.path(t, want.Destination); p.Open != 1 || p.Probes != 1 || p.Sent > time.Second {
			t.Errorf("%s: path %+v", name, p)
		}
	}
	// To a peer that is not probed, nothing goes out.
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

// A clone of a packet in hand becomes a short probe, whatever it is; it is reflected and taken like
// any other.
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

// A probe comes back to its sender with nothing changed but the direction, the type and what the
// reflector tells.
func TestProbeReflection(t *testing.T) { bothHooks(t, throughProbeReflection) }

func throughProbeReflection(t *testing.T) {
	ga := load(t, 1, 1)
	if err := ga.Loader.Reach(map[uint16]bool{2: true, 700: true, 3: false}, map[uint16]bool{5: true, 701: true}); err != nil {
		t.Fatal(err)
	}
	sent := body{Nonce: 0x1122334455667788, Sequence: 9, NextProbe: 10}
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
	told.Lossy[0], told.Lossy[700/64] = 1<<5, 1<<(701%64)
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

// A gateway that is about to leave tells all peers, and its own pods, to use other gateways, but
// keeps forwarding. The next Apply revokes this.
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
	const bad = "uplink-in drop-stale-probe"
	take(answer(t, first, func(b *body) { b.Nonce++ }), bad)
	take(answer(t, first, func(b *body) { b.Nonce = 0 }), bad)
	take(answer(t, first, func(b *body) { b.Nonce ^= 1 << 40 }), bad)
	take(answer(t, first, func(b *body) { b.Sequence++ }), bad)
	cut := answer(t, second, nil)
	cut.Inner = cut.Inner[:oldProbe-1]
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

// miss sends four probes without a reply and makes them 60 ms old, on a path of a millisecond: it
// is suspect, however slow this process is, and not gone for 0.4 s.
func (k *Kernel) miss(t testing.TB, peers ...netip.Addr) {
	t.Helper()
	for _, peer := range peers {
		for range 4 {
			k.sendProbe(t, peer, 0)
		}
		var p bpf.PelagoPath
		if err := k.Paths.Lookup(peer.As4(), &p); err != nil {
			t.Fatal(err)
		}
		now := uint64(nanotime(t))
		p.Srtt, p.Rttvar = 1e6, 0
		if p.Replies > 0 {
			p.Seen = now
		}
		for i := range min(p.Sequence-p.Answered, uint32(len(p.Ring))) {
			p.Ring[(p.Sequence-i)%uint32(len(p.Ring))].Sent = now - 60e6
		}
		k.putPath(t, peer.As4(), p)
	}
}

// exits counts where 200 new flows of a pod leave.
func (k *Kernel) exits(t testing.TB) map[netip.Addr]int {
	t.Helper()
	out := map[netip.Addr]int{}
	const sent = "edge-out sent"
	before := k.counters(t)[sent]
	for i := range 200 {
		p := udpPacket("x", func(p *Packet) { p.UDP.Source = uint16(20000 + i) })
		r, err := k.TryRun(k.EdgeOut, Frame(p.Encode()), Context{IngressIfindex: podDevice})
		if err != nil {
			t.Fatal(err)
		}
		r.Verdict = sent // checked below for all packets: a read of the counters is slower than a run
		out[k.sent(t, r, sent).Destination]++
	}
	if n := k.counters(t)[sent] - before; n != 200 {
		t.Fatalf("%d of 200 packets were sent", n)
	}
	return out
}

// Loss makes the rule stricter, RTT makes it patient.
func TestSuspectIsPatient(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	// Four probes are open, the first for so long, on a path of a second.
	silent := func(since uint64) liveness.Path {
		t.Helper()
		p := bpf.PelagoPath{Probed: 1, Ready: 1, Srtt: 1e9, Rttvar: 2e8, Sequence: 104, Answered: 100}
		for i := range p.Ring {
			p.Ring[i].Sent = uint64(nanotime(t)) - since
		}
		ga.putPath(t, peer.As4(), p)
		return ga.path(t, peer)
	}
	if p := silent(4e8); p.Suspect() {
		t.Errorf("after 0.4 s without an answer: %+v", p)
	}
	if p := silent(2e9); !p.Suspect() {
		t.Errorf("after 2 s: %+v", p)
	}
	ga.putPath(t, peer.As4(), bpf.PelagoPath{Probed: 1, Ready: 1})
	// A third of the probes is lost.
	for i := range 120 {
		if o := ga.sendProbe(t, peer, 0); i%3 > 0 {
			ga.arrive(t, answer(t, o, nil))
		}
	}
	if p := ga.path(t, peer); p.Loss < 0.15 || p.Loss > 0.5 || !p.Degraded() || !p.Lossy {
		t.Errorf("a third is lost: %+v", p)
	}
}

// A path is lossy for a loss of more than a tenth, not for less, and for at least five seconds.
func TestLossHasHysteresis(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	probes := func(n, lostEvery int) liveness.Path {
		t.Helper()
		for i := range n {
			if o := ga.sendProbe(t, peer, 0); lostEvery == 0 || i%lostEvery > 0 {
				ga.arrive(t, answer(t, o, nil))
			}
		}
		return ga.path(t, peer)
	}
	if p := probes(600, 20); p.Lossy || p.Loss < 0.03 || p.Loss > 0.08 {
		t.Errorf("one of twenty is lost: %+v", p)
	}
	if p := probes(90, 3); !p.Lossy {
		t.Errorf("one of three is lost: %+v", p)
	}
	seconds := uint32(nanotime(t)/1e9) + 1
	lossyFor := func(s uint32) {
		ga.answered(t, func(p *bpf.PelagoPath) { p.Loss, p.Lossy = 0, seconds-s })
	}
	lossyFor(0)
	if p := probes(1, 0); !p.Lossy {
		t.Errorf("none is lost, for a moment: %+v", p)
	}
	lossyFor(6)
	if p := probes(1, 0); p.Lossy {
		t.Errorf("none has been lost for long: %+v", p)
	}
}

// After an outage, a path is lossy for the time of a few hundred probes.
func TestLossOfAnOutageIsForgotten(t *testing.T) {
	ga := load(t, 1, 1)
	peer := nodeIP(2, 1)
	ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	for range 600 {
		ga.sendProbe(t, peer, 0)
	}
	// The next probe takes the slot of the oldest one: all in the ring must be old.
	await.True(t, "the path is dead", func() bool { p := ga.path(t, peer); return p.Dead() && p.Sent > liveness.DeadAfter })
	if p := ga.path(t, peer); p.Loss < 0.9 {
		t.Fatalf("all are lost: %+v", p)
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil))
	if p := ga.path(t, peer); p.Loss > 0.21 || !p.Lossy {
		t.Errorf("the first answer after an outage: %+v", p)
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

// The programs treat a path as liveness.Path classifies it. Gateway 1 has any state; of
// flows that pick it by their hash, it loses those to a good gateway 4 when it is suspect, and
// those to a bad one when it is dead.
func TestOneLivenessRule(t *testing.T) {
	na := load(t, 1, 2)
	one, four := nodeIP(1, 1), nodeIP(1, 4)
	put := func(peer netip.Addr, p bpf.PelagoPath) { na.putPath(t, peer.As4(), p) }
	good := bpf.PelagoPath{Probed: 1, Ready: 1, Seen: uint64(nanotime(t)), Ring: farRing(nanotime(t))}
	bad := good
	bad.NoReply = 1
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
		// the machine may have booted less than a minute ago
		p.Seen = now - min(now, ms("silent", 0, 100, 430, 500, 2000, 60000))
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
		// Ages only grow: where both readings agree, so must the programs, whose clock is up to a
		// tick behind.
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
