package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// dump calls yield for every entry of the flow map until it returns false. Entries that come or go
// meanwhile may be missed or, if the table changes its shape, seen twice.
func (l *Loader) dump(yield func(bpf.PelagoFlowKey, bpf.PelagoFlow) bool) error {
	return readBatches(l.objs.Flows, yield)
}

// Flows lists the translated flows of this node, in no order.
func (l *Loader) Flows() ([]dump.Flow, error) {
	answers := map[bpf.PelagoFlowKey]bpf.PelagoFlow{}
	type entry struct {
		key   bpf.PelagoFlowKey
		value bpf.PelagoFlow
	}
	var primaries []entry
	err := l.dump(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		if v.State&dying != 0 {
			return true
		}
		if v.Primary != 0 {
			primaries = append(primaries, entry{k, v})
		} else {
			answers[k] = v
		}
		return true
	})
	now := bootClock()
	flows := make([]dump.Flow, 0, len(primaries))
	for _, p := range primaries {
		flows = append(flows, makeFlow(p.key, p.value, answers[answerKey(p.key, p.value)], now))
	}
	return flows, err
}

const dying = 1

// localAddress is the address on this node of the flow with the opener's entry (k, v).
func localAddress(k bpf.PelagoFlowKey, v bpf.PelagoFlow) netip.Addr {
	if v.Role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT) {
		return addr(k.Saddr)
	}
	return addr(v.Daddr)
}

func answerKey(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bpf.PelagoFlowKey {
	return bpf.PelagoFlowKey{
		Saddr: v.Daddr, Daddr: v.Saddr, Sport: v.Dport, Dport: v.Sport, Proto: k.Proto, Direction: k.Direction ^ 1,
	}
}

func makeFlow(k bpf.PelagoFlowKey, v, answer bpf.PelagoFlow, now time.Duration) dump.Flow {
	kind := kindOf(v.Role, k, v.Tcp, answer.Tcp)
	return dump.Flow{
		Role: kind.Role, Protocol: kind.Protocol, State: kind.State, Pod: localAddress(k, v), Cluster: v.Cluster, Node: v.Node,
		Opening: dump.Tuple{
			Source:      netip.AddrPortFrom(addr(k.Saddr), port(k.Sport)),
			Destination: netip.AddrPortFrom(addr(k.Daddr), port(k.Dport)),
		},
		Translated: dump.Tuple{
			Source:      netip.AddrPortFrom(addr(v.Saddr), port(v.Sport)),
			Destination: netip.AddrPortFrom(addr(v.Daddr), port(v.Dport)),
		},
		Idle: max(0, now-time.Duration(max(v.Seen, answer.Seen))),
	}
}

func isMapping(k bpf.PelagoFlowKey) bool {
	return k.Direction&uint8(bpf.PelagoDirectionDIRECTION_MAPPING) != 0
}

// kindOf returns the kind of a flow; opener and answers are the TCP flags seen in each direction.
func kindOf(role uint8, k bpf.PelagoFlowKey, opener, answers uint8) dump.FlowKind {
	kind := dump.FlowKind{Role: dump.RoleServer, Protocol: dataplane.ProtocolName(k.Proto), State: "active"}
	if role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT) {
		kind.Role = dump.RoleClient
	}
	if isMapping(k) {
		kind.State = dump.StateMapping
	}
	if k.Proto == unix.IPPROTO_TCP {
		const ack, fin, rst = uint8(bpf.PelagoTcpSeenTCP_SEEN_ACK), uint8(bpf.PelagoTcpSeenTCP_SEEN_FIN), uint8(bpf.PelagoTcpSeenTCP_SEEN_RST)
		switch {
		case (opener|answers)&rst != 0 || opener&answers&fin != 0:
			kind.State = "closed"
		case opener&answers&ack != 0:
			kind.State = "established"
		default:
			kind.State = "opening"
		}
	}
	return kind
}

// bootClock is the clock of bpf_ktime_get_ns.
func bootClock() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0
	}
	return time.Duration(ts.Nano())
}

// SweepStats is what a sweep found.
type SweepStats struct {
	Flows   int // entries of openers seen, which is the number of flows
	Removed int // flows removed
	// Kinds counts the flows by kind, including those that were then removed.
	Kinds map[dump.FlowKind]int
	// Crowding is, for each egress IP, the largest number of flows towards one remote endpoint: the
	// port demand.
	Crowding map[netip.Addr]int
	// InUse are the port blocks in which a flow lives.
	InUse map[dataplane.BlockKey]bool
}

// Sweep removes expired flows. It only picks candidates; the kernel side decides, with the same
// compare-and-swap as the packet path. shortest is the shortest timeout in use: entries with a
// packet within that time are no candidates.
func (l *Loader) Sweep(shortest time.Duration) (SweepStats, error) {
	stats := SweepStats{Crowding: map[netip.Addr]int{}, InUse: map[dataplane.BlockKey]bool{}}
	// flows by egress IP and remote endpoint
	towards, seen := map[bpf.PelagoFlowKey]int{}, newCensus()
	var candidates []bpf.PelagoFlowKey
	now := bootClock()
	err := l.dump(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		seen.note(k, v)
		if v.Primary == 0 {
			// An answer entry is removed with its opener; one without an opener is found by its own
			// age.
			if now-time.Duration(v.State>>1) > shortest && now-time.Duration(v.Seen) > shortest {
				candidates = append(candidates, k)
			}
			return true
		}
		stats.Flows++
		if v.Role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT) {
			towards[bpf.PelagoFlowKey{Saddr: v.Saddr, Daddr: k.Daddr, Dport: k.Dport, Proto: k.Proto}]++
			stats.InUse[dataplane.BlockKey{Address: addr(v.Saddr), First: port(v.Sport) &^ (dataplane.BlockPorts - 1)}] = true
		}
		if now-time.Duration(v.Seen) > shortest {
			candidates = append(candidates, k)
		}
		return true
	})
	for r, n := range towards {
		ip := addr(r.Saddr)
		stats.Crowding[ip] = max(stats.Crowding[ip], n)
	}
	stats.Kinds = seen.result()
	if err == nil {
		err = l.correctUsage(int64(stats.Flows))
	}
	removed, sweepErr := l.removeFlows(candidates, false)
	stats.Removed = removed
	return stats, errors.Join(err, sweepErr, l.pruneUsage())
}

