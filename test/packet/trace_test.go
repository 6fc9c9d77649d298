package packet

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// TestTraceAgrees compares the decisions of trace.Tables with those of the programs, on random
// tables, path states and packets.
func TestTraceAgrees(t *testing.T) {
	seen := map[string]int{}
	k := load(t, 1, 1)
	rapid.Check(t, func(rt *rapid.T) {
		cluster, node := rapid.IntRange(1, 2).Draw(rt, "cluster"), rapid.Uint16Range(1, 4).Draw(rt, "node")
		k.Flush(t)
		k.Apply(t, drawState(rt, cluster, node))
		k.answered(t, func(p *bpf.PelagoPath) { drawPath(rt, p) })
		for _, g := range gatewayNodes {
			if rapid.Bool().Draw(rt, "lossy") {
				set := bpf.PelagoClusterSet{Words: [16]uint64{1 << rapid.IntRange(1, 3).Draw(rt, "lossy cluster")}}
				if err := errors.Join(k.GatewayLosses.Put(nodeIP(cluster, int(g)).As4(), set), k.OwnLosses.Put(uint32(0), set)); err != nil {
					t.Fatal(err)
				}
			}
		}
		if rapid.Bool().Draw(rt, "outgoing") {
			compareLeave(t, rt, k, cluster, node, seen)
		} else {
			compareReceive(t, rt, k, cluster, node, seen)
		}
	})
	if len(seen) < 8 {
		t.Errorf("only the verdicts %v: the drawn tables are too much alike", seen)
	}
}

// drawState is the state of a node with some of it missing or wrong.
func drawState(t *rapid.T, cluster int, node uint16) dataplane.State {
	s := state(cluster, node)
	remote := uint16(3 - cluster)
	seldom := func(what string) bool { return rapid.IntRange(0, 9).Draw(t, what) == 0 }
	if seldom("not ready") {
		s.Settings.Ready = false
	}
	s.Settings.Single = seldom("single")
	s.Settings.Leaving = seldom("leaving")
	if seldom("no route") {
		s.Routes = nil
	}
	if seldom("no egress") {
		s.Egresses = nil
	}
	if seldom("no gateways") {
		s.Gateways = nil
	}
	if seldom("one gateway") {
		s.Gateways = []uint16{4}
	}
	if seldom("no remote gateways") {
		delete(s.Clusters, remote)
	}
	if seldom("unknown node") {
		delete(s.Nodes, rapid.Uint16Range(1, 4).Draw(t, "which node"))
	}
	if seldom("no blocks") {
		s.Blocks = nil
	}
	if seldom("no services") {
		s.Services = nil
	}
	if node == 2 && cluster == 1 && s.Services != nil {
		sctpService(rapid.Uint16Range(5000, 5001).Draw(t, "target port"))(&s)
	}
	for key, service := range s.Services {
		service.Affinity = rapid.Uint32Range(0, 1).Draw(t, "affinity")
		if seldom("no backends") {
			service.Backends = nil
		}
		s.Services[key] = service
	}
	if rapid.Bool().Draw(t, "mapped") {
		open := rapid.Bool().Draw(t, "open")
		for a, src := range s.Sources {
			src.Mapped, src.Open = true, open
			s.Sources[a] = src
		}
	}
	if cluster == 1 && rapid.Bool().Draw(t, "clustersetip") {
		weight := rapid.IntRange(-1, 2)
		s.Routes = map[netip.Prefix]uint16{netip.MustParsePrefix("120.2.0.0/24"): 2, netip.MustParsePrefix("120.3.0.0/24"): 3}
		withVIP(&s, [3]int{weight.Draw(t, "own"), weight.Draw(t, "second"), weight.Draw(t, "third")})
		if rapid.Bool().Draw(t, "own pods") {
			servedBy(ownPods...)(&s)
		}
		if rapid.Bool().Draw(t, "hairpin") {
			s.Hairpins = map[netip.Addr]netip.Addr{backing: global(1, 20)}
		}
	}
	return s
}

