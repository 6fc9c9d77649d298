package packet

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// The ClusterSetIP of these tests has port 80/TCP and 53/UDP. The clusters 2 and 3 serve it at
// 120.2.0.20 and 120.3.0.20, cluster 1 itself at the ClusterIP 10.96.0.20.
var (
	clustersetIP = ip("243.1.0.20")
	backing      = ip("10.96.0.20")
)

func global3(n byte) netip.Addr { return netip.AddrFrom4([4]byte{120, 3, 0, n}) }

// balancing is node 2 of cluster 1, a pod of which has a device of its own, with the weights of
// clusters 1, 2 and 3.
func balancing(t testing.TB, weights [3]int, change ...func(*dataplane.State)) *Kernel {
	t.Helper()
	k := load(t, 1, 2)
	s := balancingState(weights, change...)
	k.Apply(t, s)
	for _, gateway := range s.Gateways {
		k.arrive(t, answer(t, k.sendProbe(t, nodeIP(1, int(gateway)), 0), nil))
	}
	return k
}

func balancingState(weights [3]int, change ...func(*dataplane.State)) dataplane.State {
	s := state(1, 2)
	s.Endpoints = map[netip.Addr]dataplane.Endpoint{ip("10.7.2.10"): {Ifindex: loopback, MAC: podMAC}}
	s.Routes[netip.MustParsePrefix("120.3.0.0/24")] = 3
	withVIP(&s, weights)
	for _, f := range change {
		f(&s)
	}
	return s
}

// withVIP adds the ClusterSetIP. A cluster with a negative weight does not serve it.
func withVIP(s *dataplane.State, weights [3]int) {
	v := dataplane.VIP{}
	var of []int
	for i, a := range []netip.Addr{backing, global(2, 20), global3(20)} {
		if weights[i] >= 0 {
			v.Targets, of = append(v.Targets, dataplane.VIPTarget{Cluster: uint16(i + 1), Address: a}), append(of, weights[i])
		}
	}
	v.Slots = dataplane.VIPTable(v.Targets, of)
	s.VIPRange = netip.MustParsePrefix("243.0.0.0/8")
	s.VIPs = map[dataplane.ServiceKey]dataplane.VIP{
		{Address: clustersetIP, Port: 80, Protocol: ProtocolTCP}: v, {Address: clustersetIP, Port: 53, Protocol: ProtocolUDP}: v,
	}
}

func affinity(seconds uint32) func(*dataplane.State) {
	return func(s *dataplane.State) {
		for key, v := range s.VIPs {
			v.Affinity = seconds
			s.VIPs[key] = v
		}
	}
}

// toVIP runs the programs that a packet of the pod meets, and returns where it goes: an address, or
// a verdict of edge_out.
func (k *Kernel) toVIP(t testing.TB, p Packet) (destination netip.Addr, verdict string) {
	t.Helper()
	r := k.Run(t, k.PodOut, Frame(p.Encode()), Context{})
	if r.Verdict == "pod-out own-service" {
		return decode(t, r.Frame[14:]).Destination, r.Verdict
	}
	if r.Action != Next || r.Verdict != "" {
		t.Fatalf("pod_out: action %d, verdict %q; want it passed on", r.Action, r.Verdict)
	}
	r = k.Run(t, k.EdgeOut, r.Frame, pod)
	if r.Verdict != "edge-out sent" {
		return netip.Addr{}, r.Verdict
	}
	return decode(t, k.sent(t, r, "edge-out sent").Inner).Destination, r.Verdict
}

// connections counts the clusters that serve n new connections.
func (k *Kernel) connections(t testing.TB, n int) map[netip.Addr]int {
	t.Helper()
	out := map[netip.Addr]int{}
	for i := range n {
		a, verdict := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(uint16(10000+i), 80)))
		if !a.IsValid() {
			t.Fatalf("connection %d: %s", i, verdict)
		}
		out[a]++
	}
	return out
}

