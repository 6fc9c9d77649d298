package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Pinned maps outlive versions. A map whose layout changes gets a new name; the old one is read
// once and unpinned here. Flows keep their map and size, so that neither an upgrade nor a downgrade
// breaks connections.

const (
	// abi is the layout of this version's maps.
	abi = uint32(bpf.PelagoLayoutLAYOUT_VERSION)

	// counters1 is the map of counters of layout 1, whose keys are hook * strideOf1 + verdict.
	counters1 = "counters"
	strideOf1 = 34

	// fragments1 is the map of fragments before fragments2. Nothing is taken over, so it has no
	// layout number of its own.
	fragments1 = "fragments"

	// globals1 and vips1 are the maps before globals2 and vips2, which have more entries, and more
	// targets in a value. The daemon rewrites their content.
	globals1, vips1 = "globals", "vips"
	vip1Targets     = 32

	// tables1 is the map of Maglev tables before tables2, with a slot in each element. An older
	// daemon writes it again, so it has no layout number of its own.
	tables1 = "tables"

	// usageMappings and usageExternal are bits in the cluster of a count in map usage: of mappings,
	// and of hosts outside the cluster.
	usageMappings = uint32(bpf.PelagoUsageClusterUSAGE_MAPPINGS) * uint32(bpf.PelagoDirectionDIRECTION_MAPPING)
	usageExternal = uint32(bpf.PelagoUsageClusterUSAGE_EXTERNAL) * uint32(bpf.PelagoTcpSeenFLOW_EXTERNAL)
)

// pinnedABI reads the layout of the pinned maps: 1 before the number existed, 0 if there are no
// maps.
func pinnedABI(pinPath string) (uint32, error) {
	m, err := ebpf.LoadPinnedMap(filepath.Join(pinPath, bpf.PelagoMapAbi), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		settings, err := ebpf.LoadPinnedMap(filepath.Join(pinPath, bpf.PelagoMapSettings), &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, fs.ErrNotExist) {
			return 0, nil
		}
		if err != nil {
			return 0, fmt.Errorf("open map %s: %w", bpf.PelagoMapSettings, err)
		}
		return 1, settings.Close()
	}
	if err != nil {
		return 0, fmt.Errorf("open map %s: %w", bpf.PelagoMapAbi, err)
	}
	defer m.Close()
	var number uint32
	if err := m.Lookup(uint32(0), &number); err != nil {
		return 0, fmt.Errorf("read map %s: %w", bpf.PelagoMapAbi, err)
	}
	return max(number, 1), nil
}

// checkABI returns the layout of the pinned maps. It refuses those of a newer version, which this
// one may misread.
func checkABI(pinPath string) (uint32, error) {
	number, err := pinnedABI(pinPath)
	if err == nil && number > abi {
		err = fmt.Errorf("open the maps in %s: they have layout %d of a newer version, this one knows layouts up to %d: run the newer version, "+
			"or `pelago-node cleanup` on this node, which ends its connections to other clusters", pinPath, number, abi)
	}
	return number, err
}

// migrate takes over the content of maps of the previous layout, and records the current layout.
// Packets that programs of the previous version count afterwards are missing from the counters.
func (l *Loader) migrate(former uint32) error {
	old, err := ebpf.LoadPinnedMap(filepath.Join(l.pinPath, counters1), nil)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("open map %s: %w", counters1, err)
	default:
		err := errors.Join(addCounters(old, l.objs.Counters2), old.Unpin(), old.Close())
		if err != nil {
			return fmt.Errorf("migrate map %s: %w", counters1, err)
		}
	}
	// Programs are attached before the tables are written: until then they find what the former
	// ones did.
	err = errors.Join(l.takeOver(globals1, l.objs.Globals2, nil), l.takeOver(vips1, l.objs.Vips2, growVIP))
	if err != nil {
		return err
	}
	if err := l.listBackends(); err != nil {
		return fmt.Errorf("fill map %s: %w", bpf.PelagoMapVipPods, err)
	}
	// The content of the map fragments was valid only for a moment.
	if err := os.Remove(filepath.Join(l.pinPath, fragments1)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("unpin map %s: %w", fragments1, err)
	}
	if err := l.migrateTables(); err != nil {
		return fmt.Errorf("migrate map %s: %w", tables1, err)
	}
	if err := l.countUsage(former == 1); err != nil {
		return fmt.Errorf("fill map %s: %w", bpf.PelagoMapUsage, err)
	}
	if err := l.objs.Abi.Put(uint32(0), abi); err != nil {
		return fmt.Errorf("write map %s: %w", bpf.PelagoMapAbi, err)
	}
	return nil
}

