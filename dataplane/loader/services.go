package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// serviceChange is a step for the map of services; nil: the service is removed.
type serviceChange struct {
	key  dataplane.ServiceKey
	want *dataplane.Service
}

// leadingServices are the changes of services at the head of steps.
func leadingServices(steps []step) (out []serviceChange) {
	for _, s := range steps {
		if s.service == nil {
			break
		}
		out = append(out, *s.service)
	}
	return out
}

// serviceStep is the change of one service from old to want; gone: it is removed, and want is
// empty.
type serviceStep struct {
	key  bpf.PelagoServiceKey
	old  bpf.PelagoService
	want dataplane.Service
	gone bool
}

// writeServices writes and removes services. Backends and tables are written before the entries
// that hold their sizes, and removed after them: between two steps a reader finds a backend or a
// node, perhaps of the old set. New tables are written in batches, because the kernel waits for an
// RCU grace period at every write to a map of maps.
func (l *Loader) writeServices(changes []serviceChange) error {
	m := &l.objs.PelagoMaps
	var failed failures
	var steps []serviceStep
	first, last := map[bpf.PelagoServiceKey][]uint16{}, map[bpf.PelagoServiceKey][]uint16{}
	var removed []bpf.PelagoServiceKey
	for _, c := range changes {
		s := serviceStep{key: encodeServiceKey(c.key), gone: c.want == nil}
		if c.want != nil {
			s.want = *c.want
		}
		if err := m.Services.Lookup(s.key, &s.old); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			failed.add(fmt.Errorf("read map services: %w", err))
			continue
		}
		steps = append(steps, s)
		for i, b := range s.want.Backends {
			v := bpf.PelagoBackend{Address: be32(b.Addr()), Port: be16(b.Port())}
			failed.add(put(m.Backends, bpf.PelagoBackendKey{Service: s.key, Index: uint32(i)}, v))
		}
		switch n := len(s.want.Table); {
		case n == 0 && s.old.Slots > 0:
			removed = append(removed, s.key)
		case n > 0 && n >= int(s.old.Slots):
			first[s.key] = s.want.Table
		case n > 0:
			last[s.key] = s.want.Table
		}
	}
	failed.add(l.putTables(first))
	for _, s := range steps {
		if s.gone {
			failed.add(remove(m.Services, s.key))
		} else {
			failed.add(put(m.Services, s.key, encodeService(s.want)))
		}
	}
	failed.add(l.putTables(last))
	failed.add(l.removeTables(removed))
	for _, s := range steps {
		for i := uint32(len(s.want.Backends)); i < s.old.Backends; i++ {
			failed.add(remove(m.Backends, bpf.PelagoBackendKey{Service: s.key, Index: i}))
		}
	}
	return failed.err()
}

// tableBatch bounds the tables that are created before the kernel is handed them, and so the open
// files.
const tableBatch = 256

// putTables writes the tables of services: in place where this process has created a map of the
// right size, else to a new map.
func (l *Loader) putTables(tables map[bpf.PelagoServiceKey][]uint16) error {
	var errs []error
	var created []bpf.PelagoServiceKey
	for key, table := range tables {
		if old := l.filled[key]; old.own && blocksOf(len(old.nodes)) == blocksOf(len(table)) {
			errs = append(errs, l.rewriteTable(key, old, table))
		} else {
			created = append(created, key)
		}
	}
	for keys := range slices.Chunk(created, tableBatch) {
		errs = append(errs, l.createTables(keys, tables))
	}
	return errors.Join(errs...)
}

// createTables gives services new tables, in one batch if the kernel supports it.
func (l *Loader) createTables(services []bpf.PelagoServiceKey, tables map[bpf.PelagoServiceKey][]uint16) error {
	var keys []bpf.PelagoServiceKey
	var inner []*ebpf.Map
	var fds []uint32
	var errs []error
	defer func() {
		for _, m := range inner {
			m.Close() // the kernel holds a reference
		}
	}()
	for _, key := range services {
		m, id, err := newTable(tables[key])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.filled[key] = filledTable{id, tables[key], true}
		keys, inner, fds = append(keys, key), append(inner, m), append(fds, uint32(m.FD()))
	}
	if len(keys) > 1 {
		if _, err := l.objs.Tables2.BatchUpdate(keys, fds, nil); err == nil {
			return errors.Join(errs...)
		}
	}
	// One by one: an older kernel, or an error that should name its table.
	for i, key := range keys {
		errs = append(errs, put(l.objs.Tables2, key, inner[i]))
	}
	return errors.Join(errs...)
}

