package packet

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// Timers of seconds for minutes, so that a machine that has just booted has lived long enough.
// No test waits for them: age() makes flows older.
var testTimers = loader.Timers{
	UDP: 5 * time.Second, UDPWellKnown: 3 * time.Second, ICMP: 2 * time.Second, TCPEstablished: 20 * time.Second, TCPTransitory: 4 * time.Second, ClosedFloor: 2 * time.Second,
	Unreplied: 3 * time.Second,
}

// age makes every flow look d older, at most as old as the boot: an earlier time would be a future
// one.
func (k *Kernel) age(t testing.TB, d time.Duration) {
	t.Helper()
	for key, f := range k.entries(t) {
		f.Seen -= min(f.Seen, uint64(d))
		f.State -= min(f.State>>1, uint64(d)) << 1
		if err := k.Flows.Put(key, f); err != nil {
			t.Fatal(err)
		}
	}
}

// conversations lead a flow of pod 10.7.2.10 into each state.
func conversations() map[string][]Packet {
	answerTCP := func(flags uint8) Packet {
		return Packet{Source: global(2, 20), Destination: global(1, 1), TTL: 60, TCP: &TCP{Source: 80, Flags: flags, Ack: 1}}
	}
	answerUDP := Packet{Source: global(2, 20), Destination: global(1, 1), TTL: 60, UDP: &UDP{Source: 53}}
	return map[string][]Packet{
		"echo":                {echoPacket(Echo, to(global(2, 20)))},
		"udp":                 {udpPacket("x")},
		"udp answered":        {udpPacket("x"), answerUDP},
		"udp to a high port":  {udpPacket("x", ports(40000, 5353))},
		"udp to it, answered": {udpPacket("x", ports(40000, 5353)), answerUDP.with(func(p *Packet) { p.UDP.Source = 5353 })},
		"tcp SYN only":        {tcpPacket(SYN)},
		"tcp refused":         {tcpPacket(SYN), answerTCP(RST | ACK)},
		"tcp SYN answered":    {tcpPacket(SYN), answerTCP(SYN | ACK)},
		"tcp established":     {tcpPacket(SYN), answerTCP(SYN | ACK), tcpPacket(ACK)},
		"tcp half closed":     {tcpPacket(SYN), answerTCP(SYN | ACK), tcpPacket(ACK), tcpPacket(FIN | ACK)},
		"tcp closed":          {tcpPacket(SYN), answerTCP(SYN | ACK), tcpPacket(ACK), tcpPacket(FIN | ACK), answerTCP(FIN | ACK)},
		"tcp reset by client": {tcpPacket(SYN), answerTCP(SYN | ACK), tcpPacket(ACK), tcpPacket(RST | ACK)},
		"tcp reset by server": {tcpPacket(SYN), answerTCP(SYN | ACK), tcpPacket(ACK), answerTCP(RST | ACK)},
	}
}

// converse plays a conversation; answers are from the overlay, to the outside port of the flow.
func (k *Kernel) converse(t testing.TB, packets []Packet) {
	t.Helper()
	var port uint16
	for _, p := range packets {
		if p.Source == ip("10.7.2.10") {
			inner := decode(t, k.sent(t, k.fromPod(t, p), "edge-out sent").Inner)
			port, _ = inner.ports()
			continue
		}
		s, _ := p.ports()
		ports(s, port)(&p)
		k.delivered(t, k.arrive(t, overlay(1, 1, 2, p.Encode())))
	}
}