// listBackends enters the backends of exported UDP ports in map vip_pods, where former versions have
// those of ClusterSetIPs only. Otherwise each UDP flow would choose its backend again.
func (l *Loader) listBackends() error {
	services, err := l.readServices()
	var s dataplane.State
	for key, v := range services {
		s.Serve(key, v)
	}
	errs := []error{err}
	for pod, port := range s.VIPPods {
		errs = append(errs, put(l.objs.VipPods, encodeVIPPod(pod), be16(port)))
	}
	return errors.Join(errs...)
}

// takeOver copies the content of a former map, if it is there, and unpins it. convert makes a value
// of this version of a former one; nil: they are the same.
func (l *Loader) takeOver(former string, to *ebpf.Map, convert func([]byte) []byte) error {
	path := filepath.Join(l.pinPath, former)
	from, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open map %s: %w", former, err)
	}
	defer from.Close()
	var key, value []byte
	it := from.Iterate()
	for it.Next(&key, &value) {
		if convert != nil {
			value = convert(value)
		}
		if err := to.Put(key, value); err != nil {
			return fmt.Errorf("migrate map %s: %w", former, err)
		}
	}
	if err := errors.Join(it.Err(), from.Unpin()); err != nil {
		return fmt.Errorf("migrate map %s: %w", former, err)
	}
	return nil
}

// growVIP gives a value of vips1 the room for targets that it has now.
func growVIP(former []byte) []byte {
	target, end := int(unsafe.Sizeof(bpf.PelagoVipTarget{})), int(unsafe.Offsetof(bpf.PelagoVip{}.Targets))
	end += vip1Targets * target
	grown := append([]byte{}, former[:end]...)
	grown = append(grown, make([]byte, (dataplane.MaxTargets-vip1Targets)*target)...)
	return append(grown, former[end:]...)
}

