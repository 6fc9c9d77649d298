package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// away is how long the hub cannot be reached.
const away = time.Minute

// testHubAway: the hub is unreachable for a minute, as behind a broken switch. Established and new
// connections work, nothing is deleted, and changes made meanwhile are propagated when the hub is
// back.
func testHubAway(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 50, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 100, l.sink.String()+":7")
	before := s.imported(t)
	t.Cleanup(func() {
		if err := s.Lab.HealLink("hub"); err != nil {
			t.Error(err)
		}
	})
	must(t, s.Lab.CutLink("hub", false))
	begin := time.Now()

	replicas := len(s.podsOf(t, "app=web"))
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas+1))
	s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	if err := s.ReachesAll(ctx, l.other, l.web.String(), replicas+1); err != nil {
		t.Errorf("a pod that was added while the hub is away: %v", err)
	}
	s.needService(t, "later")
	_, err := s.Pelago(ctx, "export", "service", "--context", "g2", "--namespace", loadNamespace, "later")
	must(t, err)
	time.Sleep(away - time.Since(begin)) // nothing may be deleted meanwhile

	if diff := cmp.Diff(before, s.imported(t)); diff != "" {
		t.Errorf("imports of g1: -before +after a minute without the hub\n%s", diff)
	}
	if _, err := s.Resolve(ctx, l.other, "web."+loadNamespace+".svc.clusterset.local", 1, walk.GlobalCIDR2); err != nil {
		t.Errorf("names: %v", err)
	}
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)

	must(t, s.Lab.HealLink("hub"))
	took := within(t, func() error {
		if !strings.Contains(s.imported(t), "later") {
			return fmt.Errorf("g1 has not imported what g2 exported meanwhile: %s", s.imported(t))
		}
		return nil
	})
	t.Logf("g1 imports what was exported meanwhile %.1f s after the hub is back", took.Seconds())
	_, err = s.Pelago(ctx, "unexport", "service", "--context", "g2", "--namespace", loadNamespace, "later")
	must(t, err)
	took = within(t, func() error {
		if strings.Contains(s.imported(t), "later") {
			return fmt.Errorf("g1 still imports what is no longer exported")
		}
		return nil
	})
	t.Logf("un-exported again after %.1f s", took.Seconds())
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", replicas))
}

// needService makes a Service without pods in g2's part of the load.
func (s *clusterset) needService(t *testing.T, name string) {
	t.Helper()
	s.applyQuietly(t, "g2", fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: %s, namespace: %s}\nspec: {ports: [{port: 80}]}\n", name, loadNamespace))
}

// imported lists what g1 has of the load's services: imports and slices with their addresses,
// sorted by name.
func (s *clusterset) imported(t *testing.T) string {
	t.Helper()
	return s.kubectl(t, "g1", "-n", loadNamespace, "get", "serviceimports,endpointslices", "-l", "!kubernetes.io/service-name", "--sort-by=.metadata.name",
		"-o", `jsonpath={range .items[*]}{.kind} {.metadata.name} {.endpoints[*].addresses[*]} {.endpoints[*].conditions.ready}{"\n"}{end}`)
}
