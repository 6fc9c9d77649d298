package loader

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Read returns what the maps hold.
func (l *Loader) Read() (dataplane.State, error) {
	var s dataplane.State
	var settings bpf.PelagoNodeSettings
	var gateways bpf.PelagoGatewaySet
	if err := l.objs.Settings.Lookup(uint32(0), &settings); err != nil {
		return s, fmt.Errorf("read map settings: %w", err)
	}
	if err := l.objs.PelagoMaps.Gateways.Lookup(uint32(0), &gateways); err != nil {
		return s, fmt.Errorf("read map gateways: %w", err)
	}
	s.Settings = decodeSettings(settings)
	s.Gateways = decodeGateways(gateways)

	var errs []error
	var err error
	s.Nodes, err = l.readNodes()
	errs = append(errs, err)
	t := tablesOf(&l.objs.PelagoMaps)
	s.Routes, err = t.routes.read()
	errs = append(errs, err)
	s.Clusters, err = t.clusters.read()
	errs = append(errs, err)
	s.Peers, err = t.peers.read()
	errs = append(errs, err)
	s.Sources, err = t.sources.read()
	errs = append(errs, err)
	s.Externals, err = t.externals.read()
	errs = append(errs, err)
	s.Endpoints, err = t.endpoints.read()
	errs = append(errs, err)
	s.Egresses, err = t.egresses.read()
	errs = append(errs, err)
	s.Globals, err = t.globals.read()
	errs = append(errs, err)
	s.Audiences, err = t.audiences.read()
	errs = append(errs, err)
	s.Blocks, err = t.blocks.read()
	errs = append(errs, err)
	s.VIPPods, err = t.vipPods.read()
	errs = append(errs, err)
	s.VIPs, err = t.vips.read()
	errs = append(errs, err)
	s.Hairpins, err = t.backings.read()
	errs = append(errs, err)
	maps.DeleteFunc(s.Hairpins, func(_, global netip.Addr) bool { return !global.IsValid() })
	s.Services, err = l.readServices()
	errs = append(errs, err)
	var vips bpf.PelagoVipRange
	if err := l.objs.VipRanges.Lookup(uint32(0), &vips); err != nil {
		errs = append(errs, fmt.Errorf("read map vip_ranges: %w", err))
	}
	s.VIPRange = decodeVIPRange(vips)
	return s, errors.Join(errs...)
}

func readMap[KV, VV any, K comparable, V any](m *ebpf.Map, key func(KV) K, value func(VV) V) (map[K]V, error) {
	out := map[K]V{}
	err := readBatches(m, func(k KV, v VV) bool {
		out[key(k)] = value(v)
		return true
	})
	return out, err
}

// Sizes of a batch, in entries: reading starts with the first, for small maps, and grows to the
// last, for large ones.
const firstChunk, lastChunk = 16, 4096

