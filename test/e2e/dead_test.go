package e2e

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testDeadCluster: a cluster is cut off while the API server of the other is stopped. The name
// server stops giving out addresses of the dead cluster, and gives them out again when it is back.
func testDeadCluster(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	name := "web." + loadNamespace + ".svc.clusterset.local"
	dns := s.kubectl(t, "g1", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	ask := func() string {
		t.Helper()
		out, err := s.Lab.Exec(t.Context(), l.clientNode, "dig", "+short", "+time=5", "+tries=3", "@"+dns, name)
		must(t, err)
		return strings.TrimSpace(out)
	}
	within(t, func() error {
		if got := ask(); got != l.web.String() {
			return fmt.Errorf("%s is %q, want %s", name, got, l.web)
		}
		return nil
	})
	server := s.apiServer(t, "g1")
	t.Cleanup(func() {
		if err := s.Lab.HealLink("g2"); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { must(t, syscall.Kill(server, syscall.SIGCONT)) })
	must(t, syscall.Kill(server, syscall.SIGSTOP))
	must(t, s.Lab.CutLink("g2", false))
	begin := time.Now()
	last := begin // answer with an address; queries are spread over two name servers
	for none := 0; none < 10; none++ {
		if ask() != "" {
			last, none = time.Now(), -1
		}
		if time.Since(begin) > walk.Patience {
			t.Fatalf("%s still has an address %s after g2 was cut off", name, last.Sub(begin))
		}
	}
	t.Logf("the last address of g2 was given out %d ms after it was cut off, with g1's API server stopped", last.Sub(begin).Milliseconds())
	must(t, s.Lab.HealLink("g2"))
	took := within(t, func() error {
		if got := ask(); got != l.web.String() {
			return fmt.Errorf("%s is %q, want %s", name, got, l.web)
		}
		return nil
	})
	t.Logf("%.1f s after it is back they do", took.Seconds())
}

// apiServer is the process of a cluster's API server.
func (s *clusterset) apiServer(t *testing.T, cluster string) int {
	t.Helper()
	out, err := exec.Command("pgrep", "-f", "^[^ ]*/kube-apiserver .*"+s.Lab.Dir()+"/cluster/"+cluster+"/").Output()
	must(t, err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(out)))
	must(t, err)
	return pid
}