// Connections to a ClusterSetIP are divided by weight, and all of one cluster's where the others
// have none.
func TestVIPWeights(t *testing.T) {
	const n = 100 // by cluster; more than one egress block has no ports for
	tests := []struct {
		name    string
		weights [3]int
		want    map[netip.Addr]float64
	}{
		{"own cluster first", [3]int{5, 0, 0}, map[netip.Addr]float64{backing: 1}},
		{"one remote cluster", [3]int{-1, 1, -1}, map[netip.Addr]float64{global(2, 20): 1}},
		{"three to one", [3]int{-1, 3, 1}, map[netip.Addr]float64{global(2, 20): 0.75, global3(20): 0.25}},
		{"all three", [3]int{2, 1, 1}, map[netip.Addr]float64{backing: 0.5, global(2, 20): 0.25, global3(20): 0.25}},
		{"no weight: any that is reached", [3]int{-1, 0, -1}, map[netip.Addr]float64{global(2, 20): 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := balancing(t, tt.weights)
			got := k.connections(t, n)
			for a, share := range tt.want {
				// Five standard deviations of a binomial share.
				if d := float64(got[a]) - n*share; d*d > 25*n*share*(1-share) {
					t.Errorf("%d of %d connections to %s; want a share of %.2f", got[a], n, a, share)
				}
			}
			if len(got) != len(tt.want) {
				t.Errorf("connections to %v; want them to %v", got, tt.want)
			}
			// Packets of a connection follow its first one.
			first, _ := k.toVIP(t, tcpPacket(ACK, to(clustersetIP), ports(10000, 80)))
			for range 5 {
				if a, v := k.toVIP(t, tcpPacket(ACK, to(clustersetIP), ports(10000, 80))); a != first {
					t.Errorf("a later packet goes to %s (%s); want %s", a, v, first)
				}
			}
		})
	}
}

// The table of a ClusterSetIP has shares in proportion to the weights, and a change of one weight
// moves few slots of the others.
func TestVIPTable(t *testing.T) {
	targets := []dataplane.VIPTarget{{Cluster: 1}, {Cluster: 2}, {Cluster: 3}}
	share := func(slots []uint8) (n [3]int) {
		for _, s := range slots {
			n[s]++
		}
		return n
	}
	before, after := dataplane.VIPTable(targets, []int{1, 3, 4}), dataplane.VIPTable(targets, []int{0, 3, 4})
	for i, w := range []int{1, 3, 4} {
		if got, want := share(before)[i], dataplane.VIPSlots*w/8; got < want-2 || got > want+2 {
			t.Errorf("cluster %d has %d slots; want %d", i+1, got, want)
		}
	}
	moved := 0
	for i := range before {
		if before[i] != 0 && before[i] != after[i] {
			moved++
		}
	}
	if moved > dataplane.VIPSlots/10 {
		t.Errorf("%d slots of the other clusters moved when one went", moved)
	}
	if got := dataplane.VIPTable(targets, []int{0, 0, 0}); got != nil {
		t.Errorf("without a weight: %v", got)
	}
}