// rewriteTable writes the blocks in which the table of a service differs.
func (l *Loader) rewriteTable(key bpf.PelagoServiceKey, old filledTable, table []uint16) error {
	var keys []uint32
	var blocks []bpf.PelagoSlotBlock
	was := old.nodes
	for i := range blocksOf(len(table)) {
		if before, after := blockOf(was, i), blockOf(table, i); before != after {
			keys, blocks = append(keys, uint32(i)), append(blocks, after)
		}
	}
	delete(l.filled, key) // half written until the end
	inner, err := ebpf.NewMapFromID(old.id)
	if err != nil {
		return fmt.Errorf("open the table of a service: %w", err)
	}
	defer inner.Close()
	if len(keys) > 0 {
		if _, err := inner.BatchUpdate(keys, blocks, nil); err != nil {
			return fmt.Errorf("write the table of a service: %w", err)
		}
	}
	l.filled[key] = filledTable{old.id, table, true}
	return nil
}

func (l *Loader) removeTables(keys []bpf.PelagoServiceKey) error {
	for _, key := range keys {
		delete(l.filled, key)
	}
	if len(keys) > 1 {
		if _, err := l.objs.Tables2.BatchDelete(keys, nil); err == nil {
			return nil
		}
	}
	var errs []error
	for _, key := range keys {
		errs = append(errs, remove(l.objs.Tables2, key))
	}
	return errors.Join(errs...)
}

// filledTable is an inner map with its content.
type filledTable struct {
	id    ebpf.MapID
	nodes []uint16
	// own: this process has created the map. One of another process is replaced instead of being
	// rewritten, so that its id identifies its content for that process too.
	own bool
}

// shareTables keeps the tables that were read only once, as those of services, which are equal.
func (l *Loader) shareTables(services map[dataplane.ServiceKey]dataplane.Service) {
	for key, s := range services {
		k := encodeServiceKey(key)
		if table, ok := l.filled[k]; ok && len(s.Table) > 0 {
			table.nodes = s.Table
			l.filled[k] = table
		}
	}
}

const slotBlock = int(bpf.PelagoSlotBlockSizeSLOT_BLOCK)

// blocksOf is the number of blocks of a table with so many slots.
func blocksOf(slots int) int { return (slots + slotBlock - 1) / slotBlock }

// blockOf is a block of a table.
func blockOf(table []uint16, i int) (b bpf.PelagoSlotBlock) {
	copy(b.Nodes[:], table[min(i*slotBlock, len(table)):])
	return b
}

func newTable(table []uint16) (*ebpf.Map, ebpf.MapID, error) {
	n := blocksOf(len(table))
	inner, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "table", Type: ebpf.Array, KeySize: 4, ValueSize: uint32(2 * slotBlock), MaxEntries: uint32(n), Flags: unix.BPF_F_INNER_MAP,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("create the table of a service: %w", err)
	}
	keys, blocks := make([]uint32, n), make([]bpf.PelagoSlotBlock, n)
	for i := range keys {
		keys[i], blocks[i] = uint32(i), blockOf(table, i)
	}
	if _, err := inner.BatchUpdate(keys, blocks, nil); err != nil {
		inner.Close() // half filled and unused
		return nil, 0, fmt.Errorf("fill the table of a service: %w", err)
	}
	info, err := inner.Info()
	if err != nil {
		inner.Close() // unused
		return nil, 0, fmt.Errorf("identify the table of a service: %w", err)
	}
	id, _ := info.ID() // kernels since 4.13 give one
	return inner, id, nil
}

// Services lists the exported ports, in no order.
func (l *Loader) Services() ([]dump.Service, error) {
	read, err := l.readServices()
	out := make([]dump.Service, 0, len(read))
	for key, s := range read {
		v := dump.Service{
			Address: netip.AddrPortFrom(key.Address, key.Port), Protocol: dataplane.ProtocolName(key.Protocol), ClientIP: s.Affinity > 0, Affinity: s.Affinity,
			Backends: append([]netip.AddrPort{}, s.Backends...),
		}
		slots := map[uint16]int{}
		for _, node := range s.Table {
			slots[node]++
		}
		for _, node := range slices.Sorted(maps.Keys(slots)) {
			v.Weights = append(v.Weights, dump.NodeWeight{Node: node, Share: float64(slots[node]) / float64(len(s.Table))})
		}
		out = append(out, v)
	}
	return out, err
}