// How long a flow stays idle in each state before a sweep may remove it, and before a new flow that
// needs its port may. UDP: RFC 4787 REQ-5; TCP: RFC 5382 REQ-5 and RFC 7857 section 2; ICMP: RFC
// 5508 REQ-2.
func TestTimers(t *testing.T) {
	k := loadTimers(t, testTimers, 1, 2)
	type timers struct{ sweep, pressure time.Duration }
	transitory, established := testTimers.TCPTransitory, testTimers.TCPEstablished
	want := map[string]timers{
		"echo":                {testTimers.ICMP, testTimers.ICMP},
		"udp":                 {testTimers.UDP, testTimers.UDPWellKnown},
		"udp answered":        {testTimers.UDP, testTimers.UDPWellKnown},
		"udp to a high port":  {testTimers.UDP, testTimers.Unreplied},
		"udp to it, answered": {testTimers.UDP, testTimers.UDP},
		"tcp SYN only":        {transitory, testTimers.Unreplied},
		"tcp refused":         {transitory, testTimers.ClosedFloor},
		"tcp SYN answered":    {transitory, testTimers.Unreplied},
		"tcp established":     {established, established},
		"tcp half closed":     {established, established},
		"tcp closed":          {transitory, testTimers.ClosedFloor},
		"tcp reset by client": {transitory, testTimers.ClosedFloor},
		"tcp reset by server": {transitory, testTimers.ClosedFloor},
	}
	const margin = 900 * time.Millisecond // the test's own run time on a busy machine
	for name, packets := range conversations() {
		t.Run(name, func(t *testing.T) {
			gone := func(age time.Duration, test func() int) bool {
				k.Flush(t)
				k.converse(t, packets)
				k.age(t, age)
				return test() > 0
			}
			sweep := func() int {
				stats, err := k.Loader.Sweep(0)
				if err != nil {
					t.Fatal(err)
				}
				if left := k.checkTable(t); left+stats.Removed != 1 || stats.Flows != 1 {
					t.Errorf("%+v of 1 flow, and %d are left", stats, left)
				}
				return stats.Removed
			}
			// Other pods, each with few flows, claim the same port towards the same endpoint until
			// one gets it.
			claim := func() int {
				for i := range uint16(300) {
					p := packets[0].with(from(fmt.Sprintf("10.7.2.%d", 11+i/30)))
					if p.ICMP != nil {
						p.ICMP = EchoHeader(Echo, 30000+i, 1)
					} else {
						_, d := p.ports()
						ports(30000+i, d)(&p)
					}
					if _, err := k.TryRun(k.EdgeOut, Frame(p.Encode()), pod); err != nil {
						t.Fatal(err)
					}
				}
				k.checkTable(t)
				flows := 0
				for _, f := range k.list(t) {
					if f.Pod == ip("10.7.2.10") {
						flows++
					}
				}
				return 1 - flows
			}
			others := state(1, 2)
			for n := range 10 {
				others.Sources[ip(fmt.Sprintf("10.7.2.%d", 11+n))] = dataplane.Source{Egress: global(1, 1), Ifindex: podDevice}
			}
			k.Apply(t, others)
			w := want[name]
			if gone(w.sweep-margin, sweep) {
				t.Errorf("swept before %s", w.sweep)
			}
			if !gone(w.sweep+margin, sweep) {
				t.Errorf("not swept after %s", w.sweep)
			}
			if gone(w.pressure-margin, claim) {
				t.Errorf("its port was given away before %s", w.pressure)
			}
			if !gone(w.pressure+margin, claim) {
				t.Errorf("its port was not given away after %s", w.pressure)
			}
		})
	}
}

// The timers that are built in.
func TestDefaultTimers(t *testing.T) {
	spec, err := bpf.LoadPelago()
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]time.Duration{
		bpf.PelagoVarUdpTimeout: 5 * time.Minute, bpf.PelagoVarUdpKnownTimeout: 30 * time.Second, bpf.PelagoVarIcmpTimeout: time.Minute,
		bpf.PelagoVarTcpEstablishedTimeout: 2*time.Hour + 4*time.Minute, bpf.PelagoVarTcpTransitoryTimeout: 4 * time.Minute,
		bpf.PelagoVarClosedFloor: 2 * time.Second,
	} {
		var got uint64
		if err := spec.Variables[name].Get(&got); err != nil || time.Duration(got) != want {
			t.Errorf("%s is %s, %v; want %s", name, time.Duration(got), err, want)
		}
	}
}