// Replies come from the ClusterSetIP, whichever cluster serves it; so do ICMP errors and fragments.
func TestVIPReplies(t *testing.T) {
	t.Run("remote", func(t *testing.T) {
		k := balancing(t, [3]int{-1, 1, -1})
		for _, p := range []Packet{tcpPacket(SYN, to(clustersetIP)), udpPacket("q", to(clustersetIP))} {
			seen := decode(t, k.sent(t, k.fromPod(t, p), "edge-out sent").Inner)
			reply := seen.answer()
			got := k.delivered(t, k.arrive(t, overlay(1, 1, 2, reply.Encode())))
			want := p.answer()
			wantEqual(t, "source", clustersetIP, got.Source)
			wantEqual(t, "destination", want.Destination, got.Destination)
			s, d := got.ports()
			if ws, wd := want.ports(); s != ws || d != wd {
				t.Errorf("ports %d > %d; want %d > %d", s, d, ws, wd)
			}
			e := k.delivered(t, k.arrive(t, overlay(1, 1, 2, icmpError(seen, global(2, 20), seen.Source, 64).Encode())))
			quoted, err := Quoted(e.Payload)
			if err != nil || quoted.Destination != clustersetIP || quoted.Source != p.Source {
				t.Errorf("an ICMP error quotes %s > %s (%v); want what the pod has sent", quoted.Source, quoted.Destination, err)
			}
		}
	})
	t.Run("own service", func(t *testing.T) {
		k := balancing(t, [3]int{1, 0, 0})
		for _, p := range []Packet{
			tcpPacket(SYN, to(clustersetIP)), udpPacket("q", to(clustersetIP)),
			udpPacket(string(bytesOf(4000)), to(clustersetIP), func(p *Packet) { p.ID = 99 }),
		} {
			seen, back := carryOwn(t, k, p)
			wantEqual(t, "packet", atBacking(t, p, seen), seen)
			source, destination := p.ports()
			wantEqual(t, "reply", seen.answer().with(from(clustersetIP.String()), ports(destination, source)), back)
		}
		p := udpPacket("q", to(clustersetIP))
		seen, _ := carryOwn(t, k, p)
		r := k.Run(t, k.PodIn, Frame(icmpError(seen, nodeIP(1, 3), p.Source, 64).Encode()), Context{})
		quoted, err := Quoted(decode(t, r.Frame[14:]).Payload)
		if r.Verdict != "pod-in own-service" || err != nil || quoted.Destination != clustersetIP {
			t.Errorf("an ICMP error: %q, quotes a packet to %s (%v); want it to %s", r.Verdict, quoted.Destination, err, clustersetIP)
		}
	})
}

// atBacking is what this cluster's own service sees of a packet p to its ClusterSetIP, of which it has
// seen `seen`: the source port is one that no client draws; of one below 1024, one below 1024.
func atBacking(t testing.TB, p, seen Packet) Packet {
	t.Helper()
	source, destination := p.ports()
	got, _ := seen.ports()
	if source >= 1024 && (p.TCP != nil || p.UDP != nil) {
		if got < 1024 || got >= 32768 {
			t.Errorf("port %d is shown as %d; want one from 1024 to 32767", source, got)
		}
		source = got
	} else if p.TCP != nil || p.UDP != nil {
		source |= 512 // 512 to 1023
	}
	return numbered(p.with(to(backing), ports(source, destination)))
}

// A connection to the ClusterSetIP, and one to the ClusterIP or another ClusterSetIP of the same
// service, from the same port of the pod, have different tuples behind pod_out, and each gets its
// own answers.
func TestVIPSourcePort(t *testing.T) {
	other := ip("243.1.0.21")
	k := balancing(t, [3]int{1, -1, -1}, func(s *dataplane.State) {
		for key, v := range s.VIPs {
			key.Address = other
			s.VIPs[key] = v
		}
	})
	for name, p := range map[string]Packet{"tcp": tcpPacket(SYN, to(clustersetIP)), "udp": udpPacket("q", to(clustersetIP))} {
		t.Run(name, func(t *testing.T) {
			source, destination := p.ports()
			used := map[uint16]netip.Addr{source: backing}
			for _, vip := range []netip.Addr{clustersetIP, other} {
				p := p.with(to(vip))
				seen, back := carryOwn(t, k, p)
				wantEqual(t, "packet", atBacking(t, p, seen), seen)
				wantEqual(t, "reply", seen.answer().with(from(vip.String()), ports(destination, source)), back)
				port, _ := seen.ports()
				if same, ok := used[port]; ok {
					t.Errorf("connections to %s and %s have the same tuple", same, vip)
				}
				used[port] = vip
				// A later packet has the same port.
				again, _ := carryOwn(t, k, p)
				wantEqual(t, "the next packet", seen, again)
			}
			direct := Frame(p.with(to(backing)).answer().Encode())
			if r := k.Run(t, k.PodIn, direct, Context{}); r.Verdict != "" || r.Action != Next || string(r.Frame) != string(direct) {
				t.Errorf("an answer of the ClusterIP: action %d, verdict %q; want it unchanged", r.Action, r.Verdict)
			}
		})
	}
	// Many connections to one service have a port each.
	used := map[uint16]bool{}
	for port := uint16(33000); port < 34000; port++ {
		seen, _ := carryOwn(t, k, tcpPacket(SYN, to(clustersetIP), ports(port, 80)))
		used[seen.TCP.Source] = true
	}
	if len(used) != 1000 {
		t.Errorf("1000 connections have %d ports", len(used))
	}
	// A port below 1024 stays as it is.
	seen, _ := carryOwn(t, k, tcpPacket(SYN, to(clustersetIP), ports(700, 80)))
	if seen.TCP.Source != 700 {
		t.Errorf("port 700 is shown as %d", seen.TCP.Source)
	}
}

