package packet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/netns"
)

// row is one thing that may happen to a packet.
type row struct {
	name string
	// node of cluster 1: 1 and 4 are gateways.
	node    uint16
	state   func(*dataplane.State)        // changes its tables
	prepare func(t *testing.T, k *Kernel) // what happened before
	hook    string                        // edge-out, edge-in, uplink-in, uplink-out, pod-out
	frame   func(t *testing.T, k *Kernel) []byte
	context Context
	loMTU   int  // of the device to send by, if not 0
	own     bool // needs a node of its own: it leaves too much behind
	answer  bool // it is dropped, and its sender gets an answer
	want    string
}

func (k *Kernel) program(hook string) *ebpf.Program {
	return map[string]*ebpf.Program{"edge-out": k.EdgeOut, "edge-in": k.EdgeIn, "uplink-in": k.UplinkIn, "uplink-out": k.UplinkOut, "pod-out": k.PodOut}[hook]
}

// is is the frame of a packet of the node's stack; wire one of an overlay packet.
func is(p Packet) func(*testing.T, *Kernel) []byte {
	return func(*testing.T, *Kernel) []byte { return Frame(p.Encode()) }
}

func wire(o Overlay) func(*testing.T, *Kernel) []byte {
	return func(*testing.T, *Kernel) []byte { return o.Encode() }
}

func raw(b []byte) func(*testing.T, *Kernel) []byte {
	return func(*testing.T, *Kernel) []byte { return b }
}

func opened(p Packet) func(*testing.T, *Kernel) {
	return func(t *testing.T, k *Kernel) { k.sent(t, k.fromPod(t, p), "edge-out sent") }
}

// exportTo restricts a global address to clusters.
func exportTo(address netip.Addr, clusters ...uint16) func(*dataplane.State) {
	return func(s *dataplane.State) {
		g := s.Globals[address]
		g.Restricted = true
		var audience dataplane.ClusterSet
		for _, c := range clusters {
			audience.Add(c)
		}
		s.Globals[address], s.Audiences = g, map[netip.Addr]dataplane.ClusterSet{address: audience}
	}
}

// The client's view of cluster 1 at a server's edge: what a pod behind 120.2.0.1 sends to
// cluster 1.
func clientTCP(flags uint8, change ...func(*Packet)) Packet {
	return tcpPacket(flags, append([]func(*Packet){from("120.2.0.1"), to(global(1, 20)), ports(1500, 80)}, change...)...)
}

func clientUDP(change ...func(*Packet)) Packet {
	return udpPacket("query", append([]func(*Packet){from("120.2.0.1"), to(global(1, 20)), ports(1500, 53)}, change...)...)
}

// answerTo is what the far service sends to the outside port that node n's pods have.
func answerTo(node uint16, change ...func(*Packet)) Packet {
	return udpPacket("answer", append([]func(*Packet){from("120.2.0.20"), to(global(1, 1)), ports(53, blockOf(node)+7)}, change...)...)
}

var pod = Context{IngressIfindex: podDevice}

