package packet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/dataplane"
)

// The pods of cluster 1 that serve the ClusterSetIP, at ports 8080 and 5353; ownClient is a pod
// too.
var (
	ownPods   = []netip.Addr{ip("10.7.2.20"), ip("10.7.3.21"), ip("10.7.4.22")}
	ownClient = ip("10.7.2.10")
)

// servedBy has pods serve the ClusterSetIP in cluster 1.
func servedBy(pods ...netip.Addr) func(*dataplane.State) {
	return func(s *dataplane.State) {
		for key, vip := range s.VIPs {
			port := uint16(8080)
			if key.Protocol == ProtocolUDP {
				port = 5353
			}
			v := dataplane.Service{Affinity: vip.Affinity}
			for _, p := range pods {
				v.Backends = append(v.Backends, netip.AddrPortFrom(p, port))
			}
			slices.SortFunc(v.Backends, netip.AddrPort.Compare)
			s.ServeVIP(key, v)
		}
	}
}

// ownCluster is a node whose cluster alone serves the ClusterSetIP.
func ownCluster(t testing.TB, change ...func(*dataplane.State)) *Kernel {
	t.Helper()
	return balancing(t, [3]int{1, -1, -1}, change...)
}

func (k *Kernel) serve(t testing.TB, change ...func(*dataplane.State)) {
	t.Helper()
	k.Apply(t, balancingState([3]int{1, -1, -1}, change...))
}

// outcome is what a program makes of a packet.
func outcome(t testing.TB, r Result) Packet {
	t.Helper()
	if !strings.Contains(r.Verdict, "own-service") {
		t.Fatalf("action %d, verdict %q; want own-service", r.Action, r.Verdict)
	}
	return decode(t, r.Frame[14:])
}

// A connection to a ClusterSetIP goes to a pod of the own cluster, at its port, and its answers
// come from the ClusterSetIP, wherever they are translated.
func TestOwnPods(t *testing.T) {
	k := ownCluster(t, servedBy(ownPods...))
	used := map[netip.Addr]int{}
	for i := range 60 {
		for _, p := range []Packet{
			tcpPacket(SYN, to(clustersetIP), ports(uint16(40000+i), 80)), udpPacket("q", to(clustersetIP), ports(uint16(40000+i), 53)),
			udpPacket(string(bytesOf(4000)), to(clustersetIP), ports(uint16(50000+i), 53), func(p *Packet) { p.ID = uint16(i) }),
		} {
			target := uint16(8080)
			if p.UDP != nil {
				target = 5353
			}
			seen, back := carryOwn(t, k, p)
			source, destination := p.ports()
			shown, _ := seen.ports()
			if shown < 16384 || shown >= 32768 {
				t.Fatalf("port %d is shown as %d", source, shown)
			}
			wantEqual(t, "packet", numbered(p.with(to(seen.Destination), ports(shown, target))), seen)
			wantEqual(t, "answer", seen.answer().with(from(clustersetIP.String()), ports(destination, source)), back)
			used[seen.Destination]++
			// What pod_in has translated stays as it is at the pod's end, which translates it alone
			// if that has pod_end.
			for _, piece := range Fragments(back.Encode(), 1450) {
				if r := k.Run(t, k.PodEnd, Frame(piece), Context{}); r.Action != Next || r.Verdict != "" {
					t.Fatalf("pod_end after pod_in: action %d, %q", r.Action, r.Verdict)
				}
			}
		}
	}
	for _, p := range ownPods {
		if used[p] < 30 {
			t.Errorf("%d of 180 connections go to %s: %v", used[p], p, used)
		}
	}
	seen, _ := carryOwn(t, k, tcpPacket(SYN, to(clustersetIP)))
	if err := k.PodEnds.Put(uint32(loopback), uint32(1)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.PodEnds.Delete(uint32(loopback)); err != nil {
			t.Error(err)
		}
	})
	frame := Frame(seen.answer().Encode())
	if r := k.Run(t, k.PodIn, frame, Context{}); r.Action != Next || r.Verdict != "" || string(r.Frame) != string(frame) {
		t.Errorf("pod_in before pod_end: action %d, %q; want the answer unchanged", r.Action, r.Verdict)
	}
	if got := outcome(t, k.Run(t, k.PodEnd, frame, Context{})); got.Source != clustersetIP || got.TCP.Destination != 40000 {
		t.Errorf("behind pod_end the answer is from %s to port %d", got.Source, got.TCP.Destination)
	}
	e := outcome(t, k.Run(t, k.PodEnd, Frame(icmpError(seen, nodeIP(1, 3), ownClient, 64).Encode()), Context{}))
	if quoted, err := Quoted(e.Payload); err != nil || quoted.Destination != clustersetIP || quoted.TCP.Source != 40000 {
		t.Errorf("an ICMP error quotes a packet to %s (%v)", quoted.Destination, err)
	}
	// A connection to the pod itself, from the same port.
	direct := Frame(tcpPacket(SYN, to(seen.Destination), ports(40000, 8080)).answer().Encode())
	if r := k.Run(t, k.PodEnd, direct, Context{}); r.Verdict != "" || string(r.Frame) != string(direct) {
		t.Errorf("an answer of the pod to a connection to itself: %q", r.Verdict)
	}
	low, back := carryOwnEnd(t, k, tcpPacket(SYN, to(clustersetIP), ports(111, 80)))
	if low.TCP.Source < 512 || low.TCP.Source > 1023 || back.TCP.Destination != 111 {
		t.Errorf("port 111 is shown as %d, the answer is to %d", low.TCP.Source, back.TCP.Destination)
	}
}