// Traffic of either direction keeps a flow.
func TestTrafficRefreshes(t *testing.T) {
	k := load(t, 1, 2)
	for name, packets := range conversations() {
		k.Flush(t)
		k.converse(t, packets[:1])
		port, _ := decode(t, k.sent(t, k.fromPod(t, packets[0]), "edge-out sent").Inner).ports()
		back := packets[0].answer().with(to(global(1, 1)))
		s, _ := back.ports()
		if back.ICMP != nil {
			back.ICMP = EchoHeader(EchoReply, port, 1)
		} else {
			ports(s, port)(&back)
		}
		for direction, send := range map[string]func(){
			"out": func() { k.fromPod(t, packets[0]) },
			"in":  func() { k.delivered(t, k.arrive(t, overlay(1, 1, 2, back.Encode()))) },
		} {
			k.age(t, 10*time.Second)
			send()
			if idle := k.list(t)[0].Idle; idle > time.Second {
				t.Errorf("%s: after traffic %s the flow is idle for %s", name, direction, idle)
			}
		}
	}
}

// If the table is full of expired flows, new flows replace them, oldest first, without any daemon.
func TestFullTableMakesRoom(t *testing.T) {
	k := loadTimers(t, loader.Timers{ClosedFloor: time.Nanosecond}, 1, 2)
	k.fill(t, false)
	for port := uint16(2000); port < 2100; port++ {
		if r := k.fromPod(t, tcpPacket(SYN, ports(port, 80))); r.Verdict != "edge-out sent" {
			t.Fatalf("flow %d: %s", port-2000, r.Verdict)
		}
	}
	for port := uint16(2000); port < 2100; port++ {
		p := clientTCP(SYN, to(global(1, 21)), ports(port, 80))
		if r := k.arrive(t, overlay(1, 1, 2, p.Encode())); r.Verdict != "uplink-in delivered" {
			t.Fatalf("server's flow %d: %s", port-2000, r.Verdict)
		}
	}
	entries := k.entries(t)
	for i := range 50 {
		var key bpf.PelagoFlowKey
		if err := k.Slots.Lookup(uint32(i), &key); err != nil {
			t.Fatal(err)
		}
		if _, ok := entries[key]; ok && key.Saddr == be32(ip("10.7.2.99")) {
			t.Errorf("the flow of slot %d is still there, a younger one went", i)
		}
	}
}

