package packet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/await"
)

var (
	modelSteps = flag.Int("steps", 100_000, "steps of the model of the flow table")
	modelSeed  = flag.Uint64("seed", 0, "seed of its first sequence")
)

// connection is the addresses and ports of a packet; an echo request has its identifier as source
// port, a reply as destination port.
type connection struct {
	source, destination netip.AddrPort
	proto               uint8
}

func connectionOf(p Packet) connection {
	s, d := p.ports()
	return connection{netip.AddrPortFrom(p.Source, s), netip.AddrPortFrom(p.Destination, d), p.protocol()}
}

func (c connection) reverse() connection { return connection{c.destination, c.source, c.proto} }

func (c connection) String() string {
	return fmt.Sprintf("%d %s > %s", c.proto, c.source, c.destination)
}

// packet is one of the connection. An echo without source port is a reply.
func (c connection) packet(flags uint8) Packet {
	p := Packet{Source: c.source.Addr(), Destination: c.destination.Addr(), TTL: 63, ID: 4711}
	switch {
	case c.proto == ProtocolTCP:
		p.TCP = &TCP{Source: c.source.Port(), Destination: c.destination.Port(), Sequence: 7, Ack: 9, Flags: flags, Window: 100}
	case c.proto == ProtocolUDP:
		p.UDP = &UDP{Source: c.source.Port(), Destination: c.destination.Port()}
	case c.source.Port() != 0:
		p.ICMP = EchoHeader(Echo, c.source.Port(), 1)
	default:
		p.ICMP = EchoHeader(EchoReply, c.destination.Port(), 1)
	}
	return p
}

func (c connection) opens(flags uint8) bool {
	switch c.proto {
	case ProtocolTCP:
		return flags == SYN
	case ProtocolICMP:
		return c.source.Port() != 0
	}
	return true
}

// tick is how late the coarse clock of the programs may be.
const tick = 100 * time.Millisecond

// modelFlow is a flow as RFC 4787, 5382 and 5508 want it: a translation in each direction, and what
// it has seen.
type modelFlow struct {
	opening, shown connection // the packet that opened it, before and after translation
	client         bool       // opened by a pod of the node
	// of TCP the flags, else ACK for any packet: of the opener, of the other side
	seen [2]uint8
	// between which its idle time has begun; the programs note it once a second
	last, latest time.Duration
}

// limit is how long it may be idle, or be before another flow gets its port.
func (f *modelFlow) limit(t loader.Timers, pressure bool) time.Duration {
	either, both := f.seen[0]|f.seen[1], f.seen[0]&f.seen[1]
	limit := t.UDP
	switch {
	case f.opening.proto == ProtocolTCP && (either&RST != 0 || both&FIN != 0):
		if pressure {
			return t.ClosedFloor
		}
		return t.TCPTransitory
	case f.opening.proto == ProtocolTCP && both&ACK != 0:
		return t.TCPEstablished
	case f.opening.proto == ProtocolTCP:
		limit = t.TCPTransitory
	case f.opening.proto == ProtocolICMP:
		limit = t.ICMP
	case pressure && f.opening.destination.Port() < 1024:
		limit = t.UDPWellKnown
	}
	if pressure && (f.opening.proto == ProtocolTCP || f.seen[1]&ACK == 0) {
		limit = min(limit, t.Unreplied)
	}
	return limit
}

// model reports what the programs of node 2 of cluster 1 do with packets of its pods and to them.
type model struct {
	k      *Kernel
	rng    *rand.Rand
	timers loader.Timers
	flows  []*modelFlow
	out    map[connection]*modelFlow // by the packets of pods
	in     map[connection]*modelFlow // by those to them
	start  time.Time
	aged   time.Duration
	// mapped: UDP of pod 10.7.2.10 has open mappings, which are these by their local end.
	mapped   bool
	mappings map[netip.AddrPort]*modelMapping
}

func (m *model) now() time.Duration { return time.Since(m.start) + m.aged }

func (m *model) directions(f *modelFlow) (out, in connection) {
	if f.client {
		return f.opening, f.shown.reverse()
	}
	return f.shown.reverse(), f.opening
}

func (m *model) add(f *modelFlow) {
	out, in := m.directions(f)
	m.flows, m.out[out], m.in[in] = append(m.flows, f), f, f
}

func (m *model) remove(f *modelFlow) {
	out, in := m.directions(f)
	delete(m.out, out)
	delete(m.in, in)
	for i := range m.flows {
		if m.flows[i] == f {
			m.flows[i] = m.flows[len(m.flows)-1]
			m.flows = m.flows[:len(m.flows)-1]
			return
		}
	}
}