// carryOwnEnd takes a packet through pod_out, and its answer through pod_end.
func carryOwnEnd(t *testing.T, k *Kernel, p Packet) (seen, back Packet) {
	t.Helper()
	seen = outcome(t, k.Run(t, k.PodOut, Frame(p.Encode()), Context{}))
	return seen, outcome(t, k.Run(t, k.PodEnd, Frame(seen.answer().Encode()), Context{}))
}

// When a pod is not ready any more, datagrams and unanswered handshakes go to another one,
// established connections stay. So do flows from before an upgrade, which go to the ClusterIP.
func TestOwnPodLeaves(t *testing.T) {
	k := ownCluster(t)
	syn, datagram := tcpPacket(SYN, to(clustersetIP)), udpPacket("q", to(clustersetIP))
	where := func(p Packet) netip.Addr {
		t.Helper()
		return outcome(t, k.Run(t, k.PodOut, Frame(p.Encode()), Context{})).Destination
	}
	wants := func(what string, p Packet, want netip.Addr) {
		t.Helper()
		if got := where(p); got != want {
			t.Errorf("%s: to %s; want %s", what, got, want)
		}
	}
	wants("without pods", syn, backing)
	wants("without pods", datagram, backing)
	k.serve(t, servedBy(ownPods[0]))
	k.age(t, 2*time.Second)
	for _, p := range []Packet{syn, tcpPacket(ACK, to(clustersetIP)), datagram} {
		wants("after an upgrade", p, backing)
	}
	other := ports(40001, 80)
	syn, datagram = syn.with(other), datagram.with(ports(40001, 53))
	handshake := syn.with(ports(40002, 80))
	wants("first pod", syn, ownPods[0])
	wants("first pod", handshake, ownPods[0])
	wants("first pod", datagram, ownPods[0])
	k.serve(t, servedBy(ownPods[0], ownPods[1]))
	k.age(t, 2*time.Second)
	wants("another pod is ready", datagram, ownPods[0])
	k.serve(t, servedBy(ownPods[1]))
	wants("it was checked within this second", datagram, ownPods[0])
	k.age(t, 2*time.Second)
	wants("not ready", datagram, ownPods[1])
	wants("established", tcpPacket(ACK, to(clustersetIP), other), ownPods[0])
	wants("unanswered", handshake, ownPods[1])
}

