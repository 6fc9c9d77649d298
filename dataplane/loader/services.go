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
// node, perhaps of the old set. Tables are written in batches, because the kernel waits for an RCU
// grace period at every write to a map of maps.
func (l *Loader) writeServices(changes []serviceChange) error {
	m := &l.objs.PelagoMaps
	var errs []error
	var steps []serviceStep
	first, last := map[bpf.PelagoServiceKey][]uint16{}, map[bpf.PelagoServiceKey][]uint16{}
	var removed []bpf.PelagoServiceKey
	for _, c := range changes {
		s := serviceStep{key: encodeServiceKey(c.key), gone: c.want == nil}
		if c.want != nil {
			s.want = *c.want
		}
		if err := m.Services.Lookup(s.key, &s.old); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, fmt.Errorf("read map services: %w", err))
			continue
		}
		steps = append(steps, s)
		for i, b := range s.want.Backends {
			v := bpf.PelagoBackend{Address: be32(b.Addr()), Port: be16(b.Port())}
			errs = append(errs, put(m.Backends, bpf.PelagoBackendKey{Service: s.key, Index: uint32(i)}, v))
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
	errs = append(errs, l.putTables(first))
	for _, s := range steps {
		if s.gone {
			errs = append(errs, remove(m.Services, s.key))
		} else {
			errs = append(errs, put(m.Services, s.key, encodeService(s.want)))
		}
	}
	errs = append(errs, l.putTables(last), l.removeTables(removed))
	for _, s := range steps {
		for i := uint32(len(s.want.Backends)); i < s.old.Backends; i++ {
			errs = append(errs, remove(m.Backends, bpf.PelagoBackendKey{Service: s.key, Index: i}))
		}
	}
	return errors.Join(errs...)
}

// putTables writes the tables of services, in one batch if the kernel supports it.
func (l *Loader) putTables(tables map[bpf.PelagoServiceKey][]uint16) error {
	var keys []bpf.PelagoServiceKey
	var inner []*ebpf.Map
	var fds []uint32
	var errs []error
	defer func() {
		for _, m := range inner {
			m.Close() // the kernel holds a reference
		}
	}()
	for key, table := range tables {
		m, id, err := newTable(table)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l.filled[key] = filledTable{id, table}
		keys, inner, fds = append(keys, key), append(inner, m), append(fds, uint32(m.FD()))
	}
	if len(keys) > 1 {
		if _, err := l.objs.Tables.BatchUpdate(keys, fds, nil); err == nil {
			return errors.Join(errs...)
		}
	}
	// One by one: an older kernel, or an error that should name its table.
	for i, key := range keys {
		errs = append(errs, put(l.objs.Tables, key, inner[i]))
	}
	return errors.Join(errs...)
}

func (l *Loader) removeTables(keys []bpf.PelagoServiceKey) error {
	if len(keys) > 1 {
		if _, err := l.objs.Tables.BatchDelete(keys, nil); err == nil {
			return nil
		}
	}
	var errs []error
	for _, key := range keys {
		errs = append(errs, remove(l.objs.Tables, key))
	}
	return errors.Join(errs...)
}

// filledTable is an inner map with its content.
type filledTable struct {
	id    ebpf.MapID
	nodes []uint16
}

func newTable(table []uint16) (*ebpf.Map, ebpf.MapID, error) {
	inner, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: "table", Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: uint32(len(table)), Flags: unix.BPF_F_INNER_MAP,
	})
	if err != nil {
		return nil, 0, fmt.Errorf("create the table of a service: %w", err)
	}
	keys, nodes := make([]uint32, len(table)), make([]uint32, len(table))
	for i, node := range table {
		keys[i], nodes[i] = uint32(i), uint32(node)
	}
	if _, err := inner.BatchUpdate(keys, nodes, nil); err != nil {
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
