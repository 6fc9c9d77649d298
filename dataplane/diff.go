package dataplane

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"
)

// Steps makes the steps of Diff, with a function for each field of State: for a map of State the
// step that puts *v under k, or, where v is nil, the one that removes k; for the other fields the
// step that replaces the value.
type Steps[S any] struct {
	Settings  func(v Settings) S
	Gateways  func(v []uint16) S
	VIPRange  func(v netip.Prefix) S
	Routes    func(k netip.Prefix, v *uint16) S
	Nodes     func(k uint16, v *Hop) S
	Clusters  func(k uint16, v *[]RemoteGateway) S
	Peers     func(k netip.Addr, v *Peer) S
	Sources   func(k netip.Addr, v *Source) S
	Externals func(k netip.Prefix, v *Source) S
	Endpoints func(k netip.Addr, v *Endpoint) S
	Egresses  func(k netip.Addr, v *[]uint16) S
	Globals   func(k netip.Addr, v *Global) S
	Audiences func(k netip.Addr, v *ClusterSet) S
	Blocks    func(k BlockKey, v *uint16) S
	Services  func(k ServiceKey, v *Service) S
	VIPPods   func(k VIPPod, v *uint16) S
	VIPs      func(k ServiceKey, v *VIP) S
	Backings  func(k netip.Addr, v *netip.Addr) S // State.Backings
}

// Diff returns the steps from have to want, in an order in which no intermediate state misroutes a
// packet:
//
//  1. what others refer to comes first (nodes, remote gateways, peers, blocks, global addresses,
//     services);
//  2. then what refers to it (gateways, routes) and what lets traffic begin (egresses, sources);
//  3. removals in the opposite order;
//  4. the settings last, since they open the gates (ready, gateway) at which programs drop until
//     then; but a gate that is to be closed is closed first.
//
// A changed entry is one atomic put. The order within a table is by key, so the result is the same
// for the same input.
func Diff[S any](have, want State, steps Steps[S]) []S {
	d := &diff[S]{}
	diffMap(d, steps.Nodes, have.Nodes, want.Nodes, cmp.Compare[uint16], same)
	diffMap(d, steps.Clusters, have.Clusters, want.Clusters, cmp.Compare[uint16], sameGateways)
	diffMap(d, steps.Peers, have.Peers, want.Peers, netip.Addr.Compare, same)
	diffMap(d, steps.Blocks, have.Blocks, want.Blocks, compareBlock, same)
	diffMap(d, steps.VIPPods, have.VIPPods, want.VIPPods, compareVIPPod, same)
	diffMap(d, steps.Services, have.Services, want.Services, compareService, sameService)
	diffMap(d, steps.Audiences, have.Audiences, want.Audiences, netip.Addr.Compare, same)
	diffMap(d, steps.Globals, have.Globals, want.Globals, netip.Addr.Compare, same)
	if !slices.Equal(have.Gateways, want.Gateways) {
		d.put = append(d.put, steps.Gateways(want.Gateways))
	}
	diffMap(d, steps.Routes, have.Routes, want.Routes, comparePrefix, same)
	diffMap(d, steps.Backings, have.Backings(), want.Backings(), netip.Addr.Compare, same)
	diffMap(d, steps.VIPs, have.VIPs, want.VIPs, compareService, sameVIP)
	if have.VIPRange != want.VIPRange {
		d.put = append(d.put, steps.VIPRange(want.VIPRange))
	}
	diffMap(d, steps.Egresses, have.Egresses, want.Egresses, netip.Addr.Compare, slices.Equal)
	diffMap(d, steps.Sources, have.Sources, want.Sources, netip.Addr.Compare, same)
	diffMap(d, steps.Externals, have.Externals, want.Externals, comparePrefix, same)
	diffMap(d, steps.Endpoints, have.Endpoints, want.Endpoints, netip.Addr.Compare, same)

	// A gate is closed before everything else and opened after everything else.
	closed := have.Settings
	closed.Ready = have.Settings.Ready && want.Settings.Ready
	closed.Gateway = have.Settings.Gateway && want.Settings.Gateway
	var out []S
	if closed != have.Settings {
		out = append(out, steps.Settings(closed))
	}
	out = append(out, d.put...)
	for _, table := range slices.Backward(d.remove) { // later tables are taken down first
		out = append(out, table...)
	}
	if closed != want.Settings {
		out = append(out, steps.Settings(want.Settings))
	}
	return out
}

// diff collects steps: puts in order, removals by table.
type diff[S any] struct {
	put    []S
	remove [][]S
}

func diffMap[S any, K comparable, V any](d *diff[S], step func(K, *V) S, have, want map[K]V, compare func(a, b K) int, same func(a, b V) bool) {
	if len(have) == len(want) && reflect.ValueOf(have).Pointer() == reflect.ValueOf(want).Pointer() {
		d.remove = append(d.remove, nil) // the same map
		return
	}
	var put, gone []K // few, as a rule: the maps are not sorted
	for k, v := range want {
		if old, ok := have[k]; !ok || !same(old, v) {
			put = append(put, k)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			gone = append(gone, k)
		}
	}
	slices.SortFunc(put, compare)
	slices.SortFunc(gone, compare)
	for _, k := range put {
		v := want[k]
		d.put = append(d.put, step(k, &v))
	}
	var remove []S
	for _, k := range gone {
		remove = append(remove, step(k, nil))
	}
	d.remove = append(d.remove, remove)
}

func same[V comparable](a, b V) bool { return a == b }

func sameService(a, b Service) bool {
	return a.Affinity == b.Affinity && slices.Equal(a.Backends, b.Backends) && sameTable(a.Table, b.Table)
}

// sameTable compares tables, which are the same slice where MaglevCache has built them.
func sameTable[T comparable](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

func sameVIP(a, b VIP) bool {
	return a.Affinity == b.Affinity && slices.Equal(a.Targets, b.Targets) && sameTable(a.Slots, b.Slots)
}

func comparePrefix(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}

func compareBlock(a, b BlockKey) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.First, b.First))
}

func compareVIPPod(a, b VIPPod) int {
	return cmp.Or(compareService(a.VIP, b.VIP), a.Pod.Compare(b.Pod))
}

func compareService(a, b ServiceKey) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol))
}

func sameGateways(a, b []RemoteGateway) bool {
	return slices.EqualFunc(a, b, func(a, b RemoteGateway) bool {
		return a.Hop == b.Hop && a.Node == b.Node && a.Port == b.Port && slices.Equal(a.Tunnels, b.Tunnels)
	})
}
