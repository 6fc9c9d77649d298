package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/dataplane"
)

// The world of these tests: clusters 1 and 2 with the same pod addresses. Cluster C has the nodes 1
// to 4 with the addresses 172.16.C.n, of which 1 and 4 are gateways, and the global range
// 120.C.0.0/24.
//
// Node n has the pods 10.7.n.10 and 10.7.n.11 on device 20 and owns block n of the egress IP
// 120.C.0.1, with which all pods and the node leave. Pod 10.7.2.11 has the global IP 120.C.0.100 of
// its own.
//
// Service 120.C.0.20 has port 80/TCP and 53/UDP with the backends 10.7.2.10 and 10.7.3.10 on the
// ports 8080 and 5353; service 120.C.0.21 has port 80/TCP with the single backend 10.7.2.10:8080;
// service 120.C.0.22 is exported and has no backend.
const (
	podDevice    = 20
	overlayToken = 0xa0b0c0
	cableToken   = 0xcab1e5
	cablePort    = 4500
	overlayPort  = 4800
)

var (
	gatewayNodes = []uint16{1, 4}
	noPortsMAC   = [6]byte{0x02}
)

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

func nodeIP(cluster, node int) netip.Addr {
	return netip.AddrFrom4([4]byte{172, 16, byte(cluster), byte(node)})
}

func global(cluster int, n byte) netip.Addr {
	return netip.AddrFrom4([4]byte{120, byte(cluster), 0, n})
}

func hop(a netip.Addr) dataplane.Hop {
	return dataplane.Hop{Address: a, Next: a, Ifindex: uint32(uplink.index)}
}

// state is the tables of a node.
func state(cluster int, node uint16) dataplane.State {
	gateway := node == 1 || node == 4
	s := dataplane.State{
		Settings: dataplane.Settings{
			Address: nodeIP(cluster, int(node)), CableAddress: nodeIP(cluster, int(node)), Node: node, Cluster: uint16(cluster), Gateway: gateway, MSS: 1410,
			Overlay: dataplane.Tokens{Current: overlayToken + uint32(cluster), Old: 0x01d + uint32(cluster)},
			Cable:   dataplane.Tokens{Current: cableToken, Old: 0x01dcab}, Generation: 7, Ready: true,
		},
		Routes: map[netip.Prefix]uint16{
			netip.PrefixFrom(global(cluster, 0), 24): uint16(cluster), netip.PrefixFrom(global(3-cluster, 0), 24): uint16(3 - cluster),
		},
		Nodes:    map[uint16]dataplane.Hop{},
		Gateways: gatewayNodes,
		Clusters: map[uint16][]dataplane.RemoteGateway{},
		Peers:    map[netip.Addr]dataplane.Peer{},
		Sources: map[netip.Addr]dataplane.Source{
			nodeIP(cluster, int(node)): {Egress: global(cluster, 1), Host: true},
		},
		Egresses: map[netip.Addr][]uint16{global(cluster, 1): {blockOf(node)}},
		Globals: map[netip.Addr]dataplane.Global{
			global(cluster, 1):   {Kind: dataplane.GlobalEgress},
			global(cluster, 20):  {Kind: dataplane.GlobalService},
			global(cluster, 21):  {Kind: dataplane.GlobalService},
			global(cluster, 22):  {Kind: dataplane.GlobalService},
			global(cluster, 100): {Kind: dataplane.GlobalPod, Node: 2},
		},
		Blocks:   map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{},
	}
	for n := uint16(1); n <= 4; n++ {
		a := nodeIP(cluster, int(n))
		s.Peers[a] = dataplane.Peer{Kind: dataplane.PeerNode, Node: n}
		if n != node {
			s.Nodes[n] = hop(a)
		}
	}
	for _, last := range []int{10, 11} {
		a := netip.AddrFrom4([4]byte{10, 7, byte(node), byte(last)})
		s.Sources[a] = dataplane.Source{Egress: global(cluster, 1), Ifindex: podDevice}
	}
	if node == 2 {
		s.Sources[ip("10.7.2.11")] = dataplane.Source{Own: global(cluster, 100), Ifindex: podDevice}
		s.Globals[global(cluster, 100)] = dataplane.Global{Kind: dataplane.GlobalPod, Node: 2, Pod: ip("10.7.2.11")}
	}
	service := func(n byte, port uint16, proto uint8, target uint16, nodes ...uint16) {
		v := dataplane.Service{}
		weights := map[uint16]int{}
		for _, b := range nodes {
			weights[b]++
			if b == node {
				v.Backends = append(v.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 7, byte(b), 10}), target))
			}
		}
		if gateway {
			v.Table = dataplane.Maglev(weights)
		}
		s.Serve(dataplane.ServiceKey{Address: global(cluster, n), Port: port, Protocol: proto}, v)
	}
	service(20, 80, ProtocolTCP, 8080, 2, 3)
	service(20, 53, ProtocolUDP, 5353, 2, 3)
	service(21, 80, ProtocolTCP, 8080, 2)
	service(22, 80, ProtocolTCP, 8080)
	if !gateway {
		return s
	}
	s.Settings.CablePort = cablePort
	for _, n := range gatewayNodes {
		a := nodeIP(3-cluster, int(n))
		s.Clusters[uint16(3-cluster)] = append(s.Clusters[uint16(3-cluster)], dataplane.RemoteGateway{Hop: hop(a), Node: n, Port: cablePort})
		s.Peers[a] = dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: uint16(3 - cluster), Node: n}
	}
	for n := uint16(1); n <= 4; n++ {
		s.Blocks[dataplane.BlockKey{Address: global(cluster, 1), First: blockOf(n)}] = n
	}
	return s
}