// With session affinity a client keeps its pod, whatever other pods come, until the timeout or
// until the pod goes.
func TestOwnPodAffinity(t *testing.T) {
	const timeout = 30
	k := ownCluster(t, affinity(timeout), servedBy(ownPods[0]))
	port := uint16(40000)
	next := func() netip.Addr {
		t.Helper()
		port++
		return outcome(t, k.Run(t, k.PodOut, Frame(tcpPacket(SYN, to(clustersetIP), ports(port, 80)).Encode()), Context{})).Destination
	}
	if got := next(); got != ownPods[0] {
		t.Fatalf("to %s", got)
	}
	for _, pods := range [][]netip.Addr{ownPods, {ip("10.7.1.1"), ownPods[0]}} {
		k.serve(t, affinity(timeout), servedBy(pods...))
		for range 10 {
			if got := next(); got != ownPods[0] {
				t.Errorf("with pods %v ready: to %s; want %s", pods, got, ownPods[0])
			}
		}
	}
	k.serve(t, affinity(timeout), servedBy(ownPods[1]))
	if got := next(); got != ownPods[1] {
		t.Errorf("without it: to %s", got)
	}
	// The timeout ends: the pod is that of the hash again, which is the same for all.
	k.serve(t, affinity(timeout), servedBy(ownPods[1], ownPods[2]))
	if got := next(); got != ownPods[1] {
		t.Errorf("with another pod: to %s; want %s", got, ownPods[1])
	}
	k.forgetChoices(t)
	first := next()
	for _, pods := range [][]netip.Addr{{ownPods[2]}, {ownPods[1]}} {
		k.serve(t, affinity(timeout), servedBy(pods...))
		next() // the pod that is kept is now the one or the other
		k.forgetChoices(t)
		k.serve(t, affinity(timeout), servedBy(ownPods[1], ownPods[2]))
		if again := next(); again != first {
			t.Errorf("after the timeout: to %s and %s", first, again)
		}
	}
}

// A pod that is its own backend gets its packets back, from the ClusterSetIP.
func TestOwnPodIsClient(t *testing.T) {
	k := ownCluster(t, servedBy(ownClient))
	for name, p := range map[string]Packet{"tcp": tcpPacket(SYN, to(clustersetIP)), "udp": udpPacket("q", to(clustersetIP))} {
		t.Run(name, func(t *testing.T) {
			looped := func(p Packet) Packet {
				t.Helper()
				r := k.Run(t, k.PodOut, Frame(p.Encode()), Context{})
				if r.Action != Redirect {
					t.Fatalf("action %d, verdict %q; want it redirected", r.Action, r.Verdict)
				}
				return outcome(t, r)
			}
			source, destination := p.ports()
			seen := looped(p)
			if _, port := seen.ports(); seen.Source != clustersetIP || seen.Destination != ownClient || port != 8080 && port != 5353 {
				t.Fatalf("the pod sees %+v", seen)
			}
			back := looped(seen.answer())
			gotSource, gotDestination := back.ports()
			if back.Source != clustersetIP || back.Destination != ownClient || gotSource != destination || gotDestination != source {
				t.Errorf("the answer is %s:%d > %s:%d", back.Source, gotSource, back.Destination, gotDestination)
			}
			wantEqual(t, "the next packet", seen, looped(p))
		})
	}
	k.checkTable(t)
}

// SCTP, whose ports cannot be translated, keeps its port on the way to a pod.
func TestOwnPodSCTP(t *testing.T) {
	key := dataplane.ServiceKey{Address: clustersetIP, Port: 5000, Protocol: 132}
	k := ownCluster(t, func(s *dataplane.State) {
		s.VIPs[key] = s.VIPs[dataplane.ServiceKey{Address: clustersetIP, Port: 80, Protocol: ProtocolTCP}]
		s.ServeVIP(key, dataplane.Service{Backends: []netip.AddrPort{netip.AddrPortFrom(ownPods[0], 5000)}})
	})
	seen := outcome(t, k.Run(t, k.PodOut, Frame(sctpPacket(40000, 5000, to(clustersetIP)).Encode()), Context{}))
	wantEqual(t, "packet", numbered(sctpPacket(40000, 5000, to(ownPods[0]))), seen)
	answer := sctpPacket(5000, 40000, from(ownPods[0].String()), to(ownClient))
	if back := outcome(t, k.Run(t, k.PodEnd, Frame(answer.Encode()), Context{})); back.Source != clustersetIP {
		t.Errorf("the answer is from %s", back.Source)
	}
}
