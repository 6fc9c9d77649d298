package packet

import (
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Outside cluster 1 are hosts of 192.0.2.0/24, reached by device 21 of its gateways. 192.0.2.7:8080
// is the backend of service 120.1.0.23, 192.0.2.8 an endpoint with the global IP 120.1.0.101.
// 10.96.0.0/16 are ClusterIPs that other clusters may send to.
const externalDevice = podDevice + 1

var beside = Context{IngressIfindex: externalDevice}

func withExternals(s *dataplane.State) {
	host := dataplane.Source{Egress: global(1, 1), Ifindex: externalDevice, External: true}
	s.Globals[global(1, 23)] = dataplane.Global{Kind: dataplane.GlobalService}
	s.Globals[global(1, 101)] = dataplane.Global{Kind: dataplane.GlobalExternal}
	s.Services[own(23, 80)] = dataplane.Service{}
	if !s.Settings.Gateway {
		return
	}
	s.Globals[global(1, 101)] = dataplane.Global{Kind: dataplane.GlobalExternal, Pod: ip("192.0.2.8")}
	s.Services[own(23, 80)] = dataplane.Service{
		Backends: []netip.AddrPort{addrPort("192.0.2.7:8080")}, Table: dataplane.Maglev(map[uint16]int{s.Settings.Node: 1}),
	}
	s.Sources[ip("192.0.2.7")], s.Sources[ip("192.0.2.8")] = host, host
	s.Externals = map[netip.Prefix]dataplane.Source{
		netip.MustParsePrefix("192.0.2.0/24"): host, netip.MustParsePrefix("10.96.0.0/16"): {Routed: true},
	}
}

func withRoutedExternals(s *dataplane.State) {
	withExternals(s)
	for p, e := range s.Externals {
		e.Routed = true
		s.Externals[p] = e
	}
}

func externalRows() []row {
	toGateway := func(inner Packet, change ...func(*Overlay)) Overlay { return cable(2, 1, 1, inner.Encode(), change...) }
	served := func(t *testing.T, k *Kernel) {
		k.delivered(t, k.arrive(t, toGateway(clientTCP(SYN, to(global(1, 23))))))
	}
	reply := tcpPacket(SYN|ACK, from("192.0.2.7"), to(ip("120.2.0.1")), ports(8080, 1500))
	unreachable := icmpError(clientTCP(SYN, to(ip("192.0.2.7")), ports(1500, 8080)), ip("192.0.2.1"), ip("120.2.0.1"), 8)
	return []row{
		{name: "a host outside the cluster opens a connection", node: 1, state: withExternals, hook: "edge-out", context: beside,
			frame: is(tcpPacket(SYN, from("192.0.2.9"))), want: "edge-out sent"},
		{name: "its address from a pod", node: 1, state: withExternals, hook: "edge-out", context: pod,
			frame: is(tcpPacket(SYN, from("192.0.2.9"))), want: "edge-out drop-unknown-source"},
		{name: "its address from a socket of the node", node: 1, state: withExternals, hook: "edge-out",
			frame: is(tcpPacket(SYN, from("192.0.2.9"))), want: "edge-out drop-unknown-source"},
		{name: "a host of no declared range", node: 1, state: withExternals, hook: "edge-out", context: beside,
			frame: is(tcpPacket(SYN, from("192.0.3.9"))), want: "edge-out drop-unknown-source"},
		{name: "a ClusterIP opens no connection", node: 1, state: withExternals, hook: "edge-out", context: beside,
			frame: is(tcpPacket(SYN, from("10.96.0.9"))), want: "edge-out drop-no-egress"},
		{name: "a request for a backend outside the cluster", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(global(1, 23))))), want: "uplink-in delivered"},
		{name: "its reply", node: 1, state: withExternals, prepare: served, hook: "edge-out", context: beside, frame: is(reply), want: "edge-out sent"},
		{name: "its reply from a pod", node: 1, state: withExternals, prepare: served, hook: "edge-out", context: pod,
			frame: is(reply), want: "edge-out drop-unknown-source"},
		{name: "an ICMP error of a router on the way to it", node: 1, state: withExternals, prepare: served, hook: "edge-out", context: beside,
			frame: is(unreachable), want: "edge-out sent"},
		{name: "the same from a pod", node: 1, state: withExternals, prepare: served, hook: "edge-out", context: pod,
			frame: is(unreachable), want: "edge-out drop-unknown-source"},
		{name: "a request for an endpoint outside the cluster", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(global(1, 101))))), want: "uplink-in delivered"},
		{name: "a later packet, which names the gateway that has the flow", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(ACK, to(global(1, 101))), func(o *Overlay) { o.Node = 4 })), want: "uplink-in switched"},
		{name: "a request for such an endpoint at a node that is no gateway", node: 2, state: withExternals, hook: "uplink-in",
			frame: wire(overlay(1, 1, 2, clientTCP(SYN, to(global(1, 101))).Encode())), want: "uplink-in drop-no-backend"},
		{name: "a host outside the cluster by its own address, with globalnet", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(ip("192.0.2.9"))))), want: "uplink-in drop-not-own"},
		{name: "a host outside the cluster by its own address, routed", node: 1, state: withRoutedExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(ip("192.0.2.9"))))), want: "uplink-in delivered"},
		{name: "a later packet to it", node: 1, state: withRoutedExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(ACK, to(ip("192.0.2.9"))), func(o *Overlay) { o.Node = 4 })), want: "uplink-in switched"},
		{name: "a ClusterIP that is not exported, routed", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(ip("10.96.0.9"))))), want: "uplink-in delivered"},
		{name: "its reply, passed on by a sibling", node: 1, state: withRoutedExternals, hook: "uplink-in",
			frame: wire(overlay(1, 4, 1, udpPacket("x", from("192.0.2.9")).Encode())), want: "uplink-in switched"},
		{name: "the same where it is not routed", node: 1, state: withExternals, hook: "uplink-in",
			frame: wire(overlay(1, 4, 1, udpPacket("x", from("192.0.2.9")).Encode())), want: "uplink-in drop-spoofed-source"},
		{name: "hosts outside the cluster have their share of the flow table", node: 1, state: withExternals, hook: "edge-out", context: beside,
			prepare: outsideUsedUp, frame: is(tcpPacket(SYN, from("192.0.2.9"))), want: "edge-out drop-quota"},
		{name: "an endpoint outside the cluster shares it", node: 1, state: withExternals, hook: "edge-out", context: beside,
			prepare: outsideUsedUp, frame: is(udpPacket("x", from("192.0.2.8"))), want: "edge-out drop-quota"},
		{name: "a pod of their gateway has its own", node: 1, state: withExternals, hook: "edge-out", context: pod,
			prepare: outsideUsedUp, frame: is(udpPacket("x", from("10.7.1.10"))), want: "edge-out sent"},
	}
}