// A source or cluster has no more flows than are free, so that few do not fill the table and one
// with fewer flows finds room. Beyond that, flows that may go under pressure make room.
func TestFlowShares(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	s.Sources[ip("10.7.2.11")] = s.Sources[ip("10.7.2.10")]
	s.Externals = map[netip.Prefix]dataplane.Source{netip.MustParsePrefix("192.0.2.0/24"): {Egress: global(1, 1), Ifindex: podDevice, External: true}}
	k.Apply(t, s)
	out := func(change ...func(*Packet)) func() string {
		return func() string { return k.fromPod(t, udpPacket("x").with(change...)).Verdict }
	}
	port := uint16(2000)
	in := func() string {
		port++
		return k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 21)), ports(port, 80)).Encode())).Verdict
	}
	pod := bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}
	const free = 1000
	for _, tt := range []struct {
		name string
		key  bpf.PelagoUsageKey
		has  int64
		open func() string
		want string
	}{
		{"a pod with fewer flows than are free", pod, free - 1, out(), "edge-out sent"},
		{"with as many", pod, free, out(), "edge-out drop-quota"},
		{"another pod of its node", pod, free, out(from("10.7.2.11")), "edge-out sent"},
		{"a cluster with fewer flows than are free", bpf.PelagoUsageKey{Cluster: 2}, free - 1, in, "uplink-in delivered"},
		{"with as many flows", bpf.PelagoUsageKey{Cluster: 2}, free, in, "uplink-in drop-quota"},
		{"hosts outside the cluster with fewer", bpf.PelagoUsageKey{Cluster: 1 << 17}, free - 1, out(from("192.0.2.7")), "edge-out sent"},
		{"with as many as are free", bpf.PelagoUsageKey{Cluster: 1 << 17}, free, out(from("192.0.2.7")), "edge-out drop-quota"},
	} {
		k.Flush(t)
		k.useUp(t, bpf.PelagoUsageKey{}, maxFlows-free)
		k.useUp(t, tt.key, tt.has)
		if got := tt.open(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
	k.Flush(t)
	var hand uint64
	if err := k.Hand.Lookup(uint32(0), &hand); err != nil {
		t.Fatal(err)
	}
	k.sent(t, k.fromPod(t, udpPacket("x", from("10.7.2.11"))), "edge-out sent")
	k.age(t, time.Minute)                               // without a reply for longer than 10 s
	if err := k.Hand.Put(uint32(0), hand); err != nil { // it has gone round
		t.Fatal(err)
	}
	k.useUp(t, bpf.PelagoUsageKey{}, maxFlows-free)
	k.useUp(t, pod, free)
	if got := out()(); got != "edge-out sent" {
		t.Errorf("with a flow in the table that may go: %s", got)
	}
	if got := out(ports(40001, 53))(); got != "edge-out drop-quota" {
		t.Errorf("once it is evicted: %s", got)
	}
	if got := k.flows(t); got != 1 {
		t.Errorf("%d flows, want the new one alone", got)
	}
}

// The sweep corrects the count of all flows, which programs of earlier versions do not keep, and
// leaves it alone where packets may have changed it meanwhile.
func TestSweepCountsAllFlows(t *testing.T) {
	k := load(t, 1, 2)
	k.converse(t, []Packet{udpPacket("x"), tcpPacket(SYN)})
	const near = maxFlows / 16
	for counted, want := range map[int64]int64{near: near, 2 - near: 2 - near, near + 3: 2, 1 - near: 2} {
		k.useUp(t, bpf.PelagoUsageKey{}, counted)
		if _, err := k.Loader.Sweep(time.Hour); err != nil {
			t.Fatal(err)
		}
		if got := k.usage(t)[bpf.PelagoUsageKey{}]; got != want {
			t.Errorf("counted %d: %d after the sweep, want %d", counted, got, want)
		}
	}
	k.age(t, time.Hour)
	k.useUp(t, bpf.PelagoUsageKey{}, maxFlows)
	if _, err := k.Loader.Sweep(time.Minute); err != nil {
		t.Fatal(err)
	}
	if got := k.checkTable(t); got != 0 {
		t.Errorf("%d flows are left", got)
	}
}

// An expired flow is removed when the hand of the ring passes it, even if nobody needs its port.
func TestRingFreesExpired(t *testing.T) {
	k := loadTimers(t, testTimers, 1, 2)
	var hand uint64
	if err := k.Hand.Lookup(uint32(0), &hand); err != nil {
		t.Fatal(err)
	}
	k.converse(t, []Packet{udpPacket("old"), udpPacket("young", ports(40001, 53))})
	if got := k.flows(t); got != 2 {
		t.Fatalf("%d flows; want 2", got)
	}
	for key, f := range k.entries(t) {
		if f.Daddr == be32(ip("10.7.2.10")) && f.Dport == be16(40000) || key.Sport == be16(40000) {
			f.Seen -= uint64(time.Minute)
			if err := k.Flows.Put(key, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The hand has gone round.
	if err := k.Hand.Put(uint32(0), hand); err != nil {
		t.Fatal(err)
	}
	k.converse(t, []Packet{tcpPacket(SYN)})
	k.converse(t, []Packet{tcpPacket(SYN, ports(40002, 80))})
	left := map[string]bool{}
	for _, f := range k.list(t) {
		left[f.Protocol+" "+f.Opening.Source.String()] = true
	}
	want := map[string]bool{"udp 10.7.2.10:40001": true, "tcp 10.7.2.10:40000": true, "tcp 10.7.2.10:40002": true}
	wantEqual(t, "flows", want, left)
	k.checkTable(t)
}

// The first half of a flow that is just being opened is no leftover; one that was left behind goes
// in its time.
func TestHalfOpenedFlow(t *testing.T) {
	k := loadTimers(t, testTimers, 1, 2)
	half := func(age time.Duration) {
		k.Flush(t)
		seen := uint64(uptime() - age)
		for port := blockOf(2); port < blockOf(3); port++ {
			key := bpf.PelagoFlowKey{
				Saddr: be32(global(2, 20)), Daddr: be32(global(1, 1)), Sport: be16(53), Dport: be16(port), Proto: ProtocolUDP,
				Direction: uint8(bpf.PelagoDirectionDIRECTION_IN),
			}
			f := bpf.PelagoFlow{
				State: seen << 1, Seen: seen, Saddr: key.Saddr, Daddr: be32(ip("10.7.2.99")), Sport: key.Sport, Dport: be16(port),
				Role: uint8(bpf.PelagoFlowRoleFLOW_CLIENT),
			}
			if err := k.Flows.Put(key, f); err != nil {
				t.Fatal(err)
			}
		}
	}
	half(0)
	if r := k.fromPod(t, udpPacket("x")); r.Verdict != "edge-out drop-ports-exhausted" {
		t.Errorf("while others open flows on every port: %s", r.Verdict)
	}
	half(time.Minute)
	if r := k.fromPod(t, udpPacket("x")); r.Verdict != "edge-out sent" {
		t.Errorf("where others began to and never ended: %s", r.Verdict)
	}
	stats, err := k.Loader.Sweep(0)
	if err != nil || stats.Removed != 255 || stats.Flows != 1 {
		t.Errorf("sweep: %+v, %v; want the 255 leftovers removed", stats, err)
	}
	k.checkTable(t)
}

// An entry whose removal the kernel has refused goes a second later: by a sweep, a purge, or the
// next packet of its tuple. Sooner its remover may still be at work.
func TestRefusedRemoval(t *testing.T) {
	k := load(t, 1, 2)
	fresh := func(k *Kernel) bool { return k.fromPod(t, udpPacket("x")).Verdict == "edge-out sent" }
	for name, again := range map[string]func(*Kernel) bool{
		"packet": fresh,
		"sweep": func(k *Kernel) bool {
			stats, err := k.Loader.Sweep(0)
			return err == nil && stats.Removed == 1 && len(k.entries(t)) == 0
		},
		"purge": func(k *Kernel) bool {
			removed, err := k.Loader.PurgeFunc(equals(ip("10.7.2.10")))
			return err == nil && removed == 1 && len(k.entries(t)) == 0
		},
	} {
		k.Flush(t)
		k.converse(t, []Packet{udpPacket("x")})
		refuse := func(age time.Duration) {
			for key, f := range k.entries(t) {
				if f.Primary == 0 {
					if err := k.Flows.Delete(key); err != nil {
						t.Fatal(err)
					}
					continue
				}
				f.State |= 1 // dying
				f.Seen = uint64(uptime() - age)
				if err := k.Flows.Put(key, f); err != nil {
					t.Fatal(err)
				}
			}
		}
		refuse(-time.Hour)
		if again(k) {
			t.Errorf("%s: the entry is removed at once", name)
		}
		refuse(2 * time.Second)
		if !again(k) {
			t.Errorf("%s: the entry is not removed after two seconds", name)
		}
		if name != "packet" && !fresh(k) {
			t.Errorf("%s: the tuple is not free", name)
		}
	}
}

// Purge removes the flows of an address in both roles, and no others.
func TestPurge(t *testing.T) {
	k := load(t, 1, 2)
	for port := uint16(2000); port < 2100; port++ { // more than a batch
		k.converse(t, []Packet{udpPacket("x", ports(port, 53))})
	}
	s := state(1, 2)
	s.Sources[ip("10.7.2.11")] = dataplane.Source{Egress: global(1, 1), Ifindex: podDevice}
	k.Apply(t, s)
	k.sent(t, k.fromPod(t, udpPacket("x", from("10.7.2.11"))), "edge-out sent")
	// to 10.7.2.10
	k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 21))).Encode())))
	// to 10.7.2.11
	k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 100)), ports(1500, 9)).Encode())))
	removed, err := k.Loader.PurgeFunc(equals(ip("10.7.2.10")))
	if err != nil || removed != 101 {
		t.Errorf("removed %d, %v; want 101", removed, err)
	}
	got := map[netip.Addr]int{}
	for _, f := range k.list(t) {
		got[f.Pod]++
	}
	wantEqual(t, "flows by pod", map[netip.Addr]int{ip("10.7.2.11"): 2}, got)
	k.checkTable(t)
	// The next tenant of the address gets nothing of what is still on its way.
	r := k.arrive(t, overlay(1, 1, 2, clientTCP(ACK, to(global(1, 21))).Encode()))
	if r.Verdict != "uplink-in drop-no-flow" {
		t.Errorf("a segment for the pod that is gone: %s", r.Verdict)
	}
}

