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

// table is a map of the kernel side with the encoding of its entries: EK and EV are the types of
// the map, K and V those of the field of State that it holds.
type table[K comparable, V, EK, EV any] struct {
	m           *ebpf.Map
	encodeKey   func(K) EK
	decodeKey   func(EK) K
	encodeValue func(V) EV
	decodeValue func(EV) V
}

// step is a step of dataplane.Diff.
type step struct {
	write func() error
	// service is set instead of write: services are written together.
	service *serviceChange
}

// step puts *v under k; nil: it removes k.
func (t table[K, V, EK, EV]) step(k K, v *V) step {
	return step{write: func() error {
		if v == nil {
			return remove(t.m, t.encodeKey(k))
		}
		return put(t.m, t.encodeKey(k), t.encodeValue(*v))
	}}
}

// read returns what the map holds.
func (t table[K, V, EK, EV]) read() (map[K]V, error) { return readMap(t.m, t.decodeKey, t.decodeValue) }

// tables are the maps whose entries are independent of each other. Settings, services and the maps
// of one entry are written apart.
type tables struct {
	routes    table[netip.Prefix, uint16, bpf.PelagoPrefix, bpf.PelagoRoute]
	clusters  table[uint16, []dataplane.RemoteGateway, uint32, bpf.PelagoCluster]
	peers     table[netip.Addr, dataplane.Peer, uint32, bpf.PelagoPeer]
	sources   table[netip.Addr, dataplane.Source, uint32, bpf.PelagoSource]
	externals table[netip.Prefix, dataplane.Source, bpf.PelagoPrefix, bpf.PelagoSource]
	endpoints table[netip.Addr, dataplane.Endpoint, uint32, bpf.PelagoEndpoint]
	egresses  table[netip.Addr, []uint16, uint32, bpf.PelagoEgress]
	globals   table[netip.Addr, dataplane.Global, uint32, bpf.PelagoGlobal]
	audiences table[netip.Addr, dataplane.ClusterSet, uint32, bpf.PelagoAudience]
	blocks    table[dataplane.BlockKey, uint16, bpf.PelagoBlockKey, bpf.PelagoBlock]
	vips      table[dataplane.ServiceKey, dataplane.VIP, bpf.PelagoServiceKey, bpf.PelagoVip]
	vipPods   table[dataplane.VIPPod, uint16, bpf.PelagoVipPodKey, uint16]
	backings  table[netip.Addr, netip.Addr, uint32, uint32]
}

func tablesOf(m *bpf.PelagoMaps) (t tables) {
	t.routes.m, t.routes.encodeKey, t.routes.decodeKey = m.Routes, encodePrefix, decodePrefix
	t.routes.encodeValue = func(v uint16) bpf.PelagoRoute { return bpf.PelagoRoute{Cluster: v} }
	t.routes.decodeValue = func(v bpf.PelagoRoute) uint16 { return v.Cluster }
	t.clusters.m, t.clusters.encodeValue, t.clusters.decodeValue = m.Clusters, encodeCluster, decodeCluster
	t.clusters.encodeKey = func(k uint16) uint32 { return uint32(k) }
	t.clusters.decodeKey = func(k uint32) uint16 { return uint16(k) }
	t.peers = byAddress(m.Peers, encodePeer, decodePeer)
	t.sources = byAddress(m.Sources, encodeSource, decodeSource)
	t.externals.m, t.externals.encodeKey, t.externals.decodeKey = m.Externals, encodePrefix, decodePrefix
	t.externals.encodeValue, t.externals.decodeValue = encodeSource, decodeSource
	t.endpoints = byAddress(m.Endpoints, encodeEndpoint, decodeEndpoint)
	t.egresses = byAddress(m.Egresses, encodeEgress, decodeEgress)
	t.globals = byAddress(m.Globals2, encodeGlobal, decodeGlobal)
	t.audiences = byAddress(m.Audiences, func(v dataplane.ClusterSet) bpf.PelagoAudience { return bpf.PelagoAudience{Clusters: v} },
		func(v bpf.PelagoAudience) dataplane.ClusterSet { return v.Clusters })
	t.blocks.m, t.blocks.encodeKey, t.blocks.decodeKey = m.Blocks, encodeBlockKey, decodeBlockKey
	t.blocks.encodeValue = func(v uint16) bpf.PelagoBlock { return bpf.PelagoBlock{Node: v} }
	t.blocks.decodeValue = func(v bpf.PelagoBlock) uint16 { return v.Node }
	t.vips.m, t.vips.encodeKey, t.vips.decodeKey = m.Vips2, encodeServiceKey, decodeServiceKey
	t.vips.encodeValue, t.vips.decodeValue = encodeVIP, decodeVIP
	t.vipPods.m, t.vipPods.encodeKey, t.vipPods.decodeKey = m.VipPods, encodeVIPPod, decodeVIPPod
	t.vipPods.encodeValue, t.vipPods.decodeValue = be16, port
	t.backings = byAddress(m.VipBackings, be32, addr)
	return t
}

// byAddress is the table of a map whose key is an address.
func byAddress[V, EV any](m *ebpf.Map, encode func(V) EV, decode func(EV) V) table[netip.Addr, V, uint32, EV] {
	return table[netip.Addr, V, uint32, EV]{m, be32, addr, encode, decode}
}

// steps make the steps of dataplane.Diff.
func (l *Loader) steps() dataplane.Steps[step] {
	m := &l.objs.PelagoMaps
	t := tablesOf(m)
	return dataplane.Steps[step]{
		Settings: func(v dataplane.Settings) step { return step{write: func() error { return l.writeSettings(v) }} },
		Gateways: func(v []uint16) step {
			return step{write: func() error { return put(m.Gateways, uint32(0), encodeGateways(v)) }}
		},
		VIPRange: func(v netip.Prefix) step {
			return step{write: func() error { return put(m.VipRanges, uint32(0), encodeVIPRange(v)) }}
		},
		Nodes: func(k uint16, v *dataplane.Hop) step {
			var node bpf.PelagoNode // the zero value is "not present": arrays have no delete
			if v != nil {
				node = bpf.PelagoNode{Hop: encodeHop(*v), Present: 1}
			}
			return step{write: func() error { return put(m.Nodes, uint32(k), node) }}
		},
		Services: func(k dataplane.ServiceKey, v *dataplane.Service) step { return step{service: &serviceChange{k, v}} },
		Routes:   t.routes.step, Clusters: t.clusters.step, Peers: t.peers.step, Sources: t.sources.step, Externals: t.externals.step,
		Endpoints: t.endpoints.step, Egresses: t.egresses.step, Globals: t.globals.step, Audiences: t.audiences.step,
		Blocks: t.blocks.step, VIPPods: t.vipPods.step, VIPs: t.vips.step, Backings: t.backings.step,
	}
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