func rows(t testing.TB) []row {
	toNode2 := func(inner Packet, change ...func(*Overlay)) Overlay {
		return overlay(1, 1, 2, inner.Encode(), change...)
	}
	toGateway := func(inner Packet, change ...func(*Overlay)) Overlay { return cable(2, 1, 1, inner.Encode(), change...) }
	later := udpPacket("x", func(p *Packet) {
		p.Protocol, p.UDP, p.Offset, p.Payload = ProtocolUDP, nil, 1480, []byte("the rest")
	})
	return []row{
		// What is meant to happen.
		{name: "a pod opens a connection", node: 2, hook: "edge-out", frame: is(tcpPacket(SYN)), context: pod, want: "edge-out sent"},
		{name: "the node itself opens one", node: 2, hook: "edge-out", frame: is(tcpPacket(SYN, from("172.16.1.2"))), want: "edge-out sent"},
		{name: "a pod pings", node: 2, hook: "edge-out", frame: is(echoPacket(Echo)), context: pod, want: "edge-out sent"},
		{name: "a remote client reaches a service", node: 2, hook: "uplink-in", frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in delivered"},
		{name: "a gateway passes a request to the node that its table names", node: 1, hook: "uplink-in", frame: wire(toGateway(clientTCP(SYN))), want: "uplink-in switched"},
		{name: "a gateway passes an answer to the owner of the port block", node: 1, hook: "uplink-in", frame: wire(toGateway(answerTo(3))), want: "uplink-in switched"},
		{name: "a gateway passes an own packet to the cable", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode())), want: "uplink-in switched"},
		{name: "a node without a backend passes a new flow on once", node: 2, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Services[own(20, 80)] = dataplane.Service{} },
			frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in bounced"},
		{name: "a gateway whose own backends went picks another node itself", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.Node = 1 })), want: "uplink-in bounced"},
		{name: "a gateway that does not know a block asks its sibling", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { clear(s.Blocks) }, frame: wire(toGateway(answerTo(3))), want: "uplink-in bounced"},
		{name: "a pod opens a connection to a ClusterSetIP that its cluster serves", node: 2, hook: "pod-out",
			state: func(s *dataplane.State) { *s = balancingState([3]int{1, -1, -1}) }, frame: is(tcpPacket(SYN, to(clustersetIP))), want: "pod-out own-service"},
		{name: "a ClusterSetIP has no such port", node: 2, hook: "edge-out", context: pod,
			state: func(s *dataplane.State) { *s = balancingState([3]int{1, 1, 1}) },
			frame: is(tcpPacket(SYN, to(clustersetIP), ports(40000, 81))), want: "edge-out drop-no-service", answer: true},
		{name: "no cluster serves a ClusterSetIP", node: 2, hook: "edge-out", context: pod,
			state: func(s *dataplane.State) { *s = balancingState([3]int{-1, -1, -1}) }, frame: is(tcpPacket(SYN, to(clustersetIP))), want: "edge-out drop-no-backend", answer: true},
		{name: "a pod opens a connection to a global IP of its own cluster", node: 2, hook: "edge-out", frame: is(tcpPacket(SYN, to(global(1, 20)))), context: pod, want: "edge-out sent"},
		{name: "a gateway passes a packet of another node to an own global IP on", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, tcpPacket(SYN, from("120.1.0.1"), to(global(1, 20))).Encode(), hairpinned)), want: "uplink-in switched"},
		{name: "a probe is sent back", node: 1, hook: "uplink-in", frame: wire(probeOf(Probe, 2, 1, body{Nonce: 1})), want: "uplink-in probe"},

		// Not ready, not understood.
		{name: "before the first tables are in, nothing leaves", node: 2, hook: "edge-out",
			state: func(s *dataplane.State) { s.Settings.Ready = false }, frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-not-ready"},
		{name: "before the first tables are in, nothing is taken in", node: 2, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Settings.Ready = false }, frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-not-ready"},
		{name: "before the first tables are in, a gateway draws no traffic by answering probes", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Settings.Ready = false }, frame: wire(probeOf(Probe, 2, 1, body{Nonce: 1})), want: "uplink-in drop-not-ready"},
		{name: "the inner packet is no IPv4", node: 2, hook: "uplink-in",
			frame: wire(overlay(1, 1, 2, append([]byte{0x60}, make([]byte, 60)...))), want: "uplink-in drop-malformed"},
		{name: "an IPv4 header of 16 bytes", node: 2, hook: "edge-out", context: pod,
			frame: raw(Frame(patch(tcpPacket(SYN).Encode(), 0, 0x44))), want: "edge-out drop-malformed"},
		{name: "a total length beyond the frame", node: 2, hook: "edge-out", context: pod,
			frame: raw(Frame(patch(tcpPacket(SYN).Encode(), 3, 41))), want: "edge-out drop-malformed"},
		{name: "a TCP header that begins in the packet and ends behind it", node: 2, hook: "edge-out", context: pod,
			frame: raw(Frame(patch(tcpPacket(SYN).Encode(), 3, 39))), want: "edge-out drop-malformed"},
		{name: "a total length of 0 without segmentation", node: 2, hook: "edge-out", context: pod,
			frame: raw(Frame(patch(tcpPacket(SYN).Encode(), 3, 0))), want: "edge-out drop-malformed"},
		{name: "an ICMP error that quotes a packet of somebody else", node: 2, hook: "edge-out", context: pod,
			frame: is(icmpError(tcpPacket(SYN, from("10.7.2.99"), to(ip("10.7.2.10"))), ip("10.7.2.10"), global(2, 20), 8)), want: "edge-out drop-malformed"},
		{name: "an ICMP error that quotes 7 bytes of transport", node: 2, hook: "edge-out", context: pod,
			frame: is(icmpError(answerTo(2, to(ip("10.7.2.10"))), ip("10.7.2.10"), global(2, 20), 7).with(to(ip("10.7.2.10")))), want: "edge-out drop-malformed"},
		{name: "overlay version 3", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Version = 3 })), want: "uplink-in drop-bad-version"},
		{name: "overlay version 15", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Version = 15 })), want: "uplink-in drop-bad-version"},
		{name: "version 1 with another bit in the first byte", node: 2, hook: "uplink-in",
			frame: raw(patch(toNode2(clientTCP(SYN)).Encode(), vxlanFlagsAt, 0x0c)), want: "uplink-in drop-bad-version"},
		{name: "version 2 without the bit of VXLAN", node: 2, hook: "uplink-in",
			frame: raw(patch(toNode2(clientTCP(SYN), func(o *Overlay) { o.Version = 2 }).Encode(), vxlanFlagsAt, 0x04)), want: "uplink-in drop-bad-version"},
		{name: "a vxlan header that is not ours (version 0)", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Version = 0 })), want: "uplink-in drop-bad-version"},
		{name: "a wrong overlay token", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Token++ })), want: "uplink-in drop-bad-token"},
		{name: "the overlay token of before is still taken", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Token = 0x01d + 1 })), want: "uplink-in delivered"},
		{name: "token 0 where there was none before", node: 2, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Settings.Overlay.Old = 0 },
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Token = 0 })), want: "uplink-in drop-bad-token"},
		{name: "a wrong cable token", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.Token++ })), want: "uplink-in drop-bad-token"},
		{name: "the cable token of before is still taken", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.Token = 0x01dcab })), want: "uplink-in switched"},
		{name: "the overlay token on the cable", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.Token = overlayToken + 1 })), want: "uplink-in drop-bad-token"},
		{name: "the answer to a probe that was never sent", node: 1, hook: "uplink-in",
			frame: wire(probeOf(ProbeReply, 2, 1, body{Nonce: 98})), want: "uplink-in drop-stale-probe"},
		{name: "a probe that is cut short", node: 1, hook: "uplink-in",
			frame: wire(cable(2, 1, 1, make([]byte, oldProbe-1), func(o *Overlay) { o.Type = Probe })), want: "uplink-in drop-malformed"},
		{name: "an answer that is cut short", node: 1, hook: "uplink-in",
			frame: wire(cable(2, 1, 1, make([]byte, 11), func(o *Overlay) { o.Type = ProbeReply })), want: "uplink-in drop-malformed"},
		{name: "an unknown packet type", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Type = 9 })), want: "uplink-in drop-bad-type"},

		// Who may send what.
		{name: "the sender on the overlay is no node", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN), func(o *Overlay) { o.Source = ip("172.16.1.99") })), want: "uplink-in drop-unknown-peer"},
		{name: "a remote gateway sends on the overlay", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 1, 1, clientTCP(SYN).Encode(), func(o *Overlay) { o.Source = nodeIP(2, 1) })), want: "uplink-in drop-unknown-peer"},
		{name: "a node of this cluster sends on the cable", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.Source = nodeIP(1, 2) })), want: "uplink-in drop-unknown-peer"},
		{name: "a cluster sends from a source that is not its own", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, from("120.3.0.1")))), want: "uplink-in drop-spoofed-source"},
		{name: "a cluster sends from another's prefix", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Routes[netip.MustParsePrefix("120.3.0.0/24")] = 3 },
			frame: wire(toGateway(clientTCP(SYN, from("120.3.0.1")))), want: "uplink-in drop-spoofed-source"},
		{name: "a node sends a remote cluster what does not come from this one", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, udpPacket("x", from("10.7.2.10")).Encode())), want: "uplink-in drop-spoofed-source"},
		{name: "a node sends its own cluster what does not come from it", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, clientTCP(SYN).Encode(), hairpinned)), want: "uplink-in drop-spoofed-source"},
		{name: "a node bounces a packet of no known cluster", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, clientTCP(SYN, from("120.9.0.1")).Encode(), func(o *Overlay) { o.Flags = Bounced | Switch })), want: "uplink-in drop-spoofed-source"},
		{name: "a cluster sends from an address of this one", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, from("120.1.0.1")))), want: "uplink-in drop-spoofed-source"},
		{name: "a new flow from a source of no known cluster at the edge", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN, from("120.9.0.1")))), want: "uplink-in drop-spoofed-source"},
		{name: "an address that no pod of this node has", node: 2, hook: "edge-out",
			frame: is(tcpPacket(SYN, from("10.7.2.99"))), context: pod, want: "edge-out drop-unknown-source"},
		{name: "a pod's address from another device", node: 2, hook: "edge-out",
			frame: is(tcpPacket(SYN)), context: Context{IngressIfindex: podDevice + 1}, want: "edge-out drop-unknown-source"},
		{name: "a pod's address from a socket of the node", node: 2, hook: "edge-out", frame: is(tcpPacket(SYN)), want: "edge-out drop-unknown-source"},
		{name: "the node's address from a pod", node: 2, hook: "edge-out",
			frame: is(tcpPacket(SYN, from("172.16.1.2"))), context: pod, want: "edge-out drop-unknown-source"},
		{name: "a pod's address from another device, in a connection that the pod has", node: 2, hook: "edge-out", prepare: opened(tcpPacket(SYN)),
			frame: is(tcpPacket(RST | ACK)), context: Context{IngressIfindex: podDevice + 1}, want: "edge-out drop-unknown-source"},
		{name: "a backend's address from another device, in a connection that it serves", node: 2, hook: "edge-out",
			prepare: func(t *testing.T, k *Kernel) { k.delivered(t, k.arrive(t, toNode2(clientTCP(SYN, to(global(1, 21)))))) },
			frame:   is(tcpPacket(RST|ACK, to(ip("120.2.0.1")), ports(8080, 1500))), context: Context{IngressIfindex: podDevice + 1}, want: "edge-out drop-unknown-source"},
		{name: "an ICMP error about a pod's connection from another pod", node: 2, hook: "edge-out", prepare: opened(udpPacket("x")), context: pod,
			frame: is(icmpError(udpPacket("a", from("120.2.0.20"), to(ip("10.7.2.10")), ports(53, 40000)), ip("10.7.2.11"), global(2, 20), 8)), want: "edge-out drop-unknown-source"},
		{name: "an unmarked packet to a node's overlay port leaves by the uplink", node: 2, hook: "uplink-out",
			frame: wire(overlay(1, 2, 3, nil)), want: "uplink-out drop-injected"},
		{name: "an unmarked packet to a remote gateway's cable port leaves by a gateway's uplink", node: 1, hook: "uplink-out",
			frame: wire(cable(1, 1, 1, nil)), want: "uplink-out drop-injected"},
		{name: "the first fragment of such a packet", node: 2, hook: "uplink-out",
			frame: raw(Frame(Fragments(overlay(1, 2, 3, make([]byte, 2000)).Encode()[14:], 1400)[0])), want: "uplink-out drop-injected"},
		{name: "such a packet with IP options", node: 2, hook: "uplink-out", frame: raw(withOptions(t, overlay(1, 2, 3, nil))), want: "uplink-out drop-injected"},
		{name: "the first fragment of such a packet with IP options", node: 2, hook: "uplink-out",
			frame: raw(Frame(Fragments(withOptions(t, overlay(1, 2, 3, make([]byte, 2000)))[14:], 1400)[0])), want: "uplink-out drop-injected"},
		{name: "a packet to the overlay port with IP options", node: 2, hook: "uplink-in", frame: raw(withOptions(t, toNode2(clientTCP(SYN)))), want: "uplink-in drop-injected"},
		{name: "the first fragment of a packet to the overlay port", node: 2, hook: "uplink-in",
			frame: raw(Frame(Fragments(overlay(1, 1, 2, make([]byte, 2000)).Encode()[14:], 1400)[0])), want: "uplink-in drop-injected"},
		{name: "the smallest first fragment", node: 2, hook: "uplink-in",
			frame: raw(Frame(Fragments(overlay(1, 1, 2, nil).Encode()[14:], 28)[0])), want: "uplink-in drop-injected"},
		{name: "a packet to the cable port with IP options", node: 1, hook: "uplink-in", frame: raw(withOptions(t, toGateway(clientTCP(SYN)))), want: "uplink-in drop-injected"},
		{name: "the first fragment of a packet to the cable port", node: 1, hook: "uplink-in",
			frame: raw(Frame(Fragments(cable(2, 1, 1, make([]byte, 2000)).Encode()[14:], 1400)[0])), want: "uplink-in drop-injected"},
		{name: "what reaches pelago0 without tunnel metadata", node: 2, hook: "edge-in", frame: is(clientTCP(SYN)), want: "edge-in drop-unverified"},

		// Where it goes.
		{name: "a destination of no accepted cluster", node: 2, hook: "edge-out", frame: is(tcpPacket(SYN, to(ip("120.9.0.1")))), context: pod, want: "edge-out drop-no-route"},
		{name: "no gateway in this cluster", node: 2, hook: "edge-out",
			state: func(s *dataplane.State) { s.Gateways = nil }, frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-no-gateway"},
		{name: "a gateway that knows no gateway of the far cluster asks its sibling", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { clear(s.Clusters) },
			frame: wire(overlay(1, 2, 1, udpPacket("x", from("120.1.0.1")).Encode())), want: "uplink-in bounced"},
		{name: "no gateway in the far cluster", node: 1, hook: "uplink-in", state: func(s *dataplane.State) { clear(s.Clusters) },
			frame: wire(overlay(1, 4, 1, udpPacket("x", from("120.1.0.1")).Encode(), func(o *Overlay) { o.Flags = Bounced })), want: "uplink-in drop-no-gateway"},
		{name: "the gateway picked has no address", node: 2, hook: "edge-out",
			state: func(s *dataplane.State) { clear(s.Nodes) }, frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-unknown-node"},
		{name: "the owner of the block has no address", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { delete(s.Nodes, 3) }, frame: wire(toGateway(answerTo(3))), want: "uplink-in drop-unknown-node"},
		{name: "a cable packet at a node that ceased to be a gateway", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { s.Settings.Gateway = false }, frame: wire(toGateway(clientTCP(SYN))), want: "uplink-in drop-not-gateway"},
		{name: "from a cable to a third cluster: no transit", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) {
				s.Routes[netip.MustParsePrefix("120.3.0.0/24")] = 3
				s.Clusters[3] = s.Clusters[2]
			}, frame: wire(toGateway(clientTCP(SYN, to(ip("120.3.0.20"))))), want: "uplink-in drop-not-own"},
		{name: "from a cable back to the cluster that it came from", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN, to(ip("120.2.0.20"))))), want: "uplink-in drop-not-own"},
		{name: "bounced by a sibling, to a remote cluster: no transit either", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 4, 1, clientTCP(SYN, to(ip("120.2.0.20"))).Encode(), func(o *Overlay) { o.Flags = Bounced | Switch })), want: "uplink-in drop-not-own"},
		{name: "for an address of the own cluster that is nobody's", node: 1, hook: "uplink-in",
			frame: wire(overlay(1, 2, 1, tcpPacket(SYN, from("120.1.0.1"), to(global(1, 77))).Encode(), hairpinned)), want: "uplink-in drop-not-own"},
		{name: "for an address that is nobody's, at a node", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN, to(global(1, 77))))), want: "uplink-in drop-not-own"},
		{name: "a block that the sibling does not know either", node: 1, hook: "uplink-in", state: func(s *dataplane.State) { clear(s.Blocks) },
			frame: wire(overlay(1, 4, 1, answerTo(3).Encode(), func(o *Overlay) { o.Flags = Bounced | Switch })), want: "uplink-in drop-unknown-block"},
		{name: "a block that nobody knows, and there is no sibling", node: 1, hook: "uplink-in",
			state: func(s *dataplane.State) { clear(s.Blocks); s.Gateways = []uint16{1} }, frame: wire(toGateway(answerTo(3))), want: "uplink-in drop-unknown-block"},
		{name: "an exported address, a port that is not", node: 1, hook: "uplink-in", frame: wire(toGateway(clientTCP(SYN, ports(1500, 81)))), want: "uplink-in drop-no-service", answer: true},
		{name: "the port of another protocol", node: 1, hook: "uplink-in", frame: wire(toGateway(clientUDP(ports(1500, 80)))), want: "uplink-in drop-no-service", answer: true},
		{name: "the same at the edge", node: 2, hook: "uplink-in", frame: wire(toNode2(clientTCP(SYN, ports(1500, 81)))), want: "uplink-in drop-no-service", answer: true},
		{name: "an exported service without any backend", node: 1, hook: "uplink-in", frame: wire(toGateway(clientTCP(SYN, to(global(1, 22))))), want: "uplink-in drop-no-backend", answer: true},
		{name: "a bounced packet at a node without a backend", node: 2, hook: "uplink-in",
			frame: wire(toNode2(clientTCP(SYN, to(global(1, 22))), func(o *Overlay) { o.Flags = Bounced })), want: "uplink-in drop-no-backend", answer: true},
		{name: "a node without a backend, and no gateway to ask", node: 2, hook: "uplink-in", state: func(s *dataplane.State) { s.Gateways = nil },
			frame: wire(toNode2(clientTCP(SYN, to(global(1, 22))))), want: "uplink-in drop-no-backend"},
		{name: "the address of a pod that is not on this node", node: 3, hook: "uplink-in",
			frame: wire(overlay(1, 1, 3, clientTCP(SYN, to(global(1, 100))).Encode())), want: "uplink-in drop-no-backend"},

		{name: "a service that is exported to other clusters only", node: 2, hook: "uplink-in", state: exportTo(global(1, 20), 3),
			frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-not-exported"},
		{name: "a segment in the middle of a connection to it is not answered", node: 2, hook: "uplink-in", state: exportTo(global(1, 20), 3),
			frame: wire(toNode2(clientTCP(ACK))), want: "uplink-in drop-not-exported"},
		{name: "the same over UDP", node: 2, hook: "uplink-in", state: exportTo(global(1, 20), 3),
			frame: wire(toNode2(clientUDP())), want: "uplink-in drop-not-exported"},
		{name: "a gateway that is the edge", node: 1, hook: "uplink-in", state: func(s *dataplane.State) {
			exportTo(global(1, 20))(s)
			s.Services[own(20, 80)] = dataplane.Service{Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.1.10:8080")}, Table: []uint16{1}}
		}, frame: wire(toGateway(clientTCP(SYN))), want: "uplink-in drop-not-exported"},
		{name: "a pod that is exported to other clusters only", node: 2, hook: "uplink-in", state: exportTo(global(1, 100), 3),
			frame: wire(toNode2(clientTCP(SYN, to(global(1, 100))))), want: "uplink-in drop-not-exported"},
		{name: "a restricted service without an audience", node: 2, hook: "uplink-in", state: func(s *dataplane.State) {
			s.Globals[global(1, 20)] = dataplane.Global{Kind: dataplane.GlobalService, Restricted: true}
		}, frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-not-exported"},
		{name: "a service that is exported to this cluster", node: 2, hook: "uplink-in", state: exportTo(global(1, 20), 2, 3),
			frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in delivered"},
		{name: "what answers a pod that is exported to others", node: 2, hook: "uplink-in", state: exportTo(global(1, 100), 3),
			prepare: opened(udpPacket("x", from("10.7.2.11"))),
			frame:   wire(toNode2(udpPacket("y", from("120.2.0.20"), to(global(1, 100)), ports(53, 40000)))), want: "uplink-in delivered"},

		{name: "a handshake of the wire from an unknown address, one too many", node: 1, hook: "uplink-in", prepare: func(t *testing.T, k *Kernel) {
			if err := errors.Join(k.Loader.Guard([]uint16{51820}, nil), k.Calls.Put(uint32(0), uint64(nanotime(t))+3600e9)); err != nil {
				t.Fatal(err)
			}
			k.networks(t, uint64(nanotime(t))+3600e9)
		}, frame: raw(handshake(1, "198.51.100.7", 51820)), want: "uplink-in drop-handshake"},

		// Flows.
		{name: "a segment in the middle of a connection that is not there", node: 2, hook: "edge-out", frame: is(tcpPacket(FIN)), context: pod, want: "edge-out drop-no-flow"},
		{name: "a flow on a tuple whose last one is just being removed", node: 2, hook: "edge-out", own: true, prepare: func(t *testing.T, k *Kernel) {
			opened(udpPacket("x"))(t, k)
			for key, f := range k.entries(t) {
				if f.Primary == 0 {
					if err := k.Flows.Delete(key); err != nil {
						t.Fatal(err)
					}
					continue
				}
				f.State |= 1
				if err := k.Flows.Put(key, f); err != nil {
					t.Fatal(err)
				}
			}
		}, frame: is(udpPacket("x")), context: pod, want: "edge-out drop-tuple-clash"},
		{name: "an echo reply to nothing", node: 2, hook: "edge-out", frame: is(echoPacket(EchoReply)), context: pod, want: "edge-out drop-no-flow"},
		{name: "an ICMP error about no connection", node: 2, hook: "edge-out", context: pod,
			frame: is(icmpError(udpPacket("a", from("120.2.0.20"), to(ip("10.7.2.10")), ports(53, 40000)), ip("10.7.2.10"), global(2, 20), 8)), want: "edge-out drop-no-flow"},
		{name: "a datagram to a port of an egress IP that is not in use", node: 2, hook: "uplink-in", frame: wire(toNode2(answerTo(2))), want: "uplink-in drop-no-flow"},
		{name: "a reset without a flow is not answered", node: 2, hook: "uplink-in", frame: wire(toNode2(clientTCP(RST | ACK))), want: "uplink-in drop-no-flow"},
		{name: "a pod without an egress IP", node: 2, hook: "edge-out",
			state: func(s *dataplane.State) { s.Sources[ip("10.7.2.10")] = dataplane.Source{Ifindex: podDevice} },
			frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-no-egress"},
		{name: "an egress IP of which this node has no block", node: 2, hook: "edge-out",
			state: func(s *dataplane.State) { clear(s.Egresses) }, frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-no-egress"},
		{name: "all 256 ports in use towards one remote endpoint", node: 2, hook: "edge-out", prepare: exhaust, frame: is(udpPacket("x", ports(50000, 53))), context: pod, want: "edge-out drop-ports-exhausted", answer: true},
		{name: "the flow table is full of flows that may not go", node: 2, hook: "edge-out", own: true,
			prepare: func(t *testing.T, k *Kernel) { k.fill(t, true) }, frame: is(udpPacket("x")), context: pod, want: "edge-out drop-flows-full"},
		{name: "the flow table is full, at the server's side", node: 2, hook: "uplink-in", own: true,
			prepare: func(t *testing.T, k *Kernel) { k.fill(t, true) }, frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-flows-full"},
		{name: "the kernel has no memory for a flow", node: 2, hook: "edge-out", own: true,
			prepare: func(t *testing.T, k *Kernel) {
				k.EdgeOut = k.withoutMemory(t, bpf.PelagoProgEdgeOut, "flow_open_client")
			}, frame: is(udpPacket("x")), context: pod, want: "edge-out drop-no-memory"},
		{name: "the same at the server's side", node: 2, hook: "uplink-in", own: true,
			prepare: func(t *testing.T, k *Kernel) {
				k.UplinkIn = k.withoutMemory(t, bpf.PelagoProgUplinkIn, "flow_open_server")
			}, frame: wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-no-memory"},
		{name: "a pod has its share of the flow table", node: 2, hook: "edge-out",
			prepare: func(t *testing.T, k *Kernel) {
				k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}, maxFlows/4)
			}, frame: is(udpPacket("x")), context: pod, want: "edge-out drop-quota"},
		{name: "its neighbour has not", node: 2, hook: "edge-out",
			prepare: func(t *testing.T, k *Kernel) {
				k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}, maxFlows/4)
			}, frame: is(udpPacket("x", from("10.7.2.11"))), context: pod, want: "edge-out sent"},
		{name: "a flow that it has goes on", node: 2, hook: "edge-out",
			prepare: func(t *testing.T, k *Kernel) {
				opened(udpPacket("x"))(t, k)
				k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}, maxFlows/4)
			}, frame: is(udpPacket("x")), context: pod, want: "edge-out sent"},
		{name: "a remote cluster has its share of the flow table", node: 2, hook: "uplink-in",
			prepare: func(t *testing.T, k *Kernel) { k.useUp(t, bpf.PelagoUsageKey{Cluster: 2}, maxFlows/2) },
			frame:   wire(toNode2(clientTCP(SYN))), want: "uplink-in drop-quota"},
		{name: "two pods with one global IP use one port towards one endpoint", node: 2, hook: "edge-out",
			state:   func(s *dataplane.State) { s.Sources[ip("10.7.2.10")] = s.Sources[ip("10.7.2.11")] },
			prepare: opened(tcpPacket(SYN, from("10.7.2.11"))), frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-tuple-clash"},

		// What cannot be carried.
		{name: "a later fragment without the first", node: 2, hook: "edge-out", frame: is(later), context: pod, want: "edge-out drop-fragment"},
		{name: "an inner fragment without its ports", node: 2, hook: "uplink-in", frame: wire(toNode2(later.with(from("120.2.0.1"), to(global(1, 20))))), want: "uplink-in drop-fragment"},
		{name: "an ICMP error about a later fragment", node: 2, hook: "edge-out", context: pod, prepare: opened(udpPacket("x")),
			frame: is(icmpError(later.with(from("120.2.0.20"), to(ip("10.7.2.10"))), ip("10.7.2.10"), global(2, 20), 8)), want: "edge-out drop-fragment"},
		{name: "UDP-Lite", node: 2, hook: "edge-out", context: pod,
			frame: is(Packet{Source: ip("10.7.2.10"), Destination: global(2, 20), TTL: 64, Protocol: 136, Payload: make([]byte, 32)}), want: "edge-out drop-protocol"},
		{name: "SCTP of a pod behind an egress IP, whose port would change", node: 2, hook: "edge-out", context: pod, frame: is(sctpPacket(5000, 5000)), want: "edge-out drop-protocol"},
		{name: "SCTP of a headless pod", node: 2, hook: "edge-out", context: pod, frame: is(sctpPacket(5000, 5000, from("10.7.2.11"))), want: "edge-out sent"},
		{name: "SCTP in one packet for the kernel to cut", node: 2, hook: "edge-out", context: Context{IngressIfindex: podDevice, GSOSegments: 2, GSOSize: 16},
			frame: is(sctpPacket(5000, 5000, from("10.7.2.11"))), want: "edge-out drop-protocol"},
		{name: "an SCTP header that is cut short", node: 2, hook: "edge-out", context: pod,
			frame: is(sctpPacket(5000, 5000, from("10.7.2.11"), func(p *Packet) { p.Payload = p.Payload[:11] })), want: "edge-out drop-malformed"},
		{name: "SCTP to a service whose pods listen on the same port", node: 2, hook: "uplink-in", state: sctpService(5000),
			frame: wire(toNode2(sctpPacket(5000, 5000, from("120.2.0.100"), to(global(1, 20))))), want: "uplink-in delivered"},
		{name: "SCTP to a service whose pods listen on another port", node: 2, hook: "uplink-in", state: sctpService(5001),
			frame: wire(toNode2(sctpPacket(5000, 5000, from("120.2.0.100"), to(global(1, 20))))), want: "uplink-in drop-protocol"},
		{name: "an ICMP timestamp request", node: 2, hook: "edge-out", context: pod, frame: is(echoPacket(13)), want: "edge-out drop-protocol"},
		{name: "an ICMP error about UDP-Lite", node: 2, hook: "edge-out", context: pod,
			frame: is(icmpError(Packet{Source: global(2, 20), Destination: ip("10.7.2.10"), Protocol: 136, Payload: make([]byte, 32)}, ip("10.7.2.10"), global(2, 20), 8)), want: "edge-out drop-protocol"},
		{name: "IPv6 on pelago0", node: 2, hook: "edge-out", context: pod,
			frame: raw(append(patch(Frame(nil), 12, 0x86, 0xdd), make([]byte, 60)...)), want: "edge-out drop-protocol"},
		{name: "an outer time to live that ends here", node: 1, hook: "uplink-in",
			frame: wire(toGateway(clientTCP(SYN), func(o *Overlay) { o.TTL = 1 })), want: "uplink-in drop-ttl"},
		{name: "larger than the uplink's MTU with the overlay header", node: 2, hook: "edge-out", loMTU: 1400,
			frame: is(udpPacket(string(make([]byte, 1400-50-28+1)))), context: pod, want: "edge-out drop-too-big"},
		{name: "as large as the uplink's MTU with the overlay header", node: 2, hook: "edge-out", loMTU: 1400,
			frame: is(udpPacket(string(make([]byte, 1400-50-28)))), context: pod, want: "edge-out sent"},
		{name: "larger than the cable's MTU at a gateway", node: 1, hook: "uplink-in", loMTU: 1400,
			frame: wire(overlay(1, 2, 1, udpPacket(string(make([]byte, 1400-50-28+1)), from("120.1.0.1")).Encode())), want: "uplink-in drop-too-big"},
		{name: "a table that no loader writes", node: 2, hook: "edge-out", own: true, prepare: func(t *testing.T, k *Kernel) {
			key := global(1, 1).As4()
			if err := k.Egresses.Put(binary.NativeEndian.Uint32(key[:]), bpf.PelagoEgress{Count: 1 << 23}); err != nil {
				t.Fatal(err)
			}
		}, frame: is(tcpPacket(SYN)), context: pod, want: "edge-out drop-internal"},
	}
}

// exhaust allocates every port of node 2 towards UDP port 53 of 120.2.0.20, as many sources with few
// flows could. The search for a free port is random, so the last ones need many packets.
func exhaust(t *testing.T, k *Kernel) {
	port := uint16(20000)
	await.True(t, "256 flows", func() bool {
		for range 256 {
			k.useUp(t, bpf.PelagoUsageKey{Source: be32(ip("10.7.2.10"))}, 0)
			if _, err := k.TryRun(k.EdgeOut, Frame(udpPacket("x", ports(port, 53)).Encode()), Context{IngressIfindex: podDevice}); err != nil {
				t.Fatal(err)
			}
			if port++; port == 0 {
				port = 20000
			}
		}
		return k.flows(t) >= 256
	})
	if err := k.Answers.Put(uint32(0), uint64(0)); err != nil {
		t.Fatal(err)
	}
}

// withoutMemory loads a program over the maps of k in which every update of a map by a function
// fails with ENOMEM.
func (k *Kernel) withoutMemory(t *testing.T, program, function string) *ebpf.Program {
	t.Helper()
	spec, err := bpf.LoadPelago()
	if err != nil {
		t.Fatal(err)
	}
	spec.Programs = map[string]*ebpf.ProgramSpec{program: spec.Programs[program]}
	within, failing := false, 0
	for i, ins := range spec.Programs[program].Instructions {
		if f := btf.FuncMetadata(&ins); f != nil {
			within = f.Name == function
		}
		if within && ins.IsBuiltinCall() && asm.BuiltinFunc(ins.Constant) == asm.FnMapUpdateElem {
			with := asm.Mov.Imm(asm.R0, -int32(unix.ENOMEM)).WithMetadata(ins.Metadata)
			spec.Programs[program].Instructions[i] = with
			failing++
		}
	}
	if failing == 0 {
		t.Fatalf("%s updates no map in %s", function, program)
	}
	c, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{Maps: ebpf.MapOptions{PinPath: k.pins}})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(c.Close)
	return c.Programs[program]
}