// When a cluster loses a service its connections to it end, others stay.
func TestPurgeRevoked(t *testing.T) {
	k := load(t, 1, 2)
	toPod := func(p Packet) Result { return k.arrive(t, overlay(1, 1, 2, p.Encode())) }
	k.delivered(t, toPod(clientTCP(SYN)))
	k.delivered(t, toPod(clientTCP(SYN, to(global(1, 21)))))
	k.sent(t, k.fromPod(t, udpPacket("x", from("10.7.2.10"))), "edge-out sent")
	s := state(1, 2)
	exportTo(global(1, 20), 3)(&s)
	k.Apply(t, s)
	k.delivered(t, toPod(clientTCP(ACK))) // the flow is still there
	removed, err := k.Loader.PurgeRevoked(s.Audiences)
	if err != nil || removed != 1 {
		t.Errorf("removed %d, %v; want 1", removed, err)
	}
	if v := toPod(clientTCP(ACK)).Verdict; v != "uplink-in drop-not-exported" {
		t.Errorf("a segment of the connection: %s", v)
	}
	k.delivered(t, toPod(clientTCP(ACK, to(global(1, 21)))))
	k.checkTable(t)
}

// Flush removes the flows of a far cluster, by the maps of a running daemon, and no others.
func TestFlush(t *testing.T) {
	k := loadTimers(t, loader.Timers{}, 1, 2)
	pins := filepath.Join(pool.dir, fmt.Sprintf("node%d", pool.made))
	s := state(1, 2)
	s.Routes[netip.MustParsePrefix("120.3.0.0/24")] = 3
	k.Apply(t, s)
	k.sent(t, k.fromPod(t, udpPacket("x")), "edge-out sent")
	k.sent(t, k.fromPod(t, udpPacket("x", to(ip("120.3.0.20")))), "edge-out sent")
	maps, err := loader.OpenMaps(pins)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Flush(func(netip.Addr, uint16) bool { return true }); err == nil || !strings.Contains(err.Error(), "OpenSweeper") {
		t.Errorf("without the program: %v", err)
	}
	if err := maps.Close(); err != nil {
		t.Error(err)
	}
	sweeper, err := loader.OpenSweeper(pins)
	if err != nil {
		t.Fatal(err)
	}
	defer sweeper.Close()
	if removed, err := sweeper.Flush(func(_ netip.Addr, cluster uint16) bool { return cluster == 3 }); err != nil || removed != 1 {
		t.Errorf("removed %d, %v; want 1", removed, err)
	}
	for _, f := range k.list(t) {
		if f.Cluster != 2 {
			t.Errorf("left: %+v", f)
		}
	}
	k.checkTable(t)
}