// A pod cannot send an ICMP error about a neighbour's connection in that one's name.
func TestVIPErrorOfAnotherPod(t *testing.T) {
	k := balancing(t, [3]int{1, 0, 0}, func(s *dataplane.State) {
		s.Endpoints[ip("10.7.2.11")] = dataplane.Endpoint{Ifindex: loopback, MAC: podMAC}
	})
	p := udpPacket("q", to(clustersetIP))
	carryOwn(t, k, p)
	complain := func(pod string) Result {
		return k.Run(t, k.PodOut, Frame(icmpError(p.answer(), ip(pod), clustersetIP, 8).Encode()), Context{})
	}
	if r := complain("10.7.2.10"); r.Verdict != "pod-out own-service" {
		t.Errorf("the client's error: %q", r.Verdict)
	}
	if r := complain("10.7.2.11"); r.Verdict != "" || decode(t, r.Frame[14:]).Source != ip("10.7.2.11") {
		t.Errorf("another pod's error: %q, from %s", r.Verdict, decode(t, r.Frame[14:]).Source)
	}
}

// numbered is a packet as it is decoded.
func numbered(p Packet) Packet {
	return p.with(func(p *Packet) { p.Protocol = p.protocol() })
}

// carryOwn takes a packet, in fragments if it is large, through pod_out, and its answer through
// pod_in.
func carryOwn(t *testing.T, k *Kernel, p Packet) (seen, back Packet) {
	t.Helper()
	through := func(p Packet, out bool) Packet {
		var pieces []Packet
		for _, piece := range Fragments(p.Encode(), 1450) {
			program, want := k.PodIn, "pod-in own-service"
			if out {
				program, want = k.PodOut, "pod-out own-service"
			}
			r := k.Run(t, program, Frame(piece), Context{})
			if r.Action != Next || r.Verdict != want {
				t.Fatalf("action %d, verdict %q; want %q", r.Action, r.Verdict, want)
			}
			pieces = append(pieces, decode(t, r.Frame[14:]))
		}
		if len(pieces) == 1 {
			return pieces[0]
		}
		return reassemble(t, pieces)
	}
	seen = through(p, true)
	return seen, through(seen.answer(), false)
}

// What is translated to the own service and back is what was sent, and other packets of the pod are
// left alone.
func TestVIPAnyPacket(t *testing.T) {
	k := balancing(t, [3]int{1, -1, -1})
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPacket(rt, ip("10.7.2.10"), clustersetIP)
		frame := Frame(p.Encode())
		out := k.Run(t, k.PodOut, frame, Context{})
		if out.Verdict == "" {
			if out.Action != Next || string(out.Frame) != string(frame) {
				rt.Fatalf("action %d; want it passed on unchanged", out.Action)
			}
			return
		}
		seen := decode(t, out.Frame[14:])
		wantEqual(t, "packet", atBacking(t, p, seen), seen)
		other := p.with(to(ip("10.96.0.21")))
		if r := k.Run(t, k.PodIn, Frame(other.answer().Encode()), Context{}); r.Verdict != "" || r.Action != Next {
			rt.Fatalf("a packet of another service to the pod: action %d, verdict %q", r.Action, r.Verdict)
		}
	})
}

