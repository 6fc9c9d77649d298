package tables_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane/liveness"
	"github.com/pelago-net/pelago/test/clusterset"
)

var (
	fits = liveness.Size{Full: 1390, Passes: 1390}
	hole = liveness.Size{Full: 1390, Passes: 1300}
)

// How large packets to another cluster may be is what passes on every way that they may take.
func TestLimits(t *testing.T) {
	type sizes = map[netip.Addr]liveness.Size
	first, second := ip("241.0.128.1"), ip("241.0.128.2") // gateways of g2
	for name, tt := range map[string]struct {
		from   string
		sizes  sizes
		change func(*tables.Objects)
		limits map[uint16]int
		tells  map[string]int32
	}{
		"nothing is known":         {from: "n1"},
		"all is well":              {from: "n1", sizes: sizes{first: fits, second: fits}},
		"a hole behind a gateway":  {from: "n1", sizes: sizes{first: fits, second: hole}, limits: map[uint16]int{2: 1300}, tells: map[string]int32{"g2": 1300}},
		"two holes":                {from: "n1", sizes: sizes{first: {Full: 1390, Passes: 1200}, second: hole}, limits: map[uint16]int{2: 1200}, tells: map[string]int32{"g2": 1200}},
		"a hole before a gateway":  {from: "n2", sizes: sizes{ip("172.31.1.11"): hole}, limits: map[uint16]int{2: 1300}},
		"a hole to somebody else":  {from: "n2", sizes: sizes{ip("172.31.9.9"): hole}},
		"the gateway tells of one": {from: "n2", change: func(o *tables.Objects) { o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280, "g9": 1000} }, limits: map[uint16]int{2: 1280}},
		"the smallest of all": {from: "n2", sizes: sizes{ip("172.31.1.11"): hole}, change: func(o *tables.Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1310}
		}, limits: map[uint16]int{2: 1300}},
		"one that is no gateway any more told of one": {from: "n2", change: func(o *tables.Objects) {
			o.NodeIndexes[0].Status.PathMTU, o.NodeIndexes[0].Status.Gateway = map[string]int32{"g2": 1280}, false
		}},
		"a gateway that has just begun anew": {from: "n1", change: func(o *tables.Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}, limits: map[uint16]int{2: 1280}, tells: map[string]int32{"g2": 1280}},
		"and knows better now": {from: "n1", sizes: sizes{first: fits}, change: func(o *tables.Objects) {
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}},
		"a cluster that is refused": {from: "n1", sizes: sizes{first: hole}, change: func(o *tables.Objects) {
			o.Peers[0].Status.Conditions = nil
			o.NodeIndexes[0].Status.PathMTU = map[string]int32{"g2": 1280}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			objs, host := clusterset.Encrypted(tt.from)
			if tt.change != nil {
				tt.change(&objs)
			}
			host.MTU, host.Limits, host.PathMTU = 1390, tables.RouteLimits(objs, tt.sizes), tables.CableLimits(objs, tt.sizes)
			if diff := cmp.Diff(tt.limits, host.Limits); diff != "" {
				t.Errorf("limits -want +got\n%s", diff)
			}
			r := tables.Desired(objs, host)
			if diff := cmp.Diff(tt.tells, r.PathMTU); diff != "" {
				t.Errorf("what the others are told -want +got\n%s", diff)
			}
			mtu := 1390
			if limit, ok := tt.limits[2]; ok {
				mtu = limit
			}
			if got := int(r.State.Settings.MSS); got != mtu-40 {
				t.Errorf("MSS %d, want %d", got, mtu-40)
			}
		})
	}
}
