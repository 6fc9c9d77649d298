package e2e

import (
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestWireGuard is the main path with the cable encrypted, two gateways a cluster.
func TestWireGuard(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "wg", Nodes: 3}, walk.Walk{Gateways: 2, Wire: "wireguard"})
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
	s.run(t, "a gateway leaves", testGatewayLeaves)
}