func drawPath(t *rapid.T, p *bpf.PelagoPath) {
	switch rapid.IntRange(0, 9).Draw(t, "path") {
	case 0:
		p.Ready = 0
	case 1:
		p.NoReply = 1
	case 2:
		p.Lossy = 1
	case 3:
		p.Age = 121
	case 4:
		p.Unreachable[0] = 1 << rapid.IntRange(1, 3).Draw(t, "unreachable")
	case 5: // suspect
		p.Sequence = p.Answered + 5
		for i := range p.Ring {
			p.Ring[i].Sent = 1
		}
	}
}

// drawOpener draws a packet that opens a flow, of the sources and destinations given.
func drawOpener(t *rapid.T, sources, destinations []netip.Addr) Packet {
	p := tcpPacket(SYN)
	if rapid.Bool().Draw(t, "udp") {
		p = udpPacket("x")
	}
	if rapid.IntRange(0, 4).Draw(t, "sctp") == 0 {
		return sctpPacket(40000, 5000, from(rapid.SampledFrom(sources).Draw(t, "source").String()), to(rapid.SampledFrom(destinations).Draw(t, "destination")))
	}
	port := rapid.SampledFrom([]uint16{53, 80, 1024, 1300, 2000, 40000})
	return p.with(ports(rapid.Uint16Range(1024, 65535).Draw(t, "source port"), port.Draw(t, "port")),
		from(rapid.SampledFrom(sources).Draw(t, "source").String()), to(rapid.SampledFrom(destinations).Draw(t, "destination")))
}

func traced(p Packet) trace.Packet {
	source, destination := p.ports()
	if p.Protocol == protocolSCTP {
		source, destination = binary.BigEndian.Uint16(p.Payload), binary.BigEndian.Uint16(p.Payload[2:])
	}
	return trace.Packet{Protocol: p.protocol(), Source: netip.AddrPortFrom(p.Source, source), Destination: netip.AddrPortFrom(p.Destination, destination)}
}

func tables(t testing.TB, k *Kernel) trace.Tables {
	t.Helper()
	tables, err := k.Loader.Tables()
	if err != nil {
		t.Fatal(err)
	}
	return tables
}

func compareLeave(t *testing.T, rt *rapid.T, k *Kernel, cluster int, node uint16, seen map[string]int) {
	pod := netip.AddrFrom4([4]byte{10, 7, byte(node), 10})
	local := mapOne(t, rt, k, cluster, pod)
	before := tables(t, k)
	p := drawOpener(rt, []netip.Addr{pod, pod, ip("10.7.2.11"), ip("10.7.9.9")},
		[]netip.Addr{global(3-cluster, 20), global(3-cluster, 21), global(cluster, 20), ip("120.9.0.1"), clustersetIP})
	if p.UDP != nil && rapid.Bool().Draw(rt, "of the mapping") {
		p.UDP.Source = local
	}
	r := k.fromPod(t, p)
	seen[r.Verdict]++
	sourcePort := uint16(0)
	var o Overlay
	var inner Packet
	if r.Verdict == "edge-out sent" {
		var err error
		if o, err = DecodeOverlay(r.Frame); err != nil {
			rt.Fatal(err)
		}
		inner = decode(t, o.Inner)
		sourcePort, _ = inner.ports()
	}
	step := before.Leave(traced(p), sourcePort)
	// Of a dropped packet the drawn port, by which a gateway may have picked itself, is not known.
	for port := blockOf(node); r.Verdict == "edge-out drop-no-gateway" && step.Verdict != "drop-no-gateway" && port < blockOf(node+1); port++ {
		step = before.Leave(traced(p), port)
	}
	if got := step.Hook + " " + step.Verdict; got != r.Verdict {
		rt.Fatalf("trace of %+v: %q, the program: %q", traced(p), got, r.Verdict)
	}
	if step.Header != nil {
		agree(rt, "packet", traced(inner), step.Packet)
		agree(rt, "header", headerOf(o), *step.Header)
	}
}

// mapOne has a pod send from a port, for which a mapping is opened if the pod is mapped, and may
// then withdraw the pod's block.
func mapOne(t *testing.T, rt *rapid.T, k *Kernel, cluster int, source netip.Addr) (local uint16) {
	local = rapid.Uint16Range(1024, 65535).Draw(rt, "mapped port")
	p := udpPacket("x", from(source.String()), to(global(3-cluster, 99)), ports(local, 9999))
	if _, err := k.TryRun(k.EdgeOut, Frame(p.Encode()), pod); err != nil {
		rt.Fatal(err)
	}
	if rapid.IntRange(0, 9).Draw(rt, "withdrawn") == 0 {
		s := tables(t, k).State
		s.Egresses = map[netip.Addr][]uint16{global(cluster, 1): {8192}}
		k.Apply(t, s)
	}
	return local
}

