package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestWireGuard is the main path with the cable encrypted, which is what join chooses, and two gateways a cluster.
func TestWireGuard(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "wg", Nodes: 3}, walk.Walk{Gateways: 2})
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "nothing in the clear", testEncrypted)
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
	s.run(t, "a gateway leaves", testGatewayLeaves)
}

// testEncrypted looks at the cable's port on a gateway's uplink under traffic: there are WireGuard data packets (type 4),
// and none with the overlay's header (flags 8).
func testEncrypted(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	traffic := make(chan error, 1)
	go func() {
		_, err := s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", "g1", "-n", loadNamespace, "exec", l.client.Name, "--",
			"sh", "-c", fmt.Sprintf("for i in $(seq 100); do curl -s -m 5 http://%s/ >/dev/null || exit 1; sleep 0.1; done", l.web))
		traffic <- err
	}()
	see := func(first, packets, seconds int) string {
		out := s.node(t, "g1-n1", "sh", "-c", fmt.Sprintf(
			"timeout %d tcpdump -ni any -c %d 'udp port 4500 and udp[8] = %d' 2>&1 | grep captured", seconds, packets, first))
		return strings.TrimSpace(out)
	}
	if got := see(4, 20, 8); got != "20 packets captured" {
		t.Errorf("WireGuard packets on the uplink of g1-n1: %s; want 20", got)
	}
	if got := see(8, 1, 3); got != "0 packets captured" {
		t.Errorf("overlay packets in the clear on the cable's port of g1-n1: %s", got)
	}
	must(t, <-traffic)
}
