package packet

import (
	"encoding/binary"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// client sets the identifier of the client among the pods that share the source address.
func client(n uint32) func(*Overlay) {
	return func(o *Overlay) { binary.BigEndian.PutUint32(o.client(), 0x10000+n) }
}

// sentBy sets the identifier of the client as the pod's node does.
func sentBy(address string) func(*Overlay) {
	a := ip(address).As4()
	return func(o *Overlay) {
		binary.NativeEndian.PutUint32(o.client(), dataplane.Mix(binary.NativeEndian.Uint32(a[:]), uint32(bpf.PelagoSeedSEED_CLIENT)))
	}
}

// forgetChoices ages the entries of map choices beyond the timeout, and returns their number.
func (k *Kernel) forgetChoices(t testing.TB) (n int) {
	t.Helper()
	choices, err := ebpf.LoadPinnedMap(filepath.Join(k.pins, bpf.PelagoMapChoices), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer choices.Close()
	entries := map[bpf.PelagoChoiceKey]bpf.PelagoBackendChoice{}
	var key bpf.PelagoChoiceKey
	var value bpf.PelagoBackendChoice
	for it := choices.Iterate(); it.Next(&key, &value); {
		entries[key] = value
	}
	for key, value := range entries {
		value.Used = 0 // longer ago than the timeout, unless the machine has just booted
		if err := choices.Put(key, value); err != nil {
			t.Fatal(err)
		}
	}
	return len(entries)
}

// The pods of a cluster that share an egress IP are clients of their own: each keeps its backend,
// all backends are used, and a backend that is added moves no client within the timeout, and its
// own share afterwards.
func TestAffinityOfPods(t *testing.T) {
	const clients = 200
	k := load(t, 1, 2)
	with := func(backends ...string) {
		t.Helper()
		s := state(1, 2)
		service := dataplane.Service{Affinity: 5}
		for _, b := range backends {
			service.Backends = append(service.Backends, addrPort(b))
		}
		s.Services[own(20, 80)] = service
		k.Apply(t, s)
	}
	port := uint16(2000)
	choose := func() (out [clients]netip.Addr, used map[netip.Addr]int) {
		t.Helper()
		used = map[netip.Addr]int{}
		for n := range out {
			for range 2 {
				port++
				p := k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, ports(port, 80)).Encode(), client(uint32(n)))))
				if out[n].IsValid() && out[n] != p.Destination {
					t.Fatalf("client %d went to %s and to %s", n, out[n], p.Destination)
				}
				out[n] = p.Destination
			}
			used[out[n]]++
		}
		return out, used
	}
	moved := func(from, to [clients]netip.Addr) (n int) {
		for i := range from {
			if from[i] != to[i] {
				n++
			}
		}
		return n
	}
	with("10.7.2.10:8080", "10.7.2.11:8080", "10.7.2.12:8080")
	before, used := choose()
	for _, b := range []string{"10.7.2.10", "10.7.2.11", "10.7.2.12"} {
		if n := used[ip(b)]; n < clients/6 {
			t.Errorf("%d of %d clients have backend %s", n, clients, b)
		}
	}
	with("10.7.2.10:8080", "10.7.2.11:8080", "10.7.2.12:8080", "10.7.2.9:8080")
	if now, _ := choose(); now != before {
		t.Errorf("a fourth backend moves %d clients within the timeout", moved(before, now))
	}
	if n := k.forgetChoices(t); n != clients {
		t.Errorf("%d choices are stored for %d clients", n, clients)
	}
	now, used := choose()
	fourth := used[ip("10.7.2.9")]
	if n := moved(before, now); n != fourth || n < clients/8 || n > clients*3/8 {
		t.Errorf("after the timeout %d of %d clients have moved, %d of them to the fourth backend", n, clients, fourth)
	}
	// A backend that goes moves its own clients only.
	with("10.7.2.10:8080", "10.7.2.12:8080", "10.7.2.9:8080")
	gone, lost := 0, used[ip("10.7.2.11")]
	after, _ := choose()
	for i := range after {
		if after[i] == ip("10.7.2.11") {
			gone++
		}
	}
	if n := moved(now, after); gone > 0 || n != lost {
		t.Errorf("without a backend of %d clients %d have moved, %d still go there", lost, n, gone)
	}
}

// More backends than a client picks from are all used.
func TestAffinityManyBackends(t *testing.T) {
	k := load(t, 1, 2)
	s := state(1, 2)
	service := dataplane.Service{Affinity: 60}
	for n := range 300 {
		service.Backends = append(service.Backends, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 7, byte(100 + n/200), byte(n % 200)}), 8080))
	}
	s.Services[own(20, 80)] = service
	k.Apply(t, s)
	used := map[netip.Addr]bool{}
	for n := range uint32(600) {
		p := k.delivered(t, k.arrive(t, overlay(1, 1, 2, clientTCP(SYN, ports(uint16(2000+n), 80)).Encode(), client(n))))
		used[p.Destination] = true
	}
	if len(used) < 200 {
		t.Errorf("600 clients use %d of 300 backends", len(used))
	}
}

// A gateway picks the node of a service with session affinity by the pod, too.
func TestAffinityAtGateway(t *testing.T) {
	k := load(t, 1, 1)
	s := state(1, 1)
	for key, service := range s.Services {
		service.Affinity = 60
		s.Services[key] = service
	}
	k.Apply(t, s)
	used := map[netip.Addr]int{}
	for n := range uint32(40) {
		node := netip.Addr{}
		for port := range uint16(3) {
			got := k.sent(t, k.arrive(t, cable(2, 1, 1, clientTCP(SYN, ports(2000+port, 80)).Encode(), client(n))), "uplink-in switched")
			if node.IsValid() && got.Destination != node {
				t.Fatalf("client %d is sent to %s and to %s", n, node, got.Destination)
			}
			node = got.Destination
			if binary.BigEndian.Uint32(got.client()) != 0x10000+n {
				t.Fatalf("client %d is sent on as %x", n, got.client())
			}
		}
		used[node]++
	}
	if used[nodeIP(1, 2)] < 10 || used[nodeIP(1, 3)] < 10 {
		t.Errorf("40 clients of one egress IP use the nodes %v", used)
	}
}

// The sender names its pods: each the same way in all of its packets, fragments included. But for
// these the destination is that of every pelago0, or the kernel of a node of 2c18591 drops them.
func TestSenderNamesClient(t *testing.T) {
	k := load(t, 1, 2)
	names := map[netip.Addr]uint32{}
	for _, p := range []Packet{
		tcpPacket(SYN), tcpPacket(ACK), udpPacket("query"), tcpPacket(SYN, ports(40001, 80), to(global(2, 21))),
		udpPacket(string(make([]byte, 8)), func(p *Packet) { p.MoreFragments = true }),
		tcpPacket(SYN, from("10.7.2.11")),
	} {
		o := k.sent(t, k.fromPod(t, p), "edge-out sent")
		client := binary.NativeEndian.Uint32(o.client())
		if name, ok := names[p.Source]; ok && name != client {
			t.Errorf("%s is named %x and %x", p.Source, name, client)
		}
		if o.Flags&Fragment == 0 && o.InnerDestination != pelagoMAC {
			t.Errorf("%s: sent to %x", p.Source, o.InnerDestination)
		}
		names[p.Source] = client
	}
	if names[ip("10.7.2.10")] == names[ip("10.7.2.11")] || names[ip("10.7.2.10")] == 0 {
		t.Errorf("the pods are named %x", names)
	}
}