// A sweep reports the kinds of flows, the number of flows of an egress IP to its most popular
// endpoint, and which blocks are in use.
func TestSweepStats(t *testing.T) {
	k := load(t, 1, 2)
	for port := uint16(2000); port < 2030; port++ {
		k.converse(t, []Packet{udpPacket("x", ports(port, 53))})
	}
	k.converse(t, []Packet{tcpPacket(SYN)})
	k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 21))).Encode())))
	got, err := k.Loader.Sweep(time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	want := loader.SweepStats{
		Flows: 32, Crowding: map[netip.Addr]int{global(1, 1): 30},
		Kinds: map[dump.FlowKind]int{
			{Role: dump.RoleClient, Protocol: "udp", State: "active"}: 30, {Role: dump.RoleClient, Protocol: "tcp", State: "opening"}: 1,
			{Role: dump.RoleServer, Protocol: "tcp", State: "opening"}: 1,
		},
		InUse: map[dataplane.BlockKey]bool{{Address: global(1, 1), First: blockOf(2)}: true},
	}
	wantEqual(t, "sweep", want, got)
}

// A SYN on the tuple of a connection that is over opens a new one with the same outside port, and
// requests a node again.
func TestReopen(t *testing.T) {
	f := newFleet(t, 2)
	request := func(flags uint8) Packet { return tcpPacket(flags, to(global(2, 21))) }
	legs, seen := f.there(t, request(SYN))
	port := decode(t, legs[0].Inner).TCP.Source
	f.back(t, seen.answer())
	f.there(t, request(ACK))
	fin := seen.answer().with(func(p *Packet) { p.TCP.Flags = FIN | ACK })
	f.back(t, fin)
	legs, _ = f.there(t, request(FIN|ACK))
	if legs[0].Node != 2 {
		t.Errorf("the last packet of the old connection names node %d; want 2", legs[0].Node)
	}
	if got := f.na.list(t)[0].State; got != "closed" {
		t.Errorf("after both FINs the flow is %s", got)
	}
	legs, seen = f.there(t, request(SYN))
	if got := decode(t, legs[0].Inner).TCP.Source; got != port || legs[0].Node != 0 {
		t.Errorf("the new connection leaves from port %d for node %d; want port %d and no node", got, legs[0].Node, port)
	}
	if got := f.na.list(t)[0].State; got != "opening" {
		t.Errorf("the flow is %s; want opening", got)
	}
	f.back(t, seen.answer())
	if legs, _ = f.there(t, request(ACK)); legs[0].Node != 2 {
		t.Errorf("the new connection names node %d after the answer; want 2", legs[0].Node)
	}
	for _, k := range []*Kernel{f.na, f.nb} {
		if n := k.checkTable(t); n != 1 || k.list(t)[0].State != "established" {
			t.Errorf("%d flows: %+v", n, k.list(t))
		}
	}
}