func outsideUsedUp(t *testing.T, k *Kernel) {
	k.useUp(t, bpf.PelagoUsageKey{Cluster: 1 << 17}, maxFlows/2)
}

// Hosts outside the cluster, of which one may have the addresses of all, have one counter, from
// which each flow is subtracted once.
func TestExternalsCountAsOne(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	withExternals(&s)
	k.Apply(t, s)
	send := func(p Packet) {
		t.Helper()
		k.sent(t, k.Run(t, k.EdgeOut, Frame(p.Encode()), beside), "edge-out sent")
	}
	for host := range byte(40) {
		address := from(netip.AddrFrom4([4]byte{192, 0, 2, 10 + host}).String())
		send(udpPacket("x", address))
		send(tcpPacket(SYN, address))
		send(tcpPacket(RST, address))
		send(tcpPacket(SYN, address)) // starts over with the same translation
	}
	if got := k.usage(t)[bpf.PelagoUsageKey{Cluster: 1 << 17}]; got != 80 {
		t.Errorf("%d flows are counted, want 80", got)
	}
	k.checkTable(t)
	if _, err := k.Loader.PurgeFunc(netip.MustParsePrefix("192.0.2.0/24").Contains); err != nil {
		t.Fatal(err)
	}
	wantEqual(t, "counters without a flow", map[bpf.PelagoUsageKey]int64{}, k.usage(t))
}

// A gateway shows a backend outside the cluster the client's global IP, and the client the service;
// a host that opens a connection appears under the egress IP, with a port of the gateway's blocks.
func TestBackendBesideTheCluster(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	withExternals(&s)
	k.Apply(t, s)

	got := k.delivered(t, k.arrive(t, cable(2, 1, 1, clientTCP(SYN, to(global(1, 23))).Encode())))
	if got.Source != ip("120.2.0.1") || got.Destination != ip("192.0.2.7") || got.TCP.Source != 1500 || got.TCP.Destination != 8080 {
		t.Fatalf("the backend gets %s:%d > %s:%d, want 120.2.0.1:1500 > 192.0.2.7:8080", got.Source, got.TCP.Source, got.Destination, got.TCP.Destination)
	}
	o := k.sent(t, k.Run(t, k.EdgeOut, Frame(got.answer().Encode()), beside), "edge-out sent")
	if p := decode(t, o.Inner); p.Source != global(1, 23) || p.Destination != ip("120.2.0.1") || p.TCP.Source != 80 || o.Node != 1 {
		t.Errorf("the reply is %s:%d > %s of node %d, want 120.1.0.23:80 > 120.2.0.1 of node 1", p.Source, p.TCP.Source, p.Destination, o.Node)
	}

	request := tcpPacket(SYN, from("192.0.2.9"))
	p := decode(t, k.sent(t, k.Run(t, k.EdgeOut, Frame(request.Encode()), beside), "edge-out sent").Inner)
	if p.Source != global(1, 1) || p.TCP.Source>>8 != blockOf(1)>>8 {
		t.Errorf("the host is shown as %s:%d, want 120.1.0.1 and a port of node 1", p.Source, p.TCP.Source)
	}
	if back := k.delivered(t, k.arrive(t, cable(2, 1, 1, p.answer().Encode()))); back.Destination != ip("192.0.2.9") || back.TCP.Destination != 40000 {
		t.Errorf("its reply goes to %s:%d, want 192.0.2.9:40000", back.Destination, back.TCP.Destination)
	}
}
