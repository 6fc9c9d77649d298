package loader

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/bpf"
	"github.com/pelago-net/pelago/dataplane"
)

// Apply makes the maps hold want. It continues after an error, such as a full map, and returns all errors joined. It is
// idempotent.
//
// Settings.Generation is set by Apply, which increments it with every change.
//
// Apply compares with the State of the last call, so want must not be changed afterwards. Before the first call, and after
// an error, it reads the maps.
func (l *Loader) Apply(want dataplane.State) error {
	if err := check(want); err != nil {
		return err
	}
	if l.have == nil {
		have, err := l.Read()
		if err != nil {
			return err
		}
		if err := l.removeOrphans(have.Services); err != nil {
			return err
		}
		l.have = &have
	}
	want.Settings.Generation = l.have.Settings.Generation
	changes := dataplane.Diff(*l.have, want)
	if len(changes) > 0 {
		want.Settings.Generation++
		changes = dataplane.Diff(*l.have, want)
	}
	var errs []error
	for i := 0; i < len(changes); {
		if run := serviceRun(changes[i:]); run > 0 {
			errs = append(errs, l.writeServices(changes[i:i+run]))
			i += run
			continue
		}
		errs = append(errs, l.write(changes[i]))
		i++
	}
	errs = append(errs, l.applyPaths(want.Paths()), l.confirm())
	if err := errors.Join(errs...); err != nil {
		l.have = nil
		return err
	}
	l.have = &want
	return nil
}

// Refresh makes the next Apply read the maps first, which repairs changes by others.
func (l *Loader) Refresh() { l.have = nil }

func check(s dataplane.State) error {
	if n := len(s.Gateways); n > dataplane.MaxGateways {
		return fmt.Errorf("apply state: %d gateways in this cluster, at most %d are supported", n, dataplane.MaxGateways)
	}
	if s.Settings.Gateway && s.Settings.Ready && !s.Settings.CableAddress.IsValid() {
		return errors.New("apply state: a gateway needs an address on the cable")
	}
	for index, gs := range s.Clusters {
		if index >= dataplane.MaxClusters {
			return fmt.Errorf("apply state: cluster index %d, only indexes below %d are supported", index, dataplane.MaxClusters)
		}
		if len(gs) > dataplane.MaxGateways {
			return fmt.Errorf("apply state: %d gateways in cluster %d, at most %d are supported", len(gs), index, dataplane.MaxGateways)
		}
	}
	for key, v := range s.VIPs {
		if len(v.Targets) > dataplane.MaxTargets {
			return fmt.Errorf("apply state: %d clusters serve %s, at most %d are supported", len(v.Targets), key.Address, dataplane.MaxTargets)
		}
		if n := len(v.Slots); n != 0 && n != dataplane.VIPSlots {
			return fmt.Errorf("apply state: ClusterSetIP %s has %d slots, not %d", key.Address, n, dataplane.VIPSlots)
		}
	}
	for ip, first := range s.Egresses {
		if len(first) > dataplane.MaxBlocks {
			return fmt.Errorf("apply state: %d port blocks of egress IP %s, at most %d are supported", len(first), ip, dataplane.MaxBlocks)
		}
		for _, p := range first {
			if err := checkBlock(dataplane.BlockKey{Address: ip, First: p}); err != nil {
				return err
			}
		}
	}
	for key := range s.Blocks {
		if err := checkBlock(key); err != nil {
			return err
		}
	}
	return nil
}

// checkBlock checks that gateways can find the owner of a port by its high byte, and that no port below 1024 is in the
// block, which are reserved (RFC 6335).
func checkBlock(b dataplane.BlockKey) error {
	if b.First < 1024 || b.First%dataplane.BlockPorts != 0 {
		return fmt.Errorf("apply state: the port block %d of egress IP %s does not begin at a multiple of %d from 1024 on", b.First, b.Address, dataplane.BlockPorts)
	}
	return nil
}