func agree[T comparable](t *rapid.T, what string, program, trace T) {
	if program != trace {
		t.Fatalf("%s by the program: %+v, by the trace: %+v", what, program, trace)
	}
}

func headerOf(o Overlay) trace.Header {
	return trace.Header{
		Source: o.Source, Destination: o.Destination, Port: o.Port, Cable: o.Port == cablePort, Token: o.Token, Node: o.Node,
		Bounced: o.Flags&1 != 0, Switch: o.Flags&4 != 0, Client: binary.NativeEndian.Uint32(o.client()),
	}
}

func compareReceive(t *testing.T, rt *rapid.T, k *Kernel, cluster int, node uint16, seen map[string]int) {
	mapOne(t, rt, k, cluster, netip.AddrFrom4([4]byte{10, 7, byte(node), 10}))
	before := tables(t, k)
	p := drawOpener(rt, []netip.Addr{global(3-cluster, 1), global(cluster, 1), ip("120.9.0.1")},
		[]netip.Addr{global(cluster, 20), global(cluster, 21), global(cluster, 22), global(cluster, 100), global(cluster, 1), global(3-cluster, 20), ip("120.9.0.1")})
	for _, shown := range before.Mappings {
		if p.UDP != nil && rapid.Bool().Draw(rt, "to the mapping") {
			p.Destination, p.UDP.Destination = shown.Addr(), shown.Port()
		}
	}
	sender := rapid.SampledFrom([]int{1, 2, 3, 4, 9}).Draw(rt, "sender")
	if sender == int(node) {
		sender = 9 // no node receives its own packets by an uplink
	}
	o := overlay(cluster, sender, int(node), p.Encode())
	// Only gateways have the port of the vxlan cable.
	if before.State.Settings.Gateway && rapid.Bool().Draw(rt, "cable") {
		o = cable(3-cluster, sender, int(node), p.Encode())
	}
	if rapid.IntRange(0, 9).Draw(rt, "wrong token") == 0 {
		o.Token++
	}
	o.Node = rapid.SampledFrom([]uint16{0, 0, 1, 2, 3, 9}).Draw(rt, "node index")
	if rapid.Bool().Draw(rt, "client named") {
		binary.NativeEndian.PutUint32(o.client(), rapid.Uint32().Draw(rt, "client"))
	}
	o.Flags = rapid.SampledFrom([]uint8{0, 0, 1, 4, 5}).Draw(rt, "flags")
	r := k.arrive(t, o)
	seen[r.Verdict]++
	step := before.Receive(traced(p), headerOf(o))
	if got := step.Hook + " " + step.Verdict; got != r.Verdict {
		rt.Fatalf("trace of %+v in %+v: %q, the program: %q", traced(p), headerOf(o), got, r.Verdict)
	}
	switch {
	case step.Header != nil:
		next, err := DecodeOverlay(r.Frame)
		if err != nil {
			rt.Fatal(err)
		}
		agree(rt, "header", headerOf(next), *step.Header)
	case strings.HasSuffix(r.Verdict, "delivered"):
		got := traced(k.delivered(t, r))
		agree(rt, "packet", got, step.Packet)
	}
}

