package e2e

import (
	"fmt"
	"testing"
	"time"
)

// testBackends: pods come and go behind a service that is in use. Only the connections of the pod that goes end.
func testBackends(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	old := s.podsOf(t, "app=web")
	connections := s.hold(t, l.client, 100, l.web.String()+":80")

	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", len(old)+1))
	s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", "--timeout=60s")
	if err := s.ReachesAll(ctx, l.other, l.web.String(), len(old)+1); err != nil {
		t.Errorf("new connections after a pod was added: %v", err)
	}

	removed := old[0]
	s.kubectl(t, "g2", "-n", loadNamespace, "annotate", "pod", removed, "controller.kubernetes.io/pod-deletion-cost=-100")
	s.kubectl(t, "g2", "-n", loadNamespace, "scale", "deployment/web", fmt.Sprintf("--replicas=%d", len(old)))
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=delete", "pod/"+removed, "--timeout=60s")
	time.Sleep(3 * time.Second) // for the held connections to notice, which nothing shows before they end
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