// withOptions is the frame of an overlay packet with options in its outer header.
func withOptions(t testing.TB, o Overlay) []byte {
	outer := decode(t, o.Encode()[14:])
	outer.Options = []byte{1, 1, 1, 1} // no operation
	return Frame(outer.Encode())
}

func own(n byte, port uint16) dataplane.ServiceKey {
	return dataplane.ServiceKey{Address: global(1, n), Port: port, Protocol: ProtocolTCP}
}

// patch returns b with other bytes at an offset, checksums as they were.
func patch(b []byte, at int, with ...byte) []byte {
	b = slices.Clone(b)
	copy(b[at:], with)
	return b
}

func TestVerdicts(t *testing.T) {
	for _, r := range slices.Concat(rows(t), externalRows()) {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			var k *Kernel
			if r.own {
				k = loadTimers(t, loader.Timers{}, 1, r.node)
			} else {
				k = load(t, 1, r.node)
			}
			s := state(1, r.node)
			if r.state != nil {
				r.state(&s)
			}
			k.Apply(t, s)
			if r.prepare != nil {
				r.prepare(t, k)
			}
			frame := r.frame(t, k)
			var got Result
			run := func() { got = k.Run(t, k.program(r.hook), frame, r.context) }
			if r.loMTU == 0 {
				run()
			} else {
				ns := netns.ForTest(t, "lo")
				if _, err := ns.Run("ip", "link", "set", "lo", "mtu", fmt.Sprint(r.loMTU)); err != nil {
					t.Fatal(err)
				}
				if err := ns.Do(func() error { run(); return nil }); err != nil {
					t.Fatal(err)
				}
			}
			if got.Verdict != r.want {
				t.Fatalf("counted %q; want %q", got.Verdict, r.want)
			}
			want := Redirect
			switch {
			case r.want == "pod-out own-service":
				want = Next
			case r.answer:
			case strings.Contains(r.want, "drop-"), r.want == "uplink-in probe" && frame[46] == ProbeReply:
				want = Drop
			}
			if got.Action != want {
				t.Errorf("action %d; want %d", got.Action, want)
			}
		})
	}
}

// Every verdict of the kernel side has a row above.
func TestEveryVerdictHasARow(t *testing.T) {
	tested := map[string]bool{}
	for _, r := range rows(t) {
		_, verdict, _ := strings.Cut(r.want, " ")
		tested[verdict] = true
	}
	for _, v := range bpf.Verdicts() {
		if !tested[v.String()] {
			t.Errorf("no row in TestVerdicts ends with %q", v)
		}
	}
}