// readBatches calls yield for every entry of a map until it returns false, with a system call for
// many entries.
func readBatches[K, V any](m *ebpf.Map, yield func(K, V) bool) error {
	var keys []K
	var values []V
	var cursor ebpf.MapBatchCursor
	for size := firstChunk; ; {
		if size > len(keys) {
			keys, values = make([]K, size), make([]V, size)
		}
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		if errors.Is(err, unix.ENOSPC) { // a bucket holds more than a chunk
			size *= 2
			continue
		}
		for i := range n {
			if !yield(keys[i], values[i]) {
				return nil
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read map %s: %w", m, err)
		}
		size = min(8*size, max(size, lastChunk))
	}
}

// readNodes reads the node array in batches: it is sparse and has 65,536 entries.
func (l *Loader) readNodes() (map[uint16]dataplane.Hop, error) {
	out := map[uint16]dataplane.Hop{}
	err := readBatches(l.objs.Nodes, func(index uint32, v bpf.PelagoNode) bool {
		if v.Present != 0 {
			out[uint16(index)] = decodeHop(v.Hop)
		}
		return true
	})
	return out, err
}

func (l *Loader) readServices() (map[dataplane.ServiceKey]dataplane.Service, error) {
	out := map[dataplane.ServiceKey]dataplane.Service{}
	tables, err := l.readTables()
	errs := []error{err}
	var key bpf.PelagoServiceKey
	var value bpf.PelagoService
	it := l.objs.Services.Iterate()
	for it.Next(&key, &value) {
		service := dataplane.Service{Affinity: value.Affinity}
		for i := range value.Backends {
			var b bpf.PelagoBackend
			if err := l.objs.Backends.Lookup(bpf.PelagoBackendKey{Service: key, Index: i}, &b); err != nil {
				// Half-written by a process that died: it differs from every wanted one and is
				// rewritten.
				break
			}
			service.Backends = append(service.Backends, netip.AddrPortFrom(addr(b.Address), port(b.Port)))
		}
		// The last block of a table that this process has not written may be longer.
		if table, n := tables[key].nodes, int(value.Slots); blocksOf(len(table)) == blocksOf(n) && n <= len(table) && !slices.Contains(table[:n], 0) {
			service.Table = table[:n:n]
		}
		out[decodeServiceKey(key)] = service
	}
	return out, errors.Join(append(errs, it.Err())...)
}

// removeOrphans removes backends and tables of no service, which a process that died half-way
// leaves and no later step would remove.
func (l *Loader) removeOrphans(services map[dataplane.ServiceKey]dataplane.Service) error {
	var backends []bpf.PelagoBackendKey
	var key bpf.PelagoBackendKey
	var value bpf.PelagoBackend
	it := l.objs.Backends.Iterate()
	for it.Next(&key, &value) {
		if s, ok := services[decodeServiceKey(key.Service)]; !ok || int(key.Index) >= len(s.Backends) {
			backends = append(backends, key)
		}
	}
	errs := []error{it.Err()}
	for _, k := range backends {
		errs = append(errs, remove(l.objs.Backends, k))
	}
	var tables []bpf.PelagoServiceKey
	var table bpf.PelagoServiceKey
	var id uint32
	it = l.objs.Tables2.Iterate()
	for it.Next(&table, &id) {
		if s, ok := services[decodeServiceKey(table)]; !ok || len(s.Table) == 0 {
			tables = append(tables, table)
		}
	}
	return errors.Join(append(errs, it.Err(), l.removeTables(tables))...)
}

// readTables reads the tables of all services. Of those that this process has written or read
// before, only the ids are.
func (l *Loader) readTables() (map[bpf.PelagoServiceKey]filledTable, error) {
	out := map[bpf.PelagoServiceKey]filledTable{}
	var errs []error
	var key bpf.PelagoServiceKey
	var id ebpf.MapID
	it := l.objs.Tables2.Iterate()
	for it.Next(&key, &id) {
		table := l.filled[key]
		if table.id != id {
			nodes, err := readTable(id)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			table = filledTable{id: id, nodes: nodes}
		}
		out[key] = table
	}
	l.filled = out
	return out, errors.Join(append(errs, it.Err())...)
}

// readTable reads a table, whose last block is filled up with zeros.
func readTable(id ebpf.MapID) ([]uint16, error) {
	keys, blocks, err := readInner[bpf.PelagoSlotBlock](id)
	table := make([]uint16, len(keys)*slotBlock)
	for i, block := range keys {
		copy(table[int(block)*slotBlock:], blocks[i].Nodes[:])
	}
	return table, err
}

// readInner reads an array in a map of maps; nothing if it was replaced meanwhile.
func readInner[V any](id ebpf.MapID) ([]uint32, []V, error) {
	inner, err := ebpf.NewMapFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, fmt.Errorf("open the table of a service: %w", err)
	}
	defer inner.Close()
	keys, values := make([]uint32, inner.MaxEntries()), make([]V, inner.MaxEntries())
	var cursor ebpf.MapBatchCursor
	n, err := inner.BatchLookup(&cursor, keys, values, nil)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil, fmt.Errorf("read the table of a service: %w", err)
	}
	return keys[:n], values[:n], nil
}