// TestTraceFaults follows a packet of pod 10.7.2.10 of cluster 1 to service 120.2.0.21 of cluster
// 2, node by node, each time with one fault in the tables of one of them.
func TestTraceFaults(t *testing.T) {
	type node struct{ cluster, index int }
	na, ga, gb, nb := node{1, 2}, node{1, 1}, node{2, 1}, node{2, 2}
	dead := liveness.Path{Probed: true, Ready: true, Open: 20, OldestOpen: time.Minute, Seen: time.Minute}
	for name, c := range map[string]struct {
		at    node
		fault func(*trace.Tables)
		want  []string
	}{
		"none":               {na, func(*trace.Tables) {}, []string{"sent", "switched", "switched", "delivered"}},
		"no route":           {na, func(t *trace.Tables) { t.State.Routes = nil }, []string{"drop-no-route"}},
		"unaccepted cluster": {gb, func(t *trace.Tables) { t.State.Routes = nil }, []string{"sent", "switched", "drop-spoofed-source"}},
		"no blocks":          {na, func(t *trace.Tables) { t.State.Egresses = nil }, []string{"drop-no-egress"}},
		"no ports": {na, func(t *trace.Tables) {
			key := trace.Packet{Protocol: ProtocolTCP, Source: addrPort("120.1.0.1:0"), Destination: addrPort("120.2.0.21:80")}
			t.PortsInUse = map[trace.Packet]int{key: dataplane.BlockPorts}
		}, []string{"drop-ports-exhausted"}},
		"other ports in use": {na, func(t *trace.Tables) {
			key := trace.Packet{Protocol: ProtocolTCP, Source: addrPort("120.1.0.1:0"), Destination: addrPort("120.2.0.20:80")}
			t.PortsInUse = map[trace.Packet]int{key: dataplane.BlockPorts}
		}, []string{"sent", "switched", "switched", "delivered"}},
		"no gateway":   {na, func(t *trace.Tables) { t.State.Gateways = nil }, []string{"drop-no-gateway"}},
		"no wire":      {ga, func(t *trace.Tables) { t.State.Clusters = nil }, []string{"sent", "drop-no-gateway"}},
		"wrong token":  {gb, func(t *trace.Tables) { t.State.Settings.Cable = dataplane.Tokens{Current: 1} }, []string{"sent", "switched", "drop-bad-token"}},
		"unknown peer": {gb, func(t *trace.Tables) { t.State.Peers = nil }, []string{"sent", "switched", "drop-unknown-peer"}},
		"no service":   {gb, func(t *trace.Tables) { t.State.Services = nil }, []string{"sent", "switched", "drop-no-service"}},
		"not exported": {nb, func(t *trace.Tables) { exportTo(global(2, 21), 3)(&t.State) }, []string{"sent", "switched", "switched", "drop-not-exported"}},
		"no backend": {gb, func(t *trace.Tables) {
			t.State.Services = map[dataplane.ServiceKey]dataplane.Service{serviceKey(21, 80, ProtocolTCP): {}}
		}, []string{"sent", "switched", "drop-no-backend"}},
		"not ready": {nb, func(t *trace.Tables) { t.State.Settings.Ready = false }, []string{"sent", "switched", "switched", "drop-not-ready"}},
		// If no gateway answers, all are used.
		"no answers": {ga, func(t *trace.Tables) {
			t.Paths = map[netip.Addr]liveness.Path{nodeIP(2, 1): dead}
		}, []string{"sent", "switched", "switched", "delivered"}},
	} {
		t.Run(name, func(t *testing.T) {
			packet := traced(tcpPacket(SYN, to(global(2, 21))))
			var header *trace.Header
			var got []string
			for _, at := range []node{na, ga, gb, nb} {
				tables := trace.Tables{State: oneGateway(at.cluster, uint16(at.index))}
				if at == c.at {
					c.fault(&tables)
				}
				var step trace.Step
				if header == nil {
					step = tables.Leave(packet, 0)
				} else {
					step = tables.Receive(packet, *header)
				}
				got = append(got, step.Verdict)
				packet, header = step.Packet, step.Header
				if header == nil {
					break
				}
			}
			wantEqual(t, "verdicts", c.want, got)
		})
	}
}

// With a gateway that does not answer, flows take the other one.
func TestTraceDeadGateway(t *testing.T) {
	tables := trace.Tables{State: state(1, 2)}
	used := map[netip.Addr]bool{}
	send := func() {
		clear(used)
		for port := range uint16(50) {
			used[tables.Leave(traced(tcpPacket(SYN)), 1280+port).Header.Destination] = true
		}
	}
	if send(); len(used) != 2 {
		t.Errorf("flows take the gateways %v; want both", used)
	}
	tables.Paths = map[netip.Addr]liveness.Path{nodeIP(1, 1): {Probed: true}}
	if send(); len(used) != 1 || !used[nodeIP(1, 4)] {
		t.Errorf("flows take the gateways %v; want %s alone", used, nodeIP(1, 4))
	}
}
