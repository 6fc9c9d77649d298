package main

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"

	"github.com/pelago-net/pelago/test/need"
)

// testKills is how often the hub is killed here; `make chaos` does it 100 times, with real API
// servers as members.
const testKills = 4

// A short form of the scenario kills, with the product as it is in this tree. In the end the hub
// ends by itself.
func TestKills(t *testing.T) {
	need.Kubernetes(t)
	bin := t.TempDir()
	build := exec.Command("go", "build", "-o", bin, "./cmd/pelago", "./cmd/pelago-hub")
	build.Dir = "../.."
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the product: %v\n%s", err, out)
	}
	o := options{bin: bin, dir: t.TempDir(), simulated: 2, templates: 8, seed: uint64(time.Now().UnixNano()),
		pauseEvery: testKills + 1, every: 50 * time.Millisecond, lag: time.Minute, limit: 2 * time.Minute}
	t.Logf("seed %d", o.seed)
	s, err := newStage(t.Context(), o, scenario{name: "kills"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	counts, err := s.kills(t.Context(), testKills)
	if err != nil {
		t.Fatal(err)
	}
	if counts.hub+counts.api != testKills || len(counts.leads) != testKills {
		t.Errorf("not killed %d times: %+v", testKills, counts)
	}
	p, err := s.replica.current()
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.Stop(t.Context()), s.churn.settle(t.Context())); err != nil {
		t.Fatal(err)
	}
	violations, took, err := s.converged(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d operations, the hub led again after %v, all was as wanted %v after the last change", s.churn.done.Load(),
		counts.leads, took)
	for _, v := range append(violations, s.history.Violations()...) {
		t.Error(v)
	}
	await.True(t, "the end of a hub by itself is counted", func() bool { return s.replica.ended() == counts.ended+1 })
	if p.Alive() || s.history.Alive() == 0 {
		t.Errorf("the first process lives: %t; %d objects", p.Alive(), s.history.Alive())
	}
}
