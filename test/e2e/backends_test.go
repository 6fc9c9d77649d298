package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testBackends: a backend is added to a service in use, and one is removed. Only the removed pod's
// connections end.
func testBackends(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	old := s.podsOf(t, "app=web")
	connections := s.hold(t, l.client, 100, l.web.String()+":80")

	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", len(old)+1))
	s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	if err := s.ReachesAll(ctx, l.other, l.web.String(), len(old)+1); err != nil {
		t.Errorf("new connections after a pod was added: %v", err)
	}

	removed := old[0]
	address := s.kubectl(t, "g2", "-n", loadNamespace, "get", "pod", removed, "-o", "jsonpath={.status.podIP}")
	served := 0
	for _, f := range s.flowsTowards(t, l.web) {
		if f.Role == "server" && f.State == "established" && f.Translated.Destination.Addr().String() == address {
			served++
		}
	}
	s.kubectl(t, "g2", "-n", loadNamespace, "annotate", "pod", removed, "controller.kubernetes.io/pod-deletion-cost=-100")
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", len(old)))
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=delete", "pod/"+removed, walk.WaitFlag)
	within(t, func() error { // a held connection that ends is not opened again
		out, err := s.In(ctx, l.client, "sh", "-c", "netstat -tn | grep -c '"+l.web.String()+":80 *ESTABLISHED' || true")
		if n := strings.TrimSpace(out); err == nil && n != fmt.Sprint(100-served) {
			err = fmt.Errorf("%s connections are established, want 100 without the %d of pod %s", n, served, removed)
		}
		return err
	})
	for range 2 * len(old) {
		if a, err := s.Ask(ctx, l.other, l.web.String()); err != nil || a.Pod == removed {
			t.Errorf("a new connection after pod %s was removed: answered by %q, %v", removed, a.Pod, err)
		}
	}
	h := onlyBrokenOf(t, connections, removed)
	if h.Opened != 100 || len(h.PerPod) != len(old) {
		t.Errorf("%d connections, served by %v; want 100 on %d pods", h.Opened, h.PerPod, len(old))
	}
	if len(h.Broken) != h.PerPod[removed] {
		t.Errorf("%d connections of the removed pod ended, want all %d", len(h.Broken), h.PerPod[removed])
	}
}