// A cluster that is not reached gets no new connections, unless none is; established ones stay.
func TestVIPFollowsReach(t *testing.T) {
	k := balancing(t, [3]int{-1, 1, 1}, func(s *dataplane.State) { s.Gateways = []uint16{1} })
	say := func(clusters ...int) { k.away(t, clusters...) }
	say()
	before := k.connections(t, 40)
	if before[global(2, 20)] == 0 || before[global3(20)] == 0 {
		t.Fatalf("connections to %v; want both clusters", before)
	}
	// A SYN sent again, or a new connection on the port of one that was not answered, does not
	// follow it to a cluster that is away.
	syn := func(i int) netip.Addr {
		a, _ := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(uint16(10000+i), 80)))
		return a
	}
	former := map[int]netip.Addr{}
	for i := range 40 {
		former[i] = syn(i)
	}
	say(2)
	for i := range 40 {
		if a := syn(i); a != global3(20) {
			t.Fatalf("connection %d, unanswered by %s: with cluster 2 away its next SYN goes to %s", i, former[i], a)
		}
	}
	for i := range 40 {
		a, _ := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(uint16(20000+i), 80)))
		if a != global3(20) {
			t.Fatalf("with cluster 2 away a new connection goes to %s", a)
		}
	}
	say(2, 3)
	if a, v := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(30000, 80))); !a.IsValid() {
		t.Errorf("with both away: %s; want it sent all the same", v)
	}
	say(3)
	established := 0
	for i := range 40 {
		if a, _ := k.toVIP(t, tcpPacket(ACK, to(clustersetIP), ports(uint16(20000+i), 80))); a == global3(20) {
			established++
		}
	}
	if established != 40 {
		t.Errorf("%d of 40 connections stay with their cluster", established)
	}
}

// away has gateway 1 advertise which clusters it does not reach.
func (k *Kernel) away(t testing.TB, clusters ...int) {
	t.Helper()
	k.arrive(t, answer(t, k.sendProbe(t, nodeIP(1, 1), 0), func(b *body) {
		for _, c := range clusters {
			b.Unreachable[0] |= 1 << c
		}
	}))
}

// A flow keeps its cluster, port and node while no cluster is reached, and moves where another one
// is. An outage does not change the cluster of a client with session affinity either.
func TestVIPOutage(t *testing.T) {
	one := func(s *dataplane.State) { s.Gateways = []uint16{1} }
	k := balancing(t, [3]int{-1, 1, -1}, one, affinity(30))
	send := func(p Packet) Overlay {
		t.Helper()
		k.age(t, 2*time.Second) // an idle flow checks its cluster
		r := k.Run(t, k.PodOut, Frame(p.Encode()), Context{})
		if r.Verdict != "" {
			t.Fatalf("pod_out: %s", r.Verdict)
		}
		return k.sent(t, k.Run(t, k.EdgeOut, r.Frame, pod), "edge-out sent")
	}
	syn, datagram := tcpPacket(SYN, to(clustersetIP)), udpPacket("q", to(clustersetIP))
	handshake := send(syn).Inner
	o := send(datagram)
	k.delivered(t, k.arrive(t, overlay(1, 1, 2, decode(t, o.Inner).answer().Encode(), func(o *Overlay) { o.Node = 3 })))
	stays := func(what string) {
		t.Helper()
		got := send(datagram)
		wantEqual(t, what, decode(t, o.Inner), decode(t, got.Inner))
		if got.Node != 3 {
			t.Errorf("%s: to node %d; want 3, which has answered", what, got.Node)
		}
		wantEqual(t, what+": the SYN sent again", decode(t, handshake), decode(t, send(syn).Inner))
	}
	// new connections take cluster 3
	k.Apply(t, balancingState([3]int{-1, 0, 1}, one, affinity(30)))
	stays("both clusters are reached")
	k.away(t, 2, 3)
	stays("no cluster is reached")
	k.miss(t, nodeIP(1, 1))
	stays("no gateway answers")
	k.away(t)
	stays("after the outage")
	if a := decode(t, send(datagram.with(ports(40001, 53))).Inner).Destination; a != global(2, 20) {
		t.Errorf("after the outage a new connection of the client goes to %s; want %s, as its others", a, global(2, 20))
	}
	k.away(t, 2)
	for _, p := range []Packet{datagram, syn} {
		if a := decode(t, send(p).Inner).Destination; a != global3(20) {
			t.Errorf("only cluster 3 is reached: to %s", a)
		}
	}
}

