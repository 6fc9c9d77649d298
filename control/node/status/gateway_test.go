package status

import (
	"net/netip"
	"testing"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
)

// With one gateway for all flows the first of those that answer is active, the others are passive.
func TestHAStatus(t *testing.T) {
	gateways := []uint16{1, 4}
	first := dataplane.First(gateways)
	other := gateways[0] + gateways[1] - first
	sibling := netip.MustParseAddr("172.18.0.9")
	for name, tt := range map[string]struct {
		single bool
		self   uint16
		dead   bool // the sibling
		want   submarinerv1.HAStatus
	}{
		"all are used":          {false, other, false, submarinerv1.HAStatusActive},
		"the first":             {true, first, false, submarinerv1.HAStatusActive},
		"the other":             {true, other, false, submarinerv1.HAStatusPassive},
		"the first is dead":     {true, other, true, submarinerv1.HAStatusActive},
		"the other one is dead": {true, first, true, submarinerv1.HAStatusActive},
	} {
		snap := Snapshot{State: dataplane.State{
			Settings: dataplane.Settings{Single: tt.single, Node: tt.self}, Gateways: gateways,
			Nodes: map[uint16]dataplane.Hop{gateways[0] + gateways[1] - tt.self: {Address: sibling}},
		}}
		l := NewTracker("v3")
		l.paths[sibling] = &trackedPath{dead: damped{bad: tt.dead}}
		if got := l.haStatus(snap); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