// migrateTables takes over the Maglev tables of tables1.
func (l *Loader) migrateTables() error {
	path := filepath.Join(l.pinPath, tables1)
	old, err := ebpf.LoadPinnedMap(path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer old.Close()
	ids := map[bpf.PelagoServiceKey]ebpf.MapID{}
	var key bpf.PelagoServiceKey
	var id ebpf.MapID
	it := old.Iterate()
	for it.Next(&key, &id) {
		ids[key] = id
	}
	errs := []error{it.Err()}
	for keys := range slices.Chunk(slices.Collect(maps.Keys(ids)), tableBatch) {
		tables := map[bpf.PelagoServiceKey][]uint16{}
		for _, key := range keys {
			slots, nodes, err := readInner[uint32](ids[key])
			errs = append(errs, err)
			table := make([]uint16, len(slots))
			for i, slot := range slots {
				table[slot] = uint16(nodes[i])
			}
			if len(table) > 0 {
				tables[key] = table
			}
		}
		errs = append(errs, l.putTables(tables))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return old.Unpin()
}

// countUsage recounts mappings, and the flows of hosts outside the cluster: programs of a version
// that does not count these do not subtract those that expire. If all is set, it also counts the
// flows of each source and cluster, and all, which layout 1 did not. A count is off by the number of flows
// that programs of the previous version open or remove meanwhile, until these flows are gone.
func (l *Loader) countUsage(all bool) error {
	counts := map[bpf.PelagoUsageKey]int64{}
	err := readBatches(l.objs.Usage, func(k bpf.PelagoUsageKey, n int64) bool {
		if recounted(k) && n != 0 {
			counts[k] = 0
		}
		return true
	})
	if err != nil || !all && len(counts) == 0 {
		return err
	}
	err = l.dump(func(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bool {
		if v.State&dying != 0 || v.Primary == 0 {
			return true
		}
		if key := usageKeyOf(k, v); all || recounted(key) {
			counts[key]++
		}
		if all {
			counts[bpf.PelagoUsageKey{}]++
		}
		return true
	})
	for key, n := range counts {
		err = errors.Join(err, l.objs.Usage.Put(key, n))
	}
	return err
}

func recounted(k bpf.PelagoUsageKey) bool { return k.Cluster&(usageMappings|usageExternal) != 0 }

// usageKeyOf is usage_key_of() of bpf/flow.h; v is the primary entry, k its key.
func usageKeyOf(k bpf.PelagoFlowKey, v bpf.PelagoFlow) bpf.PelagoUsageKey {
	if v.Role != uint8(bpf.PelagoFlowRoleFLOW_CLIENT) {
		return bpf.PelagoUsageKey{Cluster: uint32(v.Cluster)}
	}
	key := bpf.PelagoUsageKey{Source: k.Saddr}
	if isMapping(k) {
		key.Cluster |= usageMappings
	}
	if v.Tcp&uint8(bpf.PelagoTcpSeenFLOW_EXTERNAL) != 0 {
		key.Source, key.Cluster = 0, key.Cluster|usageExternal
	}
	return key
}

// addCounters adds counters of layout 1 to those of this version.
func addCounters(from, to *ebpf.Map) error {
	var key uint32
	var values, sum []bpf.PelagoCounter
	it := from.Iterate()
	for it.Next(&key, &values) {
		at := key/strideOf1*uint32(bpf.PelagoCounterLimitCOUNTER_VERDICTS) + key%strideOf1
		if err := to.Lookup(at, &sum); err != nil {
			return err
		}
		for cpu := range sum {
			sum[cpu].Packets += values[cpu].Packets
			sum[cpu].Bytes += values[cpu].Bytes
		}
		if err := to.Put(at, sum); err != nil {
			return err
		}
	}
	return it.Err()
}

// Bounds of the flow table, and what a flow costs: two elements of 128 bytes in a hash without
// preallocation, two ring slots and two hash buckets of 16 bytes each. Slots and buckets are
// allocated at once, elements as flows open.
const (
	minFlows, maxFlows = 1 << 16, 1 << 20
	flowBytes          = 320
	// flowShare is the share of the node's memory that a full table may take.
	flowShare = 1.0 / 16
)

// flowsFor returns the size of the flow table for a node with so many bytes of memory, a power of
// two.
func flowsFor(memory uint64) int {
	fits := uint64(float64(memory)*flowShare) / flowBytes
	return min(max(1<<(bits.Len64(fits|1)-1), minFlows), maxFlows)
}

// setFlows sets the size of the flow table: that of the pinned one, to keep its flows; else the
// requested size; else one that depends on the node's memory.
func setFlows(spec *ebpf.CollectionSpec, pinPath string, flows int) error {
	entries, err := pinnedEntries(pinPath)
	if err != nil {
		return err
	}
	if entries == 0 {
		if flows == 0 {
			var info unix.Sysinfo_t
			if err := unix.Sysinfo(&info); err != nil {
				return fmt.Errorf("read the memory of the node: %w", err)
			}
			flows = flowsFor(info.Totalram * uint64(info.Unit))
		}
		if flows < 1 || flows&(flows-1) != 0 {
			return fmt.Errorf("size the flow table: %d flows are no power of two", flows)
		}
		entries = uint32(2 * flows)
	}
	spec.Maps[bpf.PelagoMapFlows].MaxEntries, spec.Maps[bpf.PelagoMapSlots].MaxEntries = entries, entries
	return errors.Join(spec.Variables[bpf.PelagoVarSlotCount].Set(entries), spec.Variables[bpf.PelagoVarFlowLimit].Set(int64(entries/2)))
}

// pinnedEntries is the size of the pinned map of flows, two entries a flow; 0 if none exists.
func pinnedEntries(pinPath string) (uint32, error) {
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(pinPath, bpf.PelagoMapFlows), &ebpf.LoadPinOptions{ReadOnly: true})
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("open map %s: %w", bpf.PelagoMapFlows, err)
	}
	defer pinned.Close()
	return pinned.MaxEntries(), nil
}
