package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/bench/load"
	"github.com/pelago-net/pelago/test/netns"
	"github.com/pelago-net/pelago/test/program"
)

// The load generators are this binary, started again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == load.Command {
		if err := load.Main(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// A short run gives every metric of every variant, with figures that a working machine can have.
func TestSmoke(t *testing.T) {
	netns.Require(t)
	chosen, err := program.Choose("variant", "limit,plain", variants(), nameOf)
	if err != nil {
		t.Fatal(err)
	}
	samples, err := bench{prefix: testPrefix(), reps: 1, duration: 100 * time.Millisecond, kubeProxy: true}.run(t.Context(), chosen)
	if err != nil {
		t.Fatal(err)
	}
	plausible := map[string][2]float64{
		metricCPU: {100, 1e6}, metricUDP: {500, 1e8}, metricTCP: {0.001, 1000},
		metricRRp50: {1, 1e5}, metricRRp99: {1, 1e6}, metricCRR: {5, 1e6}, metricCRRp50: {1, 1e6},
	}
	for _, v := range program.Names(chosen, nameOf) {
		for _, m := range metrics {
			x, ok := samples[v][0][m.name]
			if r := plausible[m.name]; !ok || x < r[0] || x > r[1] {
				t.Errorf("%s %s = %g (measured: %t), want between %g and %g", v, m.name, x, ok, r[0], r[1])
			}
		}
	}
	if a, b := samples["limit"][0][metricCPU], samples["plain"][0][metricCPU]; a >= b {
		t.Errorf("a packet over one veth costs %.0f ns, over the whole path %.0f ns", a, b)
	}
}

// A variant over which nothing passes is reported with its name, gives no figures, and does not end the run.
func TestBrokenVariantIsReported(t *testing.T) {
	netns.Require(t)
	broken := Variant{Name: "broken", Setup: func(*Topology) (func() error, error) { return nil, nil }, Target: plainB}
	b := bench{prefix: testPrefix(), reps: 1, duration: 20 * time.Millisecond}
	samples, err := b.run(t.Context(), []Variant{broken, limit()})
	if err == nil || !strings.Contains(err.Error(), "variant broken, repetition 1") {
		t.Errorf("error = %v; want one that names the variant", err)
	}
	if got := rows([]string{"broken"}, samples); len(got) > 0 {
		t.Errorf("rows of the broken variant: %v", got)
	}
	if got := samples["limit"][0]; len(got) != len(metrics) {
		t.Errorf("the variant after the broken one measured %v", got)
	}
}

func TestInterruptTakesEverythingDown(t *testing.T) {
	netns.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	begin := time.Now()
	_, err := bench{prefix: testPrefix(), reps: 100, duration: time.Minute}.run(ctx, []Variant{limit()})
	if err == nil || time.Since(begin) > 20*time.Second {
		t.Errorf("run ended after %s with %v; want the interruption", time.Since(begin), err)
	}
	left, err := netns.RemoveStale(testPrefix())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string(nil), left); diff != "" {
		t.Errorf("namespaces left behind: %s", diff)
	}
}

func TestBadFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"-variants", "ipvs"}, "unknown"},
		{[]string{"-reps", "0"}, "at least 1"},
		{[]string{"-duration", "1ms"}, "at least 10ms"},
		{[]string{load.Command}, "one argument"},
		{[]string{load.Command, "{"}, "read the load specification"},
		{[]string{load.Command, `{"Role":"dance"}`}, "unknown"},
	} {
		if err := run(c.args, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("run(%q) = %v, want %q", c.args, err, c.want)
		}
	}
}
