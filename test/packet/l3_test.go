package packet

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/netns"
)

// A test run reads the EtherType where an IPv4 packet without Ethernet header has its source: with
// this one it is that of IPv4.
func l3Peer(node int) netip.Addr { return netip.AddrFrom4([4]byte{8, 0, 1, byte(node)}) }

// l3Node is a node that is reached from the nodes 1 to 4 at l3Peer, by a device without Ethernet
// header.
func l3Node(t *testing.T, node uint16) *Kernel {
	t.Helper()
	k := load(t, 1, node)
	s := state(1, node)
	for n := uint16(1); n <= 4; n++ {
		s.Peers[l3Peer(int(n))] = dataplane.Peer{Kind: dataplane.PeerNode, Node: n}
	}
	k.Apply(t, s)
	return k
}

// loaded is a program that Open does not load.
func (k *Kernel) loaded(t *testing.T, name string) *ebpf.Program {
	t.Helper()
	p, err := k.Loader.Program(name)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// arriveL3 runs uplink_l3_in on the packet of a frame, and compares with uplink_in on the frame. A
// packet that is not passed on has room for an Ethernet header.
func (k *Kernel) arriveL3(t *testing.T, frame []byte, c Context) Result {
	t.Helper()
	in := k.loaded(t, bpf.PelagoProgUplinkL3In)
	want := k.Run(t, k.UplinkIn, frame, c)
	got := k.Run(t, in, frame[14:], c)
	if got.Action != want.Action || got.Verdict != want.Verdict || got.Mark != want.Mark || got.Priority != want.Priority {
		t.Errorf("action %d, verdict %q, mark %#x, priority %#x; want those of an Ethernet device: %d, %q, %#x, %#x",
			got.Action, got.Verdict, got.Mark, got.Priority, want.Action, want.Verdict, want.Mark, want.Priority)
	}
	if want.Verdict == "" {
		if !bytes.Equal(got.Frame, frame[14:]) {
			t.Errorf("the packet is passed on changed:\n%x\nwant\n%x", got.Frame, frame[14:])
		}
	} else if len(got.Frame) < 14 || !bytes.Equal(got.Frame[14:], want.Frame[14:]) {
		t.Errorf("packet\n%x\nwant\n%x", got.Frame, want.Frame)
	}
	return got
}

// uplink_l3_in does with a packet what uplink_in does with the same in an Ethernet frame. What is
// decapsulated is left to TestVPNTown: a test run takes the packet's first bytes for an Ethernet
// header, so the kernel's offset of the network header is wrong.
func TestL3Uplink(t *testing.T) {
	l3 := func(from, to int, inner []byte, change ...func(*Overlay)) []byte {
		return overlay(1, from, to, inner, append(change, func(o *Overlay) { o.Source = l3Peer(from) })...).Encode()
	}
	request := tcpPacket(SYN, from("120.1.0.1")).Encode()
	probe := overlay(1, 2, 1, body{Nonce: 1}.encode(), func(o *Overlay) { o.Type, o.Source = Probe, l3Peer(2) }).Encode()
	for _, tt := range []struct {
		name    string
		node    uint16
		frame   []byte
		context Context
		want    string
	}{
		{"to another cluster", 1, l3(2, 1, request), Context{}, "uplink-in switched"},
		{"to a pod, segments", 2, l3(1, 2, clientTCP(ACK, func(p *Packet) { p.Payload = make([]byte, 3000) }).Encode()),
			Context{GSOSegments: 3, GSOSize: 1400}, "uplink-in delivered"},
		{"a probe", 1, probe, Context{}, "uplink-in probe"},
		{"a wrong token", 2, l3(1, 2, request, func(o *Overlay) { o.Token++ }), Context{}, "uplink-in drop-bad-token"},
		{"a stranger", 2, overlay(1, 1, 2, request, func(o *Overlay) { o.Source = ip("8.0.9.9") }).Encode(), Context{}, "uplink-in drop-unknown-peer"},
		{"cut", 2, l3(1, 2, request)[:50], Context{}, "uplink-in drop-malformed"},
		{"to another port", 2, l3(1, 2, request, func(o *Overlay) { o.Port = 4801 }), Context{}, ""},
		{"to another address", 2, l3(1, 3, request), Context{}, ""},
		{"TCP", 2, Frame(tcpPacket(SYN, from("8.0.1.1"), to(nodeIP(1, 2))).Encode()), Context{}, ""},
		{"IPv6", 2, append(Frame(nil), append([]byte{0x60, 0, 0, 0, 0, 20, 17, 64}, make([]byte, 52)...)...), Context{}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			k := l3Node(t, tt.node)
			if tt.name == "to a pod, segments" {
				k.delivered(t, k.Run(t, k.UplinkIn, l3(1, 2, clientTCP(SYN).Encode()), Context{}))
			}
			if got := k.arriveL3(t, tt.frame, tt.context); got.Verdict != tt.want {
				t.Errorf("counted %q, want %q", got.Verdict, tt.want)
			}
		})
	}
}

// The guard: only packets of our programs leave for the ports of nodes.
func TestL3UplinkGuard(t *testing.T) {
	k := l3Node(t, 2)
	out := k.loaded(t, bpf.PelagoProgUplinkL3Out)
	cookie, _, err := k.Loader.Marks()
	if err != nil {
		t.Fatal(err)
	}
	packet := overlay(1, 2, 1, tcpPacket(SYN).Encode()).Encode()[14:]
	other := overlay(1, 2, 1, tcpPacket(SYN).Encode(), func(o *Overlay) { o.Port = 53 }).Encode()[14:]
	for name, tt := range map[string]struct {
		packet []byte
		mark   uint32
		want   Result
	}{
		"ours":         {packet, cookie, Result{Action: Next}},
		"injected":     {packet, 0, Result{Action: Drop, Verdict: "uplink-out drop-injected"}},
		"another port": {other, 0, Result{Action: Next}},
		"another mark": {other, 7, Result{Action: Next, Mark: 7}},
	} {
		t.Run(name, func(t *testing.T) {
			got := k.Run(t, out, tt.packet, Context{Mark: tt.mark})
			if got.Action != tt.want.Action || got.Verdict != tt.want.Verdict || got.Mark != tt.want.Mark || !bytes.Equal(got.Frame, tt.packet) {
				t.Errorf("action %d, verdict %q, mark %#x; want %+v and the same packet", got.Action, got.Verdict, got.Mark, tt.want)
			}
		})
	}
}

// The MTU of a device without Ethernet header counts for the outer packet alone.
func TestL3UplinkMTU(t *testing.T) {
	ns := netns.ForTest(t, "l3mtu")
	if out, err := ns.Run("sh", "-c", "ip tuntap add dev tun0 mode tun && ip link set tun0 mtu 1400"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	index, err := ns.Index("tun0")
	if err != nil {
		t.Fatal(err)
	}
	k := load(t, 1, 2)
	s := state(1, 2)
	for n, hop := range s.Nodes {
		hop.Next, hop.Ifindex = netip.Addr{}, uint32(index)
		s.Nodes[n] = hop
	}
	k.Apply(t, s)
	for size, want := range map[int]string{1350: "edge-out sent", 1351: "edge-out drop-too-big"} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			err := ns.Do(func() error {
				if got := k.fromPod(t, udpPacket(string(make([]byte, size-28)))); got.Verdict != want {
					t.Errorf("counted %q, want %q", got.Verdict, want)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