// touch notes a packet that was translated between two times.
func (f *modelFlow) touch(opener bool, flags uint8, before, after time.Duration) {
	side := 1
	if opener {
		side = 0
	}
	if f.opening.proto != ProtocolTCP {
		flags = ACK
	}
	f.seen[side] |= flags & (ACK | FIN | RST)
	f.last, f.latest = max(f.last, before-time.Second-tick), max(f.latest, after)
}

// send has a program translate a packet, and compares with the model. pod: it comes from a pod,
// else from the overlay.
func (m *model) send(c connection, flags uint8, pod bool) error {
	by, program, frame, ctx := m.in, m.k.UplinkIn, []byte(nil), Context{}
	if pod {
		by, program, frame, ctx = m.out, m.k.EdgeOut, Frame(c.packet(flags).Encode()), Context{IngressIfindex: podDevice}
	} else {
		frame = overlay(1, 1, 2, c.packet(flags).Encode()).Encode()
	}
	before := m.now()
	r, err := m.k.TryRun(program, frame, ctx)
	if err != nil {
		return err
	}
	after := m.now()
	got, passed, err := translation(r, pod)
	if err != nil {
		return err
	}
	f := by[c]
	if f != nil {
		opener := f.client == pod
		want := f.shown
		if !opener {
			want = f.opening.reverse()
		}
		closing := c.proto == ProtocolTCP && (f.seen[0]|f.seen[1])&(FIN|RST) != 0
		again := opener && closing && flags == SYN
		switch alive := after-f.last <= f.limit(m.timers, false); {
		case again && !f.client: // to a backend of today
			m.remove(f)
		case passed && got == want && again:
			f.seen, f.last, f.latest = [2]uint8{}, before-tick, after
			return nil
		case passed && got == want && alive:
			m.touchMapping(f, pod, !opener && f.seen[1]&ACK == 0, before, after)
			f.touch(opener, flags, before, after)
			return nil
		case passed && got == want:
			// an expired flow that no sweep has met continues, or either side has opened the same
			// again
			f.last, f.latest = before-time.Second-tick, after
			m.touchMapping(f, pod, false, before, after)
			return m.read(f)
		case alive:
			return fmt.Errorf("%s became %s (%t); want %s", c, got, passed, want)
		default:
			m.remove(f)
		}
	}
	return m.opened(c, got, flags, pod, passed, before, after)
}

// opened checks what a packet without a flow did.
func (m *model) opened(c, got connection, flags uint8, pod, passed bool, before, after time.Duration) error {
	if m.mapped && !pod && c.proto == ProtocolUDP && c.destination.Addr() == global(1, 1) {
		return m.unasked(c, got, passed, after)
	}
	if !passed {
		if m.mayOpen(c, flags, pod) && !(m.maps(c, pod) && m.clashes(c, before, after)) {
			return fmt.Errorf("%s opens no flow", c)
		}
		return nil
	}
	if !m.mayOpen(c, flags, pod) {
		return fmt.Errorf("%s, flags %#x, passes as %s", c, flags, got)
	}
	f := &modelFlow{opening: c, shown: got, client: pod, last: before - tick, latest: after}
	out, in := m.directions(f)
	answers, key := m.in, in
	if !pod {
		answers, key = m.out, out
	}
	if other := answers[key]; other != nil {
		if after-other.last <= other.limit(m.timers, true) {
			return fmt.Errorf("%s became %s, the other direction of which belongs to %s", c, got, other.opening)
		}
		m.remove(other)
	}
	var err error
	if m.maps(c, pod) {
		err = m.openMapped(c, got, before, after)
	} else {
		err = shown(c, got, pod, m.overEighth(), func(same connection) bool { return answers[same.reverse()] != nil })
	}
	if err != nil {
		return err
	}
	m.add(f)
	return nil
}

// mayOpen reports whether a packet without a flow is to open one.
func (m *model) mayOpen(c connection, flags uint8, pod bool) bool {
	if !c.opens(flags) {
		return false
	}
	if pod || c.destination.Addr() == global(1, 100) {
		return true
	}
	switch c.destination {
	case netip.AddrPortFrom(global(1, 20), 80), netip.AddrPortFrom(global(1, 21), 80):
		return c.proto == ProtocolTCP
	case netip.AddrPortFrom(global(1, 20), 53):
		return c.proto == ProtocolUDP
	}
	return false
}

// overEighth reports whether the pod with the egress IP may have more flows than an eighth of the
// node's ports. Expired flows count until they are removed.
func (m *model) overEighth() bool {
	n := 0
	for _, f := range m.flows {
		if f.client && f.opening.source.Addr() == ip("10.7.2.10") {
			n++
		}
	}
	return n >= 256/8
}

