package packet

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/await"
)

// The edge steers around a gateway that does not answer, or that reports it cannot pass the packet
// on, and comes back to it. If all are bad, all are used.
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
	// before returns where flows leave a node to which both gateways have answered and whose paths
	// bad then changes. It repeats until none of alive was given up meanwhile: that takes 450 ms,
	// and a busy machine may take longer for 200 packets.
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
	na.delivered(t, na.arrive(t, overlay(1, 1, 2, clientTCP(SYN).Encode())))
	only("packets come from gateway 1, replies do not", four)
	good(na, one, nil)
	shared("gateway 1 answers again")
	good(na, four, func(b *body) { b.Unreachable[0] = 1 << 2 })
	only("gateway 4 does not reach cluster 2", one)
	good(na, four, func(b *body) { b.Unreachable[0] = 1 << 3 })
	shared("gateway 4 does not reach another cluster")
	good(na, four, func(b *body) { b.Lossy[0] = 1 << 2 })
	only("gateway 4 reaches cluster 2 by paths that lose packets", one)
	good(na, one, func(b *body) { b.Unreachable[0] = 1 << 2 })
	only("gateway 4 reaches it by such paths, gateway 1 not at all", four)
	good(na, one, func(b *body) { b.Lossy[0] = 1 << 2 })
	shared("both reach it by such paths")
	good(na, one, nil)
	good(na, four, func(b *body) { b.Lossy[0] = 1 << 3 })
	shared("gateway 4 reaches another cluster by such paths")
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
	na.awaitDead(t, one)
	longAndShort := func(k *Kernel) {
		k.miss(t, one)
		k.awaitDead(t, one)
		good(k, four, nil)
		k.miss(t, four)
	}
	if got := before(longAndShort, four); got[four] != 200 {
		t.Errorf("gateway 1 has been silent for long, gateway 4 for a moment: flows leave by %v; want all by %s", got, four)
	}
	na.miss(t, four)
	na.awaitDead(t, four)
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
		for i := range 120 {
			if o := na.sendProbe(t, peer, 0); i%4 > 0 {
				na.arrive(t, answer(t, o, nil))
			}
		}
		if p := na.path(t, peer); p.Suspect() || p.Loss < 0.15 || !p.Degraded() || !p.Lossy {
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

// With one gateway for all flows everybody picks the same, which dataplane.First knows, and another
// when it fails.
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

// A gateway steers around a remote gateway; if it reaches none, its sibling is tried once, and the
// nodes are notified.
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

// Two remote gateways that share a slot of `path_lines` are told apart: each packet reloads the line.
func TestSharedPathLine(t *testing.T) { bothHooks(t, throughSharedPathLine) }

func throughSharedPathLine(t *testing.T) {
	const first, second = 167, 193
	ga := load(t, 1, 1)
	half := ga.PathLines.MaxEntries() / 2
	if a, b := dataplane.Mix(2, first)%half, dataplane.Mix(2, second)%half; a != b {
		t.Fatalf("slots %d and %d; want gateways that share one", a, b)
	}
	s := state(1, 1)
	s.Clusters[2] = nil
	remote := []netip.Addr{nodeIP(2, first), nodeIP(2, second)}
	for i, node := range []uint16{first, second} {
		s.Clusters[2] = append(s.Clusters[2], dataplane.RemoteGateway{Hop: hop(remote[i]), Node: node, Port: cablePort})
		s.Peers[remote[i]] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: node}
	}
	ga.Apply(t, s)
	reply := func(peer netip.Addr) { ga.arrive(t, answer(t, ga.sendProbe(t, peer, 0), nil)) }
	out := func() map[netip.Addr]int {
		t.Helper()
		got := map[netip.Addr]int{}
		for i := range 100 {
			p := udpPacket("x", from("120.1.0.1"), func(p *Packet) { p.UDP.Source = blockOf(2) + uint16(i) })
			got[ga.sent(t, ga.arrive(t, overlay(1, 2, 1, p.Encode())), "uplink-in switched").Destination]++
		}
		return got
	}
	reply(remote[0])
	reply(remote[1])
	for i, dead := range remote {
		if got := out(); got[remote[0]] < 25 || got[remote[1]] < 25 {
			t.Fatalf("two good gateways: %v", got)
		}
		ga.miss(t, dead)
		if got := out(); got[remote[1-i]] != 100 {
			t.Errorf("%s is suspect: %v; want all to the other", dead, got)
		}
		reply(dead)
	}
}

