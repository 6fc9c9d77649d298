package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// testVerify: `pelago verify` passes in two clusters, with a gateway of each drained, and leaves
// nothing; --cleanup removes what a run has left that was killed.
func testVerify(t *testing.T, s *clusterset) {
	ctx := t.Context()
	gone := func() error {
		for _, cluster := range s.Members() {
			if left := s.kubectl(t, cluster, "get", "namespace", "pelago-verify", "--ignore-not-found", "-o", "name"); left != "" {
				return fmt.Errorf("%s has %s", cluster, left)
			}
		}
		return nil
	}
	out, err := s.Pelago(ctx, "verify", "--contexts", "g1,g2", "--failover", "-o", "json")
	must(t, err)
	passed := map[string]int{}
	for _, o := range decode[[]struct{ Step, From, To, Verdict, Detail string }](t, out) {
		if o.Verdict != "passed" {
			t.Errorf("%s from %s to %s: %s: %s", o.Step, o.From, o.To, o.Verdict, o.Detail)
		}
		passed[o.Step]++
	}
	for _, step := range []string{"exports", "service", "own service", "headless", "udp", "transfer", "ClusterSetIP", "own ClusterSetIP", "failover"} {
		if passed[step] != 2 {
			t.Errorf("step %s has %d outcomes, want 2", step, passed[step])
		}
	}
	must(t, gone())

	killed := exec.CommandContext(ctx, filepath.Join(s.Bin, "pelago"), "verify", "--contexts", "g1,g2")
	killed.Env = append(os.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
	must(t, killed.Start())
	within(t, func() error {
		if phase := s.kubectl(t, "g1", "-n", "pelago-verify", "get", "pod", "client", "--ignore-not-found", "-o", "jsonpath={.status.phase}"); phase != "Running" {
			return fmt.Errorf("the client is %q", phase)
		}
		return nil
	})
	must(t, killed.Process.Kill())
	_ = killed.Wait() // reports the kill
	if gone() == nil {
		t.Error("nothing is left of a run that was killed")
	}
	if _, err := s.Pelago(ctx, "verify", "--contexts", "g1,g2", "--cleanup"); err != nil {
		t.Error(err)
	}
	must(t, gone())

	status, err := s.Pelago(ctx, "status", "--contexts", "g1,g2,hub", "-o", "json")
	if err != nil {
		t.Log(err) // by a finding of the checks
	}
	var shown struct {
		Clusters []struct{ Name string }
		Paths    []struct{ Gateways struct{ Ready, All int } }
	}
	must(t, json.Unmarshal([]byte(status), &shown))
	if len(shown.Clusters) != 3 || len(shown.Paths) != 2 || shown.Paths[0].Gateways.Ready != 2 {
		t.Errorf("status: %s", status)
	}
}