func blockOf(node uint16) uint16 { return 1024 + 256*(node-1) }

// fromPod runs edge_out on a packet that a pod of the node sends.
func (k *Kernel) fromPod(t testing.TB, p Packet) Result {
	t.Helper()
	return k.Run(t, k.EdgeOut, Frame(p.Encode()), Context{IngressIfindex: podDevice})
}

// arrive runs uplink_in, or what sits before it as well, on an overlay packet.
func (k *Kernel) arrive(t testing.TB, o Overlay) Result {
	t.Helper()
	return k.comeIn(t, o.Encode())
}

// sent runs a program that must send the packet on, and reads what it sent.
func (k *Kernel) sent(t testing.TB, r Result, verdict string) Overlay {
	t.Helper()
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if r.Action != Redirect || r.Verdict != verdict || r.Mark != cookie {
		t.Fatalf("action %d, verdict %q, mark %#x; want a redirect, %q and the node's cookie", r.Action, r.Verdict, r.Mark, verdict)
	}
	o, err := DecodeOverlay(r.Frame)
	if err != nil {
		t.Fatalf("the packet sent: %v", err)
	}
	return o
}

// delivered checks that uplink_in decapsulated the packet and redirected it to pelago0 with the
// proof that edge_in checks, and reads it.
func (k *Kernel) delivered(t testing.TB, r Result) Packet {
	t.Helper()
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if r.Action != Redirect || r.Verdict != "uplink-in delivered" || r.Mark != cookie {
		t.Fatalf("action %d, verdict %q, mark %#x; want it delivered with the node's cookie %#x", r.Action, r.Verdict, r.Mark, cookie)
	}
	inner, err := DecodeDelivered(r.Frame)
	if err != nil {
		t.Fatalf("the packet delivered: %v", err)
	}
	return decode(t, inner)
}

// handedOver checks that uplink_in handed a GSO packet to the vxlan receiver, and reads the inner
// packet.
func (k *Kernel) handedOver(t testing.TB, r Result) Packet {
	t.Helper()
	if r.Action != Next || r.Verdict != "uplink-in delivered" {
		t.Fatalf("action %d, verdict %q; want it delivered", r.Action, r.Verdict)
	}
	o, err := DecodeHandedOver(r.Frame)
	if err != nil {
		t.Fatalf("the packet delivered: %v", err)
	}
	cookie, probeMark, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	if r.Priority != probeMark || r.Mark != 0 {
		t.Fatalf("priority %#x, mark %#x; want the node's second secret %#x as priority alone", r.Priority, r.Mark, probeMark)
	}
	got := Overlay{
		Port: o.Port, Token: o.Token, Type: o.Type, Node: o.Node, Version: o.Version, Flags: o.Flags,
		InnerSource: o.InnerSource, InnerDestination: o.InnerDestination,
	}
	want := Overlay{Port: overlayPort, Type: uint8(cookie >> 16), Node: uint16(cookie), InnerSource: [6]byte{2}, InnerDestination: pelagoMAC}
	binary.NativeEndian.PutUint32(want.InnerSource[2:], probeMark)
	if diff := cmp.Diff(want, got, equal...); diff != "" {
		t.Fatalf("header for the vxlan receiver (-want +got):\n%s", diff)
	}
	return decode(t, o.Inner)
}

func decode(t testing.TB, b []byte) Packet {
	t.Helper()
	p, err := Decode(b)
	if err != nil {
		t.Fatalf("inner packet: %v", err)
	}
	return p
}

var equal = []cmp.Option{cmpopts.EquateComparable(netip.Addr{}), cmpopts.EquateEmpty()}