func (l *Loader) write(c dataplane.Change) error {
	m := &l.objs.PelagoMaps
	switch c.Table {
	case dataplane.TableSettings:
		return l.writeSettings(c.Value.(dataplane.Settings))
	case dataplane.TableGateways:
		return put(m.Gateways, uint32(0), encodeGateways(c.Value.([]uint16)))
	case dataplane.TableVIPRange:
		return put(m.VipRanges, uint32(0), encodeVIPRange(c.Value.(netip.Prefix)))
	case dataplane.TableVIPs:
		return putOrRemove(m.Vips, encodeServiceKey(c.Key.(dataplane.ServiceKey)), c.Value, func(v dataplane.VIP) any { return encodeVIP(v) })
	case dataplane.TableBackings:
		return putOrRemove(m.VipBackings, be32(c.Key.(netip.Addr)), c.Value, func(bool) any { return uint32(0) })
	case dataplane.TableNodes:
		var v bpf.PelagoNode // the zero value is "not present": arrays have no delete
		if c.Value != nil {
			v = bpf.PelagoNode{Hop: encodeHop(c.Value.(dataplane.Hop)), Present: 1}
		}
		return put(m.Nodes, uint32(c.Key.(uint16)), v)
	case dataplane.TableRoutes:
		key := encodePrefix(c.Key.(netip.Prefix))
		return putOrRemove(m.Routes, key, c.Value, func(v uint16) any { return bpf.PelagoRoute{Cluster: v} })
	case dataplane.TableClusters:
		return putOrRemove(m.Clusters, uint32(c.Key.(uint16)), c.Value, func(v []dataplane.RemoteGateway) any { return encodeCluster(v) })
	case dataplane.TablePeers:
		return putOrRemove(m.Peers, be32(c.Key.(netip.Addr)), c.Value, func(v dataplane.Peer) any { return encodePeer(v) })
	case dataplane.TableSources:
		return putOrRemove(m.Sources, be32(c.Key.(netip.Addr)), c.Value, func(v dataplane.Source) any { return encodeSource(v) })
	case dataplane.TableExternals:
		return putOrRemove(m.Externals, encodePrefix(c.Key.(netip.Prefix)), c.Value, func(v dataplane.Source) any { return encodeSource(v) })
	case dataplane.TableEndpoints:
		return putOrRemove(m.Endpoints, be32(c.Key.(netip.Addr)), c.Value, func(v dataplane.Endpoint) any { return encodeEndpoint(v) })
	case dataplane.TableEgresses:
		return putOrRemove(m.Egresses, be32(c.Key.(netip.Addr)), c.Value, func(v []uint16) any { return encodeEgress(v) })
	case dataplane.TableGlobals:
		return putOrRemove(m.Globals, be32(c.Key.(netip.Addr)), c.Value, func(v dataplane.Global) any { return encodeGlobal(v) })
	case dataplane.TableAudiences:
		return putOrRemove(m.Audiences, be32(c.Key.(netip.Addr)), c.Value, func(v dataplane.ClusterSet) any { return bpf.PelagoAudience{Clusters: v} })
	case dataplane.TableBlocks:
		return putOrRemove(m.Blocks, encodeBlockKey(c.Key.(dataplane.BlockKey)), c.Value, func(v uint16) any { return bpf.PelagoBlock{Node: v} })
	}
	return fmt.Errorf("write map %s: no such map", c.Table)
}

func (l *Loader) writeSettings(s dataplane.Settings) error {
	var old bpf.PelagoNodeSettings
	if err := l.objs.Settings.Lookup(uint32(0), &old); err != nil {
		return fmt.Errorf("read map settings: %w", err)
	}
	own := secrets{old.Cookie, old.ProbeMark}
	for own.cookie == 0 || own.probeMark == 0 || own.cookie == own.probeMark || own.cookie == own.probeMark^1 {
		var err error
		if own, err = newSecrets(); err != nil {
			return err
		}
	}
	v := encodeSettings(s, own)
	// An array's value is not replaced in one step: the programs must see Ready after the tokens and secrets it stands for.
	if v.Ready != 0 && old.Ready == 0 {
		v.Ready = 0
		if err := put(l.objs.Settings, uint32(0), v); err != nil {
			return err
		}
		v.Ready = 1
	}
	return put(l.objs.Settings, uint32(0), v)
}

func put(m *ebpf.Map, key, value any) error {
	err := m.Put(key, value)
	if errors.Is(err, unix.E2BIG) || errors.Is(err, unix.ENOSPC) {
		return fmt.Errorf("write map %s: full with %d entries: %w", m.String(), m.MaxEntries(), err)
	}
	if err != nil {
		return fmt.Errorf("write map %s: %w", m.String(), err)
	}
	return nil
}

func remove(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove from map %s: %w", m.String(), err)
	}
	return nil
}

func putOrRemove[V any](m *ebpf.Map, key, value any, encode func(V) any) error {
	if value == nil {
		return remove(m, key)
	}
	return put(m, key, encode(value.(V)))
}
