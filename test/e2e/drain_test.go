package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testGatewayDrained: a gateway is drained by the command, and one by a cordon, while connections
// run; no packet is lost. The last gateway of a cluster is not drained.
func testGatewayDrained(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	for cluster, node := range map[string]string{"g1": "g1-n1", "g2": "g2-n1"} {
		if _, err := s.Pelago(ctx, "gateway", "drain", node, "--context", cluster); err != nil {
			t.Fatal(err)
		}
		before := s.switched(t, cluster, node)
		time.Sleep(time.Second) // nothing may pass it
		if n := s.switched(t, cluster, node) - before; n > 0 {
			t.Errorf("%s is drained and still switches: %d packets in 1 s", node, n)
		}
	}
	if out, err := s.Pelago(ctx, "gateway", "drain", "g1-n2", "--context", "g1"); err == nil || !strings.Contains(err.Error()+out, "the last gateway") {
		t.Errorf("draining the last gateway of g1: %v; want a refusal", err)
	}
	for cluster, node := range map[string]string{"g1": "g1-n1", "g2": "g2-n1"} {
		if _, err := s.Pelago(ctx, "gateway", "undrain", node, "--context", cluster); err != nil {
			t.Fatal(err)
		}
	}
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n2", "g2-n1", "g2-n2") })
	s.kubectl(t, "g1", "cordon", "g1-n2")
	within(t, func() error { return s.gatewaysAre("g1-n1", "g2-n1", "g2-n2") })
	s.kubectl(t, "g1", "uncordon", "g1-n2")
	within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n2", "g2-n1", "g2-n2") })
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}

// testUpgrade: the node daemons of both clusters are replaced one after the other, as an upgrade
// does it, while connections run.
func testUpgrade(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "restart", "daemonset/pelago-node")
		s.kubectl(t, cluster, "-n", "pelago-system", "rollout", "status", "daemonset/pelago-node", walk.WaitFlag)
	}
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}

// testUpgradeCommand: `pelago upgrade` to an image that is not there stops in g1 and leaves g2 as it
// was; run again with one that is there, it upgrades both. No connection of other pods notices.
func testUpgradeCommand(t *testing.T, s *clusterset) {
	ctx := t.Context()
	const image, next, missing = "localhost/pelago:dev", "localhost/pelago:next", "localhost/pelago:missing"
	upgrade := func(image string) (string, error) {
		return s.Pelago(ctx, "upgrade", "--contexts", "g1,g2,hub", "--image", image, "--timeout", "20s")
	}
	runs := func(cluster string) string {
		return s.kubectl(t, cluster, "-n", "pelago-system", "get", "daemonset", "pelago-node", "-o", "jsonpath={.spec.template.spec.containers[0].image}")
	}
	for _, cluster := range s.Members() {
		for _, node := range s.nodes(t, cluster) {
			s.node(t, node, "ctr", "-n", "k8s.io", "images", "tag", "--force", image, next)
		}
	}
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	if _, err := upgrade(missing); err == nil || !strings.Contains(err.Error(), "upgrade of g1") {
		t.Errorf("an image that is not there: %v", err)
	}
	if g1, g2 := runs("g1"), runs("g2"); g1 != missing || g2 != image {
		t.Errorf("g1 has %s, g2 %s", g1, g2)
	}
	for _, to := range []string{next, image} {
		if _, err := upgrade(to); err != nil {
			t.Fatal(err)
		}
		if g1, g2 := runs("g1"), runs("g2"); g1 != to || g2 != to {
			t.Errorf("g1 has %s, g2 %s, want %s", g1, g2, to)
		}
	}
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}
