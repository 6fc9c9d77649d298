package packet

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// flows is the number of flows of the node.
func (k *Kernel) flows(t testing.TB) int { return len(k.list(t)) }

func (k *Kernel) list(t testing.TB) []dump.Flow {
	t.Helper()
	flows, err := k.Loader.Flows()
	if err != nil {
		t.Fatal(err)
	}
	return flows
}

// entries are the raw entries of the flow map.
func (k *Kernel) entries(t testing.TB) map[bpf.PelagoFlowKey]bpf.PelagoFlow {
	t.Helper()
	out := map[bpf.PelagoFlowKey]bpf.PelagoFlow{}
	var key bpf.PelagoFlowKey
	var value bpf.PelagoFlow
	it := k.Flows.Iterate()
	for it.Next(&key, &value) {
		out[key] = value
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// usage reads how many flows each source and cluster has, by the programs' count.
func (k *Kernel) usage(t testing.TB) map[bpf.PelagoUsageKey]int64 {
	t.Helper()
	out := map[bpf.PelagoUsageKey]int64{}
	var key bpf.PelagoUsageKey
	var n int64
	it := k.Usage.Iterate()
	for it.Next(&key, &n) {
		if n != 0 {
			out[key] = n
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// useUp sets the count of a source or cluster.
func (k *Kernel) useUp(t *testing.T, key bpf.PelagoUsageKey, n int64) {
	t.Helper()
	if err := k.Usage.Put(key, n); err != nil {
		t.Fatal(err)
	}
}

// equals reports whether an address is a.
func equals(a netip.Addr) func(netip.Addr) bool {
	return func(b netip.Addr) bool { return a == b }
}

func be32(a netip.Addr) uint32 {
	b := a.As4()
	return binary.NativeEndian.Uint32(b[:])
}

func be16(p uint16) uint16 { return p<<8 | p>>8 }

func uptime() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return time.Duration(ts.Nano())
}

// fill puts as many flows into the table as it holds: established TCP flows of another pod, or
// closed ones. Each has its slot in the ring.
func (k *Kernel) fill(t testing.TB, established bool) {
	t.Helper()
	const chunk = 4096
	now := uint64(uptime())
	tcp := uint8(bpf.PelagoTcpSeenTCP_SEEN_ACK)
	if !established {
		tcp |= uint8(bpf.PelagoTcpSeenTCP_SEEN_FIN)
	}
	for base := 0; base < maxFlows; base += chunk {
		keys, values := make([]bpf.PelagoFlowKey, 0, 2*chunk), make([]bpf.PelagoFlow, 0, 2*chunk)
		slots, primaries := make([]uint32, 0, chunk), make([]bpf.PelagoFlowKey, 0, chunk)
		for i := base; i < base+chunk; i++ {
			remote := netip.AddrFrom4([4]byte{120, 200, byte(i >> 16), byte(i >> 8)})
			port := be16(uint16(i&0xff) + 1)
			key := bpf.PelagoFlowKey{Saddr: be32(ip("10.7.2.99")), Daddr: be32(remote), Sport: port, Dport: be16(80), Proto: ProtocolTCP}
			flow := bpf.PelagoFlow{
				State: now << 1, Seen: now, Saddr: be32(global(1, 2)), Daddr: key.Daddr, Sport: port, Dport: key.Dport,
				Role: uint8(bpf.PelagoFlowRoleFLOW_CLIENT), Tcp: tcp, Primary: 1,
			}
			answer := flow
			answer.Primary, answer.Saddr, answer.Daddr, answer.Sport, answer.Dport = 0, key.Daddr, key.Saddr, key.Dport, key.Sport
			answerKey := bpf.PelagoFlowKey{
				Saddr: flow.Daddr, Daddr: flow.Saddr, Sport: flow.Dport, Dport: flow.Sport, Proto: ProtocolTCP,
				Direction: uint8(bpf.PelagoDirectionDIRECTION_IN),
			}
			keys, values = append(keys, key, answerKey), append(values, flow, answer)
			slots, primaries = append(slots, uint32(i)), append(primaries, key)
		}
		if _, err := k.Flows.BatchUpdate(keys, values, &ebpf.BatchOptions{}); err != nil {
			t.Fatalf("fill the flow table from %d on: %v", base, err)
		}
		if _, err := k.Slots.BatchUpdate(slots, primaries, &ebpf.BatchOptions{}); err != nil {
			t.Fatalf("fill the slots from %d on: %v", base, err)
		}
	}
}