// correctUsage sets the count of all flows, which programs of earlier versions do not keep, if it is
// off by more than a sixteenth of the table. Flows that are opened or removed between dump and
// write are not counted.
func (l *Loader) correctUsage(flows int64) error {
	var counted int64
	err := l.objs.Usage.Lookup(bpf.PelagoUsageKey{}, &counted)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("read map %s: %w", bpf.PelagoMapUsage, err)
	}
	if off, table := counted-flows, int64(l.objs.Flows.MaxEntries()/2); -table/16 <= off && off <= table/16 {
		return nil
	}
	if err := l.objs.Usage.Put(bpf.PelagoUsageKey{}, flows); err != nil {
		return fmt.Errorf("write map %s: %w", bpf.PelagoMapUsage, err)
	}
	return nil
}

// pruneUsage removes the counters of sources that have no flow and are not in the table of sources:
// pods that are gone, and hosts outside the cluster, of which earlier versions counted each. They
// would fill map usage, and sources without a counter have no quota. Races with flows that the
// source opens meanwhile; worst result: these are not counted.
func (l *Loader) pruneUsage() error {
	flows, err := readMap(l.objs.Usage, func(k bpf.PelagoUsageKey) bpf.PelagoUsageKey { return k }, func(n int64) int64 { return n })
	for k, n := range flows {
		var src bpf.PelagoSource
		if n <= 0 && k.Source != 0 && errors.Is(l.objs.Sources.Lookup(k.Source, &src), ebpf.ErrKeyNotExist) {
			err = errors.Join(err, remove(l.objs.Usage, k))
		}
	}
	return err
}

// PurgeFunc removes every flow for whose local address gone returns true, whatever its age: the
// next pod with an address must not receive packets for the previous one.
func (l *Loader) PurgeFunc(gone func(netip.Addr) bool) (removed int, err error) {
	return l.Flush(func(local netip.Addr, _ uint16) bool { return gone(local) })
}

// Flush removes every flow that match selects by its local address and the index of its far
// cluster, whatever its age.
func (l *Loader) Flush(match func(local netip.Addr, cluster uint16) bool) (removed int, err error) {
	return l.purge(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool { return match(localAddress(k, v), v.Cluster) })
}

// PurgeRevoked removes the flows that clients opened to a restricted address from outside its
// audience.
func (l *Loader) PurgeRevoked(audiences map[netip.Addr]dataplane.ClusterSet) (removed int, err error) {
	return l.purge(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		audience, restricted := audiences[addr(k.Daddr)]
		return restricted && v.Role == uint8(bpf.PelagoFlowRoleFLOW_SERVER) && !audience.Has(v.Cluster)
	})
}

// PurgeUnmapped removes the UDP flows of mapped egress IPs that were opened before they were
// mapped: mappings could use the same ports.
func (l *Loader) PurgeUnmapped(mapped map[netip.Addr]bool) (removed int, err error) {
	return l.purge(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		return k.Proto == unix.IPPROTO_UDP && !isMapping(k) && v.Role == uint8(bpf.PelagoFlowRoleFLOW_CLIENT) &&
			v.Tcp&uint8(bpf.PelagoTcpSeenFLOW_MAPPED) == 0 && mapped[addr(v.Saddr)]
	})
}

// purge removes the flows whose opener's entry meets of.
func (l *Loader) purge(of func(bpf.PelagoFlowKey, bpf.PelagoFlow) bool) (removed int, err error) {
	var keys []bpf.PelagoFlowKey
	err = l.dump(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		if v.Primary != 0 && of(k, v) {
			keys = append(keys, k)
		}
		return true
	})
	removed, removeErr := l.removeFlows(keys, true)
	return removed, errors.Join(err, removeErr)
}

func (l *Loader) removeFlows(keys []bpf.PelagoFlowKey, force bool) (int, error) {
	if l.objs.SweepFlows == nil {
		return 0, errors.New("remove flows: the program is not loaded; use Open or OpenSweeper")
	}
	removed := 0
	for len(keys) > 0 {
		var batch bpf.PelagoSweep
		n := copy(batch.Keys[:], keys)
		batch.Count = uint32(n)
		keys = keys[n:]
		if force {
			batch.Force = 1
		}
		// Without ContextOut the library does not copy back what the program wrote.
		if _, err := l.objs.SweepFlows.Run(&ebpf.RunOptions{Context: &batch, ContextOut: &batch}); err != nil {
			return removed, fmt.Errorf("run sweep_flows: %w", err)
		}
		removed += int(batch.Removed)
	}
	return removed, nil
}
