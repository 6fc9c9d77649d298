package e2e

import (
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// deadWithin bounds how long the name server may give out addresses of a dead cluster. It takes less than a second where the
// machine has nothing else to do; the time is logged.
const deadWithin = 3 * time.Second

// testDeadCluster: a cluster is cut off while the API server of the other stands still: its services' names give no address
// any more, and do again when it is back.
func testDeadCluster(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	name := "web." + loadNamespace + ".svc.clusterset.local"
	dns := s.kubectl(t, "g1", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	ask := func() string {
		t.Helper()
		out, err := s.Lab.Exec(t.Context(), l.clientNode, "dig", "+short", "+time=1", "+tries=1", "@"+dns, name)
		must(t, err)
		return strings.TrimSpace(out)
	}
	within(t, 10*time.Second, func() error {
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
	last := begin // answer with an address; there are two name servers, asked by turns
	for none := 0; none < 10; none++ {
		if ask() != "" {
			last, none = time.Now(), -1
		}
		if time.Since(begin) > deadWithin {
			t.Fatalf("%s still has an address %s after g2 was cut off", name, last.Sub(begin))
		}
	}
	t.Logf("the last address of g2 was given %d ms after it was cut off, with g1's API server standing still", last.Sub(begin).Milliseconds())
	must(t, s.Lab.HealLink("g2"))
	took := within(t, 30*time.Second, func() error {
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