func wantEqual[T any](t testing.TB, what string, want, got T) {
	t.Helper()
	if diff := cmp.Diff(want, got, equal...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// Packets of pod 10.7.2.10 to port 80 (53) of service 120.2.0.20, unless changed.

func tcpPacket(flags uint8, change ...func(*Packet)) Packet {
	p := Packet{
		Source: ip("10.7.2.10"), Destination: global(2, 20), TTL: 63, ID: 4711, DontFragment: true,
		TCP: &TCP{Source: 40000, Destination: 80, Sequence: 1000, Ack: 2000, Flags: flags, Window: 512},
	}
	if flags&ACK == 0 {
		p.TCP.Ack = 0
	}
	return p.with(change...)
}

func udpPacket(payload string, change ...func(*Packet)) Packet {
	return Packet{
		Source: ip("10.7.2.10"), Destination: global(2, 20), TTL: 63, ID: 4711,
		UDP: &UDP{Source: 40000, Destination: 53}, Payload: []byte(payload),
	}.with(change...)
}

func echoPacket(kind uint8, change ...func(*Packet)) Packet {
	return Packet{
		Source: ip("10.7.2.10"), Destination: global(2, 100), TTL: 63, ID: 4711,
		ICMP: EchoHeader(kind, 77, 1), Payload: []byte("are you there"),
	}.with(change...)
}

// with changes a copy.
func (p Packet) with(change ...func(*Packet)) Packet {
	if p.TCP != nil {
		tcp := *p.TCP
		p.TCP = &tcp
	}
	if p.UDP != nil {
		udp := *p.UDP
		p.UDP = &udp
	}
	if p.ICMP != nil {
		icmp := *p.ICMP
		p.ICMP = &icmp
	}
	for _, f := range change {
		f(&p)
	}
	return p
}

func from(source string) func(*Packet) { return func(p *Packet) { p.Source = ip(source) } }
func to(a netip.Addr) func(*Packet)    { return func(p *Packet) { p.Destination = a } }
func ports(source, destination uint16) func(*Packet) {
	return func(p *Packet) {
		switch {
		case p.TCP != nil:
			p.TCP.Source, p.TCP.Destination = source, destination
		case p.UDP != nil:
			p.UDP.Source, p.UDP.Destination = source, destination
		}
	}
}

func (p Packet) ports() (source, destination uint16) {
	switch {
	case p.TCP != nil:
		return p.TCP.Source, p.TCP.Destination
	case p.UDP != nil:
		return p.UDP.Source, p.UDP.Destination
	case p.ICMP != nil && p.ICMP.Type == Echo:
		return p.ICMP.Identifier(), 0
	case p.ICMP != nil:
		return 0, p.ICMP.Identifier()
	}
	return 0, 0
}

// answer is the packet that the receiver of p sends back.
func (p Packet) answer() Packet {
	return p.with(func(q *Packet) {
		q.Source, q.Destination = p.Destination, p.Source
		s, d := p.ports()
		ports(d, s)(q)
		switch {
		case q.TCP != nil:
			q.TCP.Flags, q.TCP.Sequence, q.TCP.Ack = ACK, p.TCP.Ack, p.TCP.Sequence+1
			if p.TCP.Flags&SYN != 0 {
				q.TCP.Flags |= SYN
			}
		case q.ICMP != nil:
			q.ICMP = EchoHeader(EchoReply, p.ICMP.Identifier(), 1)
		}
	})
}

// overlay is a packet from node `from` of the cluster on its overlay to node `to`; cable one from
// gateway to gateway.

func overlay(cluster, from, to int, inner []byte, change ...func(*Overlay)) Overlay {
	o := Overlay{
		Source: nodeIP(cluster, from), Destination: nodeIP(cluster, to), TTL: 64, SourcePort: 0xc123, Port: overlayPort,
		Token: overlayToken + uint32(cluster), Type: Forward, Version: 1, InnerSource: noPortsMAC, InnerDestination: pelagoMAC, Inner: inner,
	}
	for _, f := range change {
		f(&o)
	}
	return o
}

func cable(fromCluster, from, to int, inner []byte, change ...func(*Overlay)) Overlay {
	o := overlay(fromCluster, from, to, inner)
	o.Destination, o.Token, o.Port = nodeIP(3-fromCluster, to), cableToken, cablePort
	for _, f := range change {
		f(&o)
	}
	return o
}

func serviceKey(n byte, port uint16, proto uint8) dataplane.ServiceKey {
	return dataplane.ServiceKey{Address: global(2, n), Port: port, Protocol: proto}
}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }
