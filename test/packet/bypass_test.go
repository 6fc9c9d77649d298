package packet

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// loopback is the device of packets in a test run.
const loopback = 1

var podMAC = [6]byte{2, 0, 0, 7, 2, 10}

// bypassing gives pod 10.7.2.10 of node 2 a device of its own.
func bypassing(t testing.TB, datapath dataplane.Datapath, change ...func(*dataplane.Endpoint)) *Kernel {
	t.Helper()
	k := load(t, 1, 2)
	e := dataplane.Endpoint{Ifindex: loopback, MAC: podMAC, Datapath: datapath}
	for _, f := range change {
		f(&e)
	}
	s := state(1, 2)
	s.Endpoints = map[netip.Addr]dataplane.Endpoint{ip("10.7.2.10"): e}
	k.Apply(t, s)
	return k
}

// passedTick is the number of ticks since the boot.
func passedTick(t testing.TB) int64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &now); err != nil {
		t.Fatal(err)
	}
	return now.Nano() >> int64(bpf.PelagoPassedPASSED_TICK)
}

// passed sets when the stack last let a packet of every flow pass, in ticks before now; age 0: not
// asked.
func (k *Kernel) passed(t testing.TB, age int) {
	t.Helper()
	value := uint8(0)
	if age > 0 {
		ticks := int64(bpf.PelagoPassedPASSED_TICKS)
		value = uint8((passedTick(t)-int64(age-1)+ticks)%ticks + 1)
	}
	var key bpf.PelagoFlowKey
	var flow bpf.PelagoFlow
	flows := map[bpf.PelagoFlowKey]bpf.PelagoFlow{}
	for it := k.Flows.Iterate(); it.Next(&key, &flow); {
		flows[key] = flow
	}
	for key, flow := range flows {
		flow.Passed = value
		if err := k.Flows.Put(key, flow); err != nil {
			t.Fatal(err)
		}
	}
}

func (k *Kernel) pending(t testing.TB) (n int) {
	t.Helper()
	var key bpf.PelagoFlowKey
	var flow bpf.PelagoFlow
	for it := k.Flows.Iterate(); it.Next(&key, &flow); {
		if flow.Passed == uint8(bpf.PelagoPassedPASSED_PENDING) {
			n++
		}
	}
	return n
}

// Which packets of a pod bypass the stack. All others pass unchanged and uncounted.
func TestBypassOut(t *testing.T) {
	ttl := func(n uint8) func(*Packet) { return func(p *Packet) { p.TTL = n } }
	size := func(n int) func(*Packet) { return func(p *Packet) { p.Payload = make([]byte, n) } }
	tests := []struct {
		name     string
		datapath dataplane.Datapath
		endpoint func(*dataplane.Endpoint)
		flow     bool // the packet's flow is known
		age      int  // of the last packet that the stack let pass, in ticks; 0: not asked
		packet   Packet
		context  Context
		want     bool
	}{
		{name: "fast, a new connection", datapath: dataplane.Fast, packet: tcpPacket(SYN), want: true},
		{name: "fast, a datagram of a new flow", datapath: dataplane.Fast, packet: udpPacket("x"), want: true},
		{name: "fast, a known flow", datapath: dataplane.Fast, flow: true, packet: tcpPacket(ACK), want: true},
		{name: "fast, the end of a connection", datapath: dataplane.Fast, flow: true, packet: tcpPacket(FIN | ACK), want: true},
		{name: "fast, a segment without a flow", datapath: dataplane.Fast, packet: tcpPacket(ACK)},
		{name: "fast, not for another cluster", datapath: dataplane.Fast, packet: udpPacket("x", to(ip("8.8.8.8")))},
		{name: "fast, a ping", datapath: dataplane.Fast, packet: echoPacket(Echo)},
		{name: "fast, the last hop", datapath: dataplane.Fast, packet: udpPacket("x", ttl(1))},
		{name: "fast, as large as the wires take", datapath: dataplane.Fast, packet: udpPacket("", size(1450-28)), want: true},
		{name: "fast, too large", datapath: dataplane.Fast, packet: udpPacket("", size(1450-27))},
		// Those of segments that fit are for real devices: a test run has no GSO type to push a
		// header by.
		{name: "fast, a GSO packet of segments that do not fit", datapath: dataplane.Fast, flow: true,
			packet: tcpPacket(ACK, size(2822)), context: Context{GSOSegments: 2, GSOSize: 1411}},
		{name: "fast, of another pod", datapath: dataplane.Fast, packet: tcpPacket(SYN, from("10.7.2.11"))},
		{name: "fast, on another device", datapath: dataplane.Fast, endpoint: func(e *dataplane.Endpoint) { e.Ifindex = 7 }, packet: tcpPacket(SYN)},
		{name: "strict", datapath: dataplane.Strict, flow: true, age: 1, packet: tcpPacket(ACK)},
		{name: "hybrid, a new connection", datapath: dataplane.Hybrid, packet: tcpPacket(SYN)},
		{name: "hybrid, the stack has not been asked", datapath: dataplane.Hybrid, flow: true, packet: tcpPacket(ACK)},
		{name: "hybrid, the stack let one pass just now", datapath: dataplane.Hybrid, flow: true, age: 1, packet: tcpPacket(ACK), want: true},
		{name: "hybrid, half a second ago", datapath: dataplane.Hybrid, flow: true, age: 3, packet: tcpPacket(ACK), want: true},
		{name: "hybrid, more than a second ago", datapath: dataplane.Hybrid, flow: true, age: 5, packet: tcpPacket(ACK)},
		{name: "hybrid, nearly a turn of the counter ago", datapath: dataplane.Hybrid, flow: true, age: 253, packet: tcpPacket(ACK)},
		{name: "hybrid, the end of a connection", datapath: dataplane.Hybrid, flow: true, age: 1, packet: tcpPacket(FIN | ACK)},
		{name: "hybrid, a reset", datapath: dataplane.Hybrid, flow: true, age: 1, packet: tcpPacket(RST | ACK)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var change []func(*dataplane.Endpoint)
			if tt.endpoint != nil {
				change = append(change, tt.endpoint)
			}
			k := bypassing(t, tt.datapath, change...)
			if tt.flow {
				k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent")
			}
			frame := Frame(tt.packet.Encode())
			var got Result
			// again, if the age has changed meanwhile
			for tick := int64(-1); tick != passedTick(t); {
				tick = passedTick(t)
				if tt.flow {
					k.passed(t, tt.age)
				}
				got = k.Run(t, k.PodOut, frame, tt.context)
			}
			if !tt.want {
				if got.Action != Next || got.Verdict != "" || string(got.Frame) != string(frame) {
					t.Errorf("action %d, verdict %q; want it passed on unchanged", got.Action, got.Verdict)
				}
				return
			}
			o := k.sent(t, got, "pod-out sent")
			// The same as behind the stack, which decrements the TTL.
			stack := tt.packet.with(func(p *Packet) { p.TTL-- })
			want := k.sent(t, k.fromPod(t, stack), "edge-out sent")
			wantEqual(t, "packet", want, o)
		})
	}
}

// A flow without a fresh pass asks the stack, so that its old tick never becomes fresh again.
func TestBypassAsks(t *testing.T) {
	k := bypassing(t, dataplane.Hybrid)
	k.sent(t, k.fromPod(t, tcpPacket(SYN)), "edge-out sent")
	k.passed(t, 5)
	k.Run(t, k.PodOut, Frame(tcpPacket(ACK).Encode()), Context{})
	if n := k.pending(t); n != 1 {
		t.Errorf("%d entries ask for a packet that the stack lets pass; want the one of the packet's direction", n)
	}
	// There is no such connection in conntrack.
	k.sent(t, k.fromPod(t, tcpPacket(ACK)), "edge-out sent")
	if n := k.pending(t); n != 1 {
		t.Errorf("%d entries ask; want the entry to ask until conntrack has the connection assured", n)
	}
}

// Which packets for a pod bypass the stack: they are redirected into the pod, with its MAC address
// and a decremented TTL.
func TestBypassIn(t *testing.T) {
	tests := []struct {
		name     string
		datapath dataplane.Datapath
		flow     bool
		age      int
		packet   Packet
		want     bool
	}{
		{name: "fast, a new connection", datapath: dataplane.Fast, packet: clientTCP(SYN, to(global(1, 21))), want: true},
		{name: "fast, a known flow", datapath: dataplane.Fast, flow: true, packet: clientTCP(ACK, to(global(1, 21))), want: true},
		{name: "fast, the last hop", datapath: dataplane.Fast, packet: clientTCP(SYN, to(global(1, 21)), func(p *Packet) { p.TTL = 1 })},
		{name: "strict", datapath: dataplane.Strict, flow: true, age: 1, packet: clientTCP(ACK, to(global(1, 21)))},
		{name: "hybrid, a new connection", datapath: dataplane.Hybrid, packet: clientTCP(SYN, to(global(1, 21)))},
		{name: "hybrid, the stack has not been asked", datapath: dataplane.Hybrid, flow: true, packet: clientTCP(ACK, to(global(1, 21)))},
		{name: "hybrid, the stack let one pass just now", datapath: dataplane.Hybrid, flow: true, age: 1, packet: clientTCP(ACK, to(global(1, 21))), want: true},
		{name: "hybrid, more than a second ago", datapath: dataplane.Hybrid, flow: true, age: 5, packet: clientTCP(ACK, to(global(1, 21)))},
		{name: "hybrid, a reset", datapath: dataplane.Hybrid, flow: true, age: 1, packet: clientTCP(RST, to(global(1, 21)))},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			k := bypassing(t, tt.datapath)
			if tt.flow {
				k.Run(t, k.UplinkIn, overlay(1, 1, 2, clientTCP(SYN, to(global(1, 21))).Encode()).Encode(), Context{})
				k.passed(t, tt.age)
			}
			got := k.Run(t, k.UplinkIn, overlay(1, 1, 2, tt.packet.Encode()).Encode(), Context{})
			want := tt.packet.with(to(ip("10.7.2.10")), ports(1500, 8080), func(p *Packet) { p.Protocol = ProtocolTCP })
			if !tt.want {
				wantEqual(t, "packet", want, k.delivered(t, got))
				return
			}
			if got.Action != Redirect || !strings.Contains(got.Verdict, "pod-in delivered") || !strings.Contains(got.Verdict, "uplink-in delivered") {
				t.Fatalf("action %d, verdict %q; want it redirected into the pod", got.Action, got.Verdict)
			}
			if [6]byte(got.Frame[:6]) != podMAC {
				t.Errorf("destination %x; want the pod's MAC address", got.Frame[:6])
			}
			want.TTL--
			wantEqual(t, "packet", want, decode(t, got.Frame[14:]))
		})
	}
}

// In fast mode any packet of a pod either takes the stack unchanged, or leaves as it would have
// behind it.
func TestBypassAnyPacket(t *testing.T) {
	k := bypassing(t, dataplane.Fast)
	rapid.Check(t, func(rt *rapid.T) {
		p := drawPacket(rt, ip("10.7.2.10"), global(2, 20))
		frame := Frame(p.Encode())
		got := k.Run(t, k.PodOut, frame, Context{})
		if got.Action == Next {
			if got.Verdict != "" || string(got.Frame) != string(frame) {
				rt.Fatalf("verdict %q; want it passed on unchanged", got.Verdict)
			}
			return
		}
		o := k.sent(t, got, "pod-out sent")
		stack := p.with(func(p *Packet) { p.TTL-- })
		wantEqual(t, "packet", k.sent(t, k.fromPod(t, stack), "edge-out sent"), o)
	})
}
