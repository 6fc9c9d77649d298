package node

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/netdev"
	"github.com/pelago-net/pelago/test/clusterset"
)

// pelago0 keeps its MTU where packets of one cluster must be smaller: that cluster's routes have the limit.
func TestDeviceConfig(t *testing.T) {
	for name, limits := range map[string]map[uint16]int{"no limit": nil, "g2 has one": {2: 1300}} {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted("n1")
			host.Edge, host.MTU, host.Limits = 7, 1390, limits
			want := netdev.Config{
				Edge: 7, Source: ip("172.31.1.11"), MTU: 1390,
				Prefixes: []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24"), netip.MustParsePrefix("120.1.0.0/24")},
				Limits:   map[netip.Prefix]int{},
			}
			if limit, ok := limits[2]; ok {
				want.Limits[want.Prefixes[0]] = limit
			}
			if diff := cmp.Diff(want, deviceConfig(tables.Desired(objs, host).State, host), clusterset.Comparable,
				cmpopts.SortSlices(func(a, b netip.Prefix) int { return a.Compare(b) })); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func TestPodDevices(t *testing.T) {
	s := dataplane.State{Endpoints: map[netip.Addr]dataplane.Endpoint{ip("10.7.2.6"): {Ifindex: 5}, ip("10.7.2.5"): {Ifindex: 3}, ip("10.7.2.7"): {Ifindex: 5}}}
	if diff := cmp.Diff([]int{3, 5}, podDevices(s)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