// What vip_out has filled of a tuple before it failed does not get into the mapping that is opened
// next.
func TestVIPFailsBeforeMapping(t *testing.T) {
	k := balancing(t, [3]int{1, 0, -1}, func(s *dataplane.State) {
		src := s.Sources[ip("10.7.2.10")]
		src.Mapped = true
		s.Sources[ip("10.7.2.10")] = src
		s.Endpoints[ip("10.7.2.10")] = dataplane.Endpoint{Ifindex: loopback, MAC: podMAC, Datapath: dataplane.Fast}
	})
	k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}, 1<<40) // flows, not mappings
	k.Run(t, k.PodOut, Frame(udpPacket("q", to(clustersetIP)).Encode()), Context{})
	if n := k.mappings(t); n != 1 {
		t.Fatalf("%d mappings; want 1", n)
	}
	for key, f := range k.entries(t) {
		if f.Primary == 1 && (f.Daddr != 0 || f.Dport != 0) {
			t.Errorf("the mapping of %v is for one remote endpoint: %+v", key, f)
		}
	}
}

// The answer to a direct connection to the ClusterIP is not translated by a closed flow of the
// ClusterSetIP on the same tuple, which it has with a source port below 1024.
func TestVIPReplyAfterClose(t *testing.T) {
	request := func(flags uint8) Packet { return tcpPacket(flags, to(clustersetIP), ports(700, 80)) }
	answer := func(flags uint8) Packet {
		return tcpPacket(SYN, to(backing), ports(700, 80)).answer().with(func(p *Packet) { p.TCP.Flags = flags })
	}
	for name, tt := range map[string]struct {
		packets []Packet
		want    string // what becomes of a SYN-ACK then
	}{
		"opening":             {nil, "pod-in own-service"},
		"closed by both":      {[]Packet{answer(SYN | ACK), request(ACK), request(FIN | ACK), answer(FIN | ACK), request(ACK)}, ""},
		"reset by the client": {[]Packet{answer(SYN | ACK), request(RST | ACK)}, ""},
		"reset by the server": {[]Packet{answer(SYN | ACK), request(ACK), answer(RST)}, ""},
		"ACK and FIN lost":    {[]Packet{answer(SYN | ACK), request(FIN | ACK)}, "pod-in own-service"},
		"opened again":        {[]Packet{answer(SYN | ACK), request(RST | ACK), request(SYN)}, "pod-in own-service"},
	} {
		t.Run(name, func(t *testing.T) {
			k := balancing(t, [3]int{1, -1, -1})
			for _, p := range append([]Packet{request(SYN)}, tt.packets...) {
				program := k.PodOut
				if p.Source == backing {
					program = k.PodIn
				}
				if r := k.Run(t, program, Frame(p.Encode()), Context{}); !strings.HasSuffix(r.Verdict, "own-service") {
					t.Fatalf("%+v: %q", p, r.Verdict)
				}
			}
			frame := Frame(answer(SYN | ACK).Encode())
			r := k.Run(t, k.PodIn, frame, Context{})
			if r.Action != Next || r.Verdict != tt.want || tt.want == "" && string(r.Frame) != string(frame) {
				t.Errorf("action %d, verdict %q; want %q", r.Action, r.Verdict, tt.want)
			}
			if n, gone := k.checkTable(t), tt.want == ""; gone != (n == 0) {
				t.Errorf("%d flows are left", n)
			}
		})
	}
}

