package dataplane

import (
	"cmp"
	"net/netip"
	"slices"
)

// Table names a map of the kernel side.
type Table string

// The maps that user space writes, by their names on bpffs.
const (
	TableSettings  Table = "settings"
	TableRoutes    Table = "routes"
	TableNodes     Table = "nodes"
	TableGateways  Table = "gateways"
	TableClusters  Table = "clusters"
	TablePeers     Table = "peers"
	TableSources   Table = "sources"
	TableExternals Table = "externals"
	TableEndpoints Table = "endpoints"
	TableEgresses  Table = "egresses"
	TableGlobals   Table = "globals"
	TableAudiences Table = "audiences"
	TableBlocks    Table = "blocks"
	TableServices  Table = "services"
	TableVIPRange  Table = "vip_ranges"
	TableVIPs      Table = "vips"
	TableBackings  Table = "vip_backings"
)

// Change is one step: put Value under Key, or remove Key if Value is nil. Key and Value have the types of the State's
// field of that name; Settings, Gateways and VIPRange have no key.
type Change struct {
	Table Table
	Key   any
	Value any
}

// Diff returns the steps from have to want, in an order in which no intermediate state misroutes a packet:
//
//  1. what others refer to comes first (nodes, remote gateways, peers, blocks, global addresses, services);
//  2. then what refers to it (gateways, routes) and what lets traffic begin (egresses, sources);
//  3. removals in the opposite order;
//  4. the settings last, since they open the gates (ready, gateway) at which programs drop until then; but a gate that
//     is to be closed is closed first.
//
// A changed entry is one atomic put. The order within a table is by key, so the result is the same for the same input.
func Diff(have, want State) []Change {
	var put, remove []Change
	both := func(p, r []Change) {
		put = append(put, p...)
		remove = append(r, remove...) // later tables are taken down first
	}
	both(diffMap(TableNodes, have.Nodes, want.Nodes, cmp.Compare[uint16], same))
	both(diffMap(TableClusters, have.Clusters, want.Clusters, cmp.Compare[uint16], sameGateways))
	both(diffMap(TablePeers, have.Peers, want.Peers, netip.Addr.Compare, same))
	both(diffMap(TableBlocks, have.Blocks, want.Blocks, compareBlock, same))
	both(diffMap(TableServices, have.Services, want.Services, compareService, sameService))
	both(diffMap(TableAudiences, have.Audiences, want.Audiences, netip.Addr.Compare, same))
	both(diffMap(TableGlobals, have.Globals, want.Globals, netip.Addr.Compare, same))
	if !slices.Equal(have.Gateways, want.Gateways) {
		put = append(put, Change{Table: TableGateways, Value: want.Gateways})
	}
	both(diffMap(TableRoutes, have.Routes, want.Routes, comparePrefix, same))
	both(diffMap(TableBackings, have.Backings(), want.Backings(), netip.Addr.Compare, same))
	both(diffMap(TableVIPs, have.VIPs, want.VIPs, compareService, sameVIP))
	if have.VIPRange != want.VIPRange {
		put = append(put, Change{Table: TableVIPRange, Value: want.VIPRange})
	}
	both(diffMap(TableEgresses, have.Egresses, want.Egresses, netip.Addr.Compare, slices.Equal))
	both(diffMap(TableSources, have.Sources, want.Sources, netip.Addr.Compare, same))
	both(diffMap(TableExternals, have.Externals, want.Externals, comparePrefix, same))
	both(diffMap(TableEndpoints, have.Endpoints, want.Endpoints, netip.Addr.Compare, same))

	// A gate is closed before everything else and opened after everything else.
	closed := have.Settings
	closed.Ready = have.Settings.Ready && want.Settings.Ready
	closed.Gateway = have.Settings.Gateway && want.Settings.Gateway
	var changes []Change
	if closed != have.Settings {
		changes = append(changes, Change{Table: TableSettings, Value: closed})
	}
	changes = append(append(changes, put...), remove...)
	if closed != want.Settings {
		changes = append(changes, Change{Table: TableSettings, Value: want.Settings})
	}
	return changes
}

func diffMap[K comparable, V any](table Table, have, want map[K]V, compare func(a, b K) int, same func(a, b V) bool) (put, remove []Change) {
	for _, k := range sortedKeys(want, compare) {
		if v, ok := have[k]; !ok || !same(v, want[k]) {
			put = append(put, Change{Table: table, Key: k, Value: want[k]})
		}
	}
	for _, k := range sortedKeys(have, compare) {
		if _, ok := want[k]; !ok {
			remove = append(remove, Change{Table: table, Key: k})
		}
	}
	return put, remove
}

func same[V comparable](a, b V) bool { return a == b }

func sameService(a, b Service) bool {
	return a.ClientIP == b.ClientIP && slices.Equal(a.Backends, b.Backends) && slices.Equal(a.Table, b.Table)
}

func sameVIP(a, b VIP) bool {
	return a.Affinity == b.Affinity && slices.Equal(a.Targets, b.Targets) && slices.Equal(a.Slots, b.Slots)
}

func sortedKeys[K comparable, V any](m map[K]V, compare func(a, b K) int) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, compare)
	return keys
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareBlock(a, b BlockKey) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.First, b.First))
}

func compareService(a, b ServiceKey) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

func sameGateways(a, b []RemoteGateway) bool {
	return slices.EqualFunc(a, b, func(a, b RemoteGateway) bool {
		return a.Hop == b.Hop && a.Node == b.Node && a.Port == b.Port && slices.Equal(a.Tunnels, b.Tunnels)
	})
}
