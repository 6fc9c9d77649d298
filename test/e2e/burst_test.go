package e2e

import (
	"fmt"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// burstSize is the number of connections that a pod opens within two seconds.
const burstSize = 10000

// bursted is what `whereami burst` prints (test/images/README.md).
type bursted struct {
	Opened      int      `json:"opened"`
	Failed      []string `json:"failed"`
	FailedCount int      `json:"failedCount"`
	P50Ms       float64  `json:"p50Ms"`
	P99Ms       float64  `json:"p99Ms"`
	TookMs      float64  `json:"tookMs"`
}

// testBurst: a pod opens many connections to a service of the other cluster at once, on a node
// whose daemon has not seen more than a few. None is refused for want of a port.
func testBurst(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	burst := func(from walk.Pod, to string) bursted {
		t.Helper()
		out, err := s.In(t.Context(), from, "whereami", "burst", "-connections", fmt.Sprint(burstSize), "-within", "2s", to)
		must(t, err)
		return decode[bursted](t, out)
	}
	before := s.counter(t, "g1", l.clientNode, "edge-out", "drop-ports-exhausted")
	across := burst(l.client, l.web.String()+":80")
	t.Logf("to the other cluster: %+v", across)
	within := burst(walk.Pod{Cluster: "g2", Namespace: loadNamespace, Name: s.podsOf(t, "app=web")[0]}, s.kubectl(t, "g2", "-n", loadNamespace,
		"get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")+":80")
	t.Logf("to the ClusterIP inside g2: %+v", within)
	if across.Opened != burstSize {
		t.Errorf("%d of %d connections failed: %v", across.FailedCount, burstSize, across.Failed)
	}
	if after := s.counter(t, "g1", l.clientNode, "edge-out", "drop-ports-exhausted"); after != before {
		t.Errorf("%d packets of new flows found no port", after-before)
	}
}