// A client with session affinity keeps its cluster until the timeout, or until the cluster goes.
func TestVIPAffinity(t *testing.T) {
	k := balancing(t, [3]int{1, 1, 1}, affinity(30))
	got := k.connections(t, 50)
	if len(got) != 1 {
		t.Fatalf("one client's connections go to %v; want one cluster", got)
	}
	var first netip.Addr
	for a := range got {
		first = a
	}
	// Weights change; the client stays.
	for cluster, a := range []netip.Addr{backing, global(2, 20), global3(20)} {
		weights := [3]int{5, 5, 5}
		weights[cluster] = 1
		s := balancingState(weights, affinity(30))
		k.Apply(t, s)
		if b, _ := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(uint16(30000+cluster), 80))); b != first {
			t.Errorf("with the weight of %s at 1 the client goes to %s; want %s", a, b, first)
		}
	}
	// Its cluster goes.
	weights := [3]int{1, 1, 1}
	for cluster, a := range []netip.Addr{backing, global(2, 20), global3(20)} {
		if a == first {
			weights[cluster] = -1
		}
	}
	k.Apply(t, balancingState(weights, affinity(30)))
	if b, v := k.toVIP(t, tcpPacket(SYN, to(clustersetIP), ports(31000, 80))); b == first || !b.IsValid() {
		t.Errorf("without %s the client goes to %s (%s)", first, b, v)
	}
}

// A flow chooses again where a new connection begins on its tuple, or where the cluster of a UDP
// flow has withdrawn.
func TestVIPChoosesAgain(t *testing.T) {
	for _, own := range []bool{false, true} {
		t.Run(fmt.Sprintf("own service %t", own), func(t *testing.T) {
			before, after := [3]int{-1, 1, -1}, [3]int{-1, -1, 1}
			first, second := global(2, 20), global3(20)
			if own {
				before, first = [3]int{1, -1, -1}, backing
			}
			k := balancing(t, before)
			wants := func(p Packet, want netip.Addr) {
				t.Helper()
				if a, v := k.toVIP(t, p); a != want {
					t.Errorf("to %s (%s); want %s", a, v, want)
				}
			}
			syn, udp := tcpPacket(SYN, to(clustersetIP)), udpPacket("q", to(clustersetIP))
			wants(syn, first)
			wants(udp, first)
			k.Apply(t, balancingState(after))
			wants(tcpPacket(ACK, to(clustersetIP)), first)
			wants(tcpPacket(FIN|ACK, to(clustersetIP)), first)
			wants(syn, second)
			wants(udp, first) // its cluster was checked within this second
			k.age(t, 2*time.Second)
			wants(udp, second)
		})
	}
}