// Sources that are gone do not fill the table of counters: without a counter a source would have no
// quota.
func TestSweepRemovesIdleCounters(t *testing.T) {
	k := load(t, 1, 2)
	k.sent(t, k.fromPod(t, udpPacket("x")), "edge-out sent")
	live := k.usage(t)
	idle := bpf.PelagoUsageKey{Source: be32(ip("10.7.2.11"))} // a pod of this node
	k.useUp(t, idle, 0)
	for i := range uint32(1 << 15) {
		err := k.Usage.Put(bpf.PelagoUsageKey{Source: be32(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}))}, int64(0))
		if errors.Is(err, unix.E2BIG) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	late := bpf.PelagoUsageKey{Source: be32(ip("10.7.2.99"))}
	if err := k.Usage.Put(late, int64(0)); !errors.Is(err, unix.E2BIG) {
		t.Fatalf("the table is not full: %v", err)
	}
	if _, err := k.Loader.Sweep(time.Hour); err != nil {
		t.Fatal(err)
	}
	k.useUp(t, late, 3)
	live[late] = 3
	wantEqual(t, "counters", live, k.usage(t))
	var n int64
	if err := k.Usage.Lookup(idle, &n); err != nil {
		t.Errorf("the counter of a pod without flows: %v", err)
	}
}