// A node that gets no answers is reached by way of the sibling. A prober that is late is no reason.
func TestNodeWithoutReplies(t *testing.T) { bothHooks(t, throughNodeWithoutReplies) }

func throughNodeWithoutReplies(t *testing.T) {
	ga := load(t, 1, 1)
	answerFor3 := cable(2, 1, 1, answerTo(3).Encode())
	hear := func(next uint32, flags uint8) {
		ga.arrive(t, overlay(1, 3, 1, body{Nonce: 1, NextProbe: next}.encode(), func(o *Overlay) { o.Type, o.Flags = Probe, flags }))
	}
	ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(1, 4), 0), nil))
	for _, tt := range []struct {
		next  uint32
		flags uint8
		want  string
		to    netip.Addr
	}{
		{0, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, 0, "uplink-in switched", nodeIP(1, 3)},
		{10, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, 0, "uplink-in switched", nodeIP(1, 3)}, {1000, probeNoReply, "uplink-in bounced", nodeIP(1, 4)},
	} {
		hear(tt.next, tt.flags)
		heard := time.Now()
		await.True(t, "the announced 10 ms are over by far, the 1,000 ms are not", func() bool { return time.Since(heard) > 60*time.Millisecond })
		ga.arrive(t, answer(t, ga.sendProbe(t, nodeIP(1, 4), 0), nil))
		if o := ga.sent(t, ga.arrive(t, answerFor3), tt.want); o.Destination != tt.to {
			t.Errorf("next %d ms, flags %d: to %s; want %s", tt.next, tt.flags, o.Destination, tt.to)
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

// A node whose daemon is dead announces no next probe: the gateway's program probes it next to its
// packets.
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
	hear(probeNoReply)
	goes("it gets no answers", "uplink-in bounced", sibling)
	hear(0)
	goes("it gets answers", "uplink-in switched", node)
}

// Packets that open a flow to a service avoid its dead nodes. Packets of a TCP connection stay with
// its node; those of other flows leave it if no gateway can reach it.
func TestDeadNode(t *testing.T) { bothHooks(t, throughDeadNode) }

func throughDeadNode(t *testing.T) {
	ga := load(t, 1, 1)
	sibling := nodeIP(1, 4)
	die := func(peers ...netip.Addr) {
		t.Helper()
		ga.answered(t, func(p *bpf.PelagoPath) { p.Answered = p.Sequence })
		for _, peer := range peers {
			var p bpf.PelagoPath
			if err := ga.Paths.Lookup(peer.As4(), &p); err != nil {
				t.Fatal(err)
			}
			p.Sequence = p.Answered + 20
			for i := range p.Ring {
				p.Ring[i].Sent = 1
			}
			ga.putPath(t, peer.As4(), p)
		}
	}
	goes := func(what string, o Overlay) map[netip.Addr]int {
		t.Helper()
		got, before := map[netip.Addr]int{}, tables(t, ga)
		for port := range uint16(100) {
			p := decode(t, o.Inner)
			ports(2000+port, map[bool]uint16{true: 80, false: 53}[p.TCP != nil])(&p)
			o.Inner = p.Encode()
			r := ga.arrive(t, o)
			if r.Action != Redirect {
				t.Fatalf("%s: %s", what, r.Verdict)
			}
			next, err := DecodeOverlay(r.Frame)
			if err != nil {
				t.Fatal(err)
			}
			got[next.Destination]++
			opens := p.TCP == nil || p.TCP.Flags == SYN
			if step := before.Receive(traced(p), headerOf(o)); opens && (step.Header == nil || *step.Header != headerOf(next)) {
				t.Errorf("%s: sent with %+v, traced as %+v", what, headerOf(next), step)
			}
		}
		return got
	}
	syn, ack, datagram := cable(2, 1, 1, clientTCP(SYN).Encode()), cable(2, 1, 1, clientTCP(ACK).Encode()), cable(2, 1, 1, clientUDP().Encode())
	known := func(o Overlay) Overlay { o.Node = 3; return o }
	bounced := overlay(1, 4, 1, clientTCP(SYN).Encode(), func(o *Overlay) { o.Flags = Bounced | Switch })
	only := func(what string, o Overlay, want netip.Addr) {
		t.Helper()
		if got := goes(what, o); got[want] != 100 {
			t.Errorf("%s: to %v; want all to %s", what, got, want)
		}
	}
	die()
	if got := goes("SYN", syn); got[nodeIP(1, 2)] < 25 || got[nodeIP(1, 3)] < 25 {
		t.Fatalf("both nodes answer: %v", got)
	}
	die(nodeIP(1, 3))
	only("SYN", syn, nodeIP(1, 2))
	only("datagram", datagram, nodeIP(1, 2))
	only("SYN that the sibling has bounced", bounced, nodeIP(1, 2))
	only("SYN sent again of a flow at node 3", known(syn), sibling)
	only("segment of a flow at node 3", known(ack), sibling)
	only("datagram of a flow at node 3", known(datagram), sibling)
	bouncedDatagram := bounced
	bouncedDatagram.Inner = clientUDP().Encode()
	only("datagram of a flow at node 3 that the sibling has bounced", known(bouncedDatagram), nodeIP(1, 2))
	if got := goes("segment", ack); got[nodeIP(1, 2)] < 25 || got[sibling] < 25 {
		t.Errorf("segments of flows whose node is not known: %v; want them where the table leads", got)
	}
	die(nodeIP(1, 2), nodeIP(1, 3))
	only("SYN, and no node answers", syn, sibling)
	die(nodeIP(1, 3), sibling)
	only("datagram of a flow at node 3, and no sibling answers", known(datagram), nodeIP(1, 2))
	only("segment of a flow at node 3, and no sibling answers", known(ack), nodeIP(1, 3))
	die(nodeIP(1, 2), nodeIP(1, 3), sibling)
	if got := goes("SYN", syn); got[nodeIP(1, 2)] < 25 || got[nodeIP(1, 3)] < 25 {
		t.Errorf("no node and no sibling answers: %v; want it tried", got)
	}
	// One that leaves still delivers: it is used as before.
	die()
	var leaving bpf.PelagoPath
	if err := ga.Paths.Lookup(nodeIP(1, 3).As4(), &leaving); err != nil {
		t.Fatal(err)
	}
	leaving.Probed, leaving.Ready = 1, 0
	ga.putPath(t, nodeIP(1, 3).As4(), leaving)
	if got := goes("SYN, and node 3 leaves", syn); got[nodeIP(1, 2)] < 25 || got[sibling] < 25 {
		t.Errorf("node 3 leaves: %v; want its flows bounced", got)
	}
	leaving.Probed = 0
	ga.putPath(t, nodeIP(1, 3).As4(), leaving)
	// The dead node has most of the pods.
	s := state(1, 1)
	s.Services[own(20, 80)] = dataplane.Service{Table: dataplane.Maglev(map[uint16]int{2: 1, 3: 4})}
	ga.Apply(t, s)
	die(nodeIP(1, 3))
	only("SYN, and the dead node has four of five pods", syn, nodeIP(1, 2))
	// The gateway's own pods were picked, and are not ready.
	s.Services[own(20, 80)] = dataplane.Service{Table: dataplane.Maglev(map[uint16]int{1: 2, 2: 1, 3: 1})}
	ga.Apply(t, s)
	die(nodeIP(1, 3))
	only("SYN, and the gateway has no backend", syn, nodeIP(1, 2))
}