// shown checks the translation of a packet that opens a flow.
func shown(c, got connection, pod, overEighth bool, taken func(connection) bool) error {
	want := c
	switch {
	case pod && c.source.Addr() == ip("10.7.2.11"):
		want.source = netip.AddrPortFrom(global(1, 100), c.source.Port())
	case pod:
		want.source = netip.AddrPortFrom(global(1, 1), c.source.Port())
		if p := got.source.Port(); p>>8<<8 != blockOf(2) {
			return fmt.Errorf("%s became %s, a port of another node's", c, got)
		}
		// The last ports of a block are reserved for sources with few flows.
		reserved := c.source.Port()&0xff >= 224 && overEighth
		if c.source.Port()>>8<<8 != blockOf(2) || taken(want) || reserved {
			want.source = netip.AddrPortFrom(global(1, 1), got.source.Port())
		}
	default:
		target := map[netip.AddrPort]netip.AddrPort{
			netip.AddrPortFrom(global(1, 20), 80): addrPort("10.7.2.10:8080"), netip.AddrPortFrom(global(1, 21), 80): addrPort("10.7.2.10:8080"),
			netip.AddrPortFrom(global(1, 20), 53): addrPort("10.7.2.10:5353"),
		}[c.destination]
		if c.destination.Addr() == global(1, 100) {
			target = netip.AddrPortFrom(ip("10.7.2.11"), c.destination.Port())
		}
		want.destination = target
		if taken(want) {
			want.source = netip.AddrPortFrom(c.source.Addr(), got.source.Port())
		}
	}
	if got != want {
		return fmt.Errorf("%s became %s; want %s", c, got, want)
	}
	return nil
}

// read takes from the table who opened a flow, and what it has seen.
func (m *model) read(f *modelFlow) error {
	var opener bpf.PelagoFlow
	if err := m.k.Flows.Lookup(flowKey(f.opening, f.client), &opener); err != nil {
		return fmt.Errorf("%s: %w", f.opening, err)
	}
	if opener.Primary == 0 {
		f.opening, f.shown, f.client = f.shown.reverse(), f.opening.reverse(), !f.client
	}
	for side, c := range []connection{f.opening, f.shown.reverse()} {
		var e bpf.PelagoFlow
		if err := m.k.Flows.Lookup(flowKey(c, f.client == (side == 0)), &e); err != nil {
			return fmt.Errorf("%s: %w", c, err)
		}
		f.seen[side] = 0
		for ours, flag := range map[bpf.PelagoTcpSeen]uint8{bpf.PelagoTcpSeenTCP_SEEN_ACK: ACK, bpf.PelagoTcpSeenTCP_SEEN_FIN: FIN, bpf.PelagoTcpSeenTCP_SEEN_RST: RST} {
			if e.Tcp&uint8(ours) != 0 {
				f.seen[side] |= flag
			}
		}
	}
	return nil
}

// sweep removes what has expired, and compares the tables.
func (m *model) sweep(t *testing.T) error {
	before := m.now()
	if _, err := m.k.Loader.Sweep(0); err != nil {
		return err
	}
	after := m.now()
	entries := m.k.entries(t)
	for _, f := range append([]*modelFlow(nil), m.flows...) {
		_, there := entries[flowKey(f.opening, f.client)]
		limit := f.limit(m.timers, false)
		switch {
		case !there && after-f.last <= limit:
			return fmt.Errorf("%s is gone after %s at most; its limit is %s", f.opening, after-f.last, limit)
		case there && before-f.latest > limit:
			return fmt.Errorf("%s is left after %s; its limit is %s", f.opening, before-f.latest, limit)
		case !there:
			m.remove(f)
		}
	}
	if err := m.sweepMappings(before, after); err != nil {
		return err
	}
	if m.k.checkTable(t) != len(m.flows)+len(m.mappings) {
		return fmt.Errorf("%d entries of %d flows and %d mappings", len(entries), len(m.flows), len(m.mappings))
	}
	return nil
}

// translation reads what a program made of a packet. passed: it was sent, or delivered; an answer
// to its sender is none.
func translation(r Result, pod bool) (c connection, passed bool, err error) {
	if r.Action == Drop {
		return c, false, nil
	}
	if r.Action != Redirect {
		return c, false, fmt.Errorf("action %d", r.Action)
	}
	o, err := DecodeOverlay(r.Frame)
	if overlaid := err == nil; overlaid != pod {
		return c, false, nil
	}
	inner := o.Inner
	if !pod {
		if inner, err = DecodeDelivered(r.Frame); err != nil {
			return c, false, err
		}
	}
	p, err := Decode(inner)
	return connectionOf(p), true, err
}

func flowKey(c connection, out bool) bpf.PelagoFlowKey {
	key := bpf.PelagoFlowKey{
		Saddr: be32(c.source.Addr()), Daddr: be32(c.destination.Addr()), Sport: be16(c.source.Port()), Dport: be16(c.destination.Port()),
		Proto: c.proto, Direction: uint8(bpf.PelagoDirectionDIRECTION_IN),
	}
	if out {
		key.Direction = uint8(bpf.PelagoDirectionDIRECTION_OUT)
	}
	return key
}