// A source without a device of its own, as a pod whose device is not known or the node's processes,
// uses its own cluster's service at the global IP of the service, by way of a gateway, and sees the
// replies come from the ClusterSetIP.
func TestVIPHairpin(t *testing.T) {
	na, ga, nb := load(t, 1, 3), load(t, 1, 1), load(t, 1, 2)
	client := func() dataplane.State {
		s := oneGateway(1, 3)
		withVIP(&s, [3]int{1, 0, -1})
		s.Hairpins = map[netip.Addr]netip.Addr{backing: global(1, 21)}
		return s
	}
	na.Apply(t, client())
	ga.Apply(t, oneGateway(1, 1))
	nb.Apply(t, oneGateway(1, 2))
	ga.answered(t)
	there := func(p Packet, context Context) (Overlay, Packet) {
		t.Helper()
		leg := na.sent(t, na.Run(t, na.EdgeOut, Frame(p.Encode()), context), "edge-out sent")
		return leg, nb.delivered(t, nb.arrive(t, ga.sent(t, ga.arrive(t, leg), "uplink-in switched")))
	}
	back := func(p Packet) Packet {
		t.Helper()
		return na.delivered(t, na.arrive(t, ga.sent(t, ga.arrive(t, nb.sent(t, nb.fromPod(t, p), "edge-out sent")), "uplink-in switched")))
	}
	for name, tt := range map[string]struct {
		source  string
		context Context
	}{"pod": {"10.7.3.10", pod}, "node": {nodeIP(1, 3).String(), Context{}}} {
		t.Run(name, func(t *testing.T) {
			request := tcpPacket(SYN, from(tt.source), to(clustersetIP))
			leg, seen := there(request, tt.context)
			wantEqual(t, "destination on the overlay", global(1, 21), decode(t, leg.Inner).Destination)
			if leg.Flags != Switch || seen.Source != global(1, 1) || seen.Destination != ip("10.7.2.10") || seen.TCP.Destination != 8080 {
				t.Errorf("flags %d, the backend sees %+v", leg.Flags, seen)
			}
			got := back(seen.answer())
			if got.Source != clustersetIP || got.Destination != request.Source || got.TCP.Source != 80 || got.TCP.Destination != 40000 {
				t.Errorf("the client gets %+v", got)
			}
			there(tcpPacket(ACK, from(tt.source), to(clustersetIP)), tt.context)
		})
	}
	// Once the pod's device is known, its connections stay and new ones use the ClusterIP.
	s := client()
	s.Endpoints = map[netip.Addr]dataplane.Endpoint{ip("10.7.3.10"): {Ifindex: loopback, MAC: podMAC}}
	na.Apply(t, s)
	established := tcpPacket(ACK, from("10.7.3.10"), to(clustersetIP))
	if r := na.Run(t, na.PodOut, Frame(established.Encode()), Context{}); r.Action != Next || r.Verdict != "" {
		t.Errorf("pod_out on a hairpinned connection: action %d, %q; want it passed on", r.Action, r.Verdict)
	}
	there(established, pod)
	if a, v := na.toVIP(t, tcpPacket(SYN, from("10.7.3.10"), to(clustersetIP), ports(40001, 80))); a != backing {
		t.Errorf("a new connection goes to %s (%s); want %s", a, v, backing)
	}
}

// Without the pod's own device, as the node's processes, a source uses other clusters only, unless
// the service has a global IP.
func TestVIPWithoutDevice(t *testing.T) {
	k := balancing(t, [3]int{1, 0, -1})
	p := tcpPacket(SYN, from(nodeIP(1, 2).String()), to(clustersetIP))
	o := k.sent(t, k.Run(t, k.EdgeOut, Frame(p.Encode()), Context{}), "edge-out sent")
	wantEqual(t, "destination", global(2, 20), decode(t, o.Inner).Destination)
	k.Apply(t, balancingState([3]int{1, -1, -1}))
	if r := k.Run(t, k.EdgeOut, Frame(p.with(ports(40001, 80)).Encode()), Context{}); r.Verdict != "edge-out drop-no-backend" {
		t.Errorf("where no other cluster serves it: %s", r.Verdict)
	}
}

// As many clusters as fit serve a port, and each gets connections. Positions above those of the
// former size of the table are no exception.
func TestVIPOfManyClusters(t *testing.T) {
	k := balancing(t, [3]int{-1, -1, -1}, func(s *dataplane.State) {
		v := dataplane.VIP{}
		var weights []int
		for cluster := 2; len(v.Targets) < dataplane.MaxTargets; cluster++ {
			a := netip.AddrFrom4([4]byte{121, 0, byte(cluster), 20})
			s.Routes[netip.PrefixFrom(a, 24).Masked()] = uint16(cluster)
			v.Targets, weights = append(v.Targets, dataplane.VIPTarget{Cluster: uint16(cluster), Address: a}), append(weights, 1)
		}
		v.Slots = dataplane.VIPTable(v.Targets, weights)
		s.VIPs = map[dataplane.ServiceKey]dataplane.VIP{{Address: clustersetIP, Port: 80, Protocol: ProtocolTCP}: v}
	})
	got := k.connections(t, 3000)
	if len(got) != dataplane.MaxTargets || dataplane.MaxTargets != 128 {
		t.Errorf("%d of %d clusters get connections: %v", len(got), dataplane.MaxTargets, got)
	}
	for a, n := range got {
		if n > 3*3000/dataplane.MaxTargets {
			t.Errorf("%s gets %d of 3000 connections", a, n)
		}
	}
}