// step does something, most often sending a packet, of a flow or another one.
func (m *model) step(t *testing.T) (what string, err error) {
	flags := []uint8{SYN, SYN, SYN, ACK, ACK, SYN | ACK, FIN | ACK, RST | ACK}[m.rng.IntN(8)]
	// below the quota of mappings
	port := func(from ...uint16) uint16 { return from[m.rng.IntN(len(from))] + uint16(m.rng.IntN(24)) }
	switch n := m.rng.IntN(2000); {
	case n == 0:
		return "sweep", m.sweep(t)
	case n < 4:
		d := []time.Duration{time.Second, 3 * time.Second, 7 * time.Second, 13 * time.Second, 26 * time.Second, 40 * time.Second}[m.rng.IntN(6)]
		m.k.age(t, d)
		m.aged += d
		return fmt.Sprint("idle for ", d), nil
	case n < 1000 && len(m.flows) > 0:
		f := m.flows[m.rng.IntN(len(m.flows))]
		c, pod := f.opening, f.client
		if m.rng.IntN(2) == 0 {
			c, pod = f.shown.reverse(), !pod
		}
		return fmt.Sprintf("%s flags %#x pod %t", c, flags, pod), m.send(c, flags, pod)
	}
	var c connection
	c.proto = []uint8{ProtocolTCP, ProtocolTCP, ProtocolTCP, ProtocolUDP, ProtocolUDP, ProtocolICMP}[m.rng.IntN(6)]
	pod := m.rng.IntN(2) == 0
	if pod {
		c.source = netip.AddrPortFrom([]netip.Addr{ip("10.7.2.10"), ip("10.7.2.11")}[m.rng.IntN(2)], port(1270, 1525, 8070, 5340, 40000))
		c.destination = netip.AddrPortFrom(global(2, []byte{1, 20, 21}[m.rng.IntN(3)]), []uint16{80, 53, 5353, port(1024)}[m.rng.IntN(4)])
	} else {
		c.source = netip.AddrPortFrom(global(2, []byte{1, 20, 21}[m.rng.IntN(3)]), []uint16{80, 53, port(1024), port(1024)}[m.rng.IntN(4)])
		c.destination = netip.AddrPortFrom(global(1, []byte{1, 20, 20, 21, 22, 100, 100}[m.rng.IntN(7)]), []uint16{80, 53, port(1270), port(8070)}[m.rng.IntN(4)])
	}
	if c.proto == ProtocolICMP {
		c.destination = netip.AddrPortFrom(c.destination.Addr(), 0)
	}
	return fmt.Sprintf("%s flags %#x pod %t", c, flags, pod), m.send(c, flags, pod)
}

// The programs agree with a model over any sequence of packets, ageing and sweeps: which packets
// open a flow, how each is translated, when a flow may be removed and its port be given away, and
// what is left in the tables.
func TestModel(t *testing.T) {
	t.Run("dependent", func(t *testing.T) { runModel(t, false) })
	t.Run("mapped", func(t *testing.T) { runModel(t, true) })
}

func runModel(t *testing.T, mapped bool) {
	timers := loader.Timers{
		UDP: 30 * time.Second, UDPWellKnown: 6 * time.Second, ICMP: 12 * time.Second, TCPEstablished: 60 * time.Second,
		TCPTransitory: 24 * time.Second, ClosedFloor: 2 * time.Second, Unreplied: 4 * time.Second,
	}
	await.True(t, "the machine is up for longer than any entry is made old", func() bool { return uptime() > timers.TCPEstablished })
	k := loadTimers(t, timers, 1, 2)
	if mapped {
		k.Apply(t, mappedModel())
	}
	const length = 50_000
	for done := 0; done < *modelSteps; done += length {
		seed := *modelSeed + uint64(done/length)
		k.Flush(t)
		m := model{k: k, rng: rand.New(rand.NewPCG(seed, 0)), timers: timers, out: map[connection]*modelFlow{}, in: map[connection]*modelFlow{}, start: time.Now(), mapped: mapped, mappings: map[netip.AddrPort]*modelMapping{}}
		var trail []string
		most := 0
		for i := range min(length, *modelSteps-done) {
			what, err := m.step(t)
			if trail = append(trail, what); len(trail) > 40 {
				trail = trail[1:]
			}
			if err != nil || t.Failed() {
				for _, s := range trail {
					t.Log(s)
				}
				t.Fatalf("seed %d, step %d: %v", seed, i, err)
			}
			most = max(most, len(m.flows))
		}
		if err := m.sweep(t); err != nil {
			t.Fatalf("seed %d, at the end: %v", seed, err)
		}
		if most < 100 {
			t.Errorf("seed %d: %d flows at most", seed, most)
		}
	}
}
