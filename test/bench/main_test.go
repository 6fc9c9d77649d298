package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/bench/load"
	"github.com/pelago-net/pelago/test/netns"
)

// The load generators are this binary, started again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == load.Command {
		if err := load.Main(os.Args[2:], os.Stdin, os.Stdout); err != nil {
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
	chosen := []Case{{Name: caseGatewayPath, Variants: []Variant{limit(), plain(), pelagoSafe()}}}
	samples, err := bench{prefix: testPrefix(), rounds: 2, slice: 50 * time.Millisecond, kubeProxy: true}.run(t.Context(), chosen)
	if err != nil {
		t.Fatal(err)
	}
	plausible := map[string][2]float64{
		metricCPU: {100, 1e6}, metricUDP: {500, 1e8}, metricTCP: {0.001, 1000},
		metricRRp50: {1, 1e5}, metricRRp99: {1, 1e6}, metricCRR: {5, 1e6}, metricCRRp50: {1, 1e6},
	}
	for _, s := range samples {
		for _, m := range metrics {
			x, ok := s.Rounds[1][m.name]
			if r := plausible[m.name]; !ok || x < r[0] || x > r[1] {
				t.Errorf("%s %s = %g (measured: %t), want between %g and %g", s.Variant, m.name, x, ok, r[0], r[1])
			}
		}
	}
	if a, b := samples[0].Rounds[1][metricCPU], samples[1].Rounds[1][metricCPU]; a >= b {
		t.Errorf("a packet over one veth costs %.0f ns, over the whole path %.0f ns", a, b)
	}
	// Datagrams from A to B pass these programs, in this order, and no other.
	var labels []string
	for label, ns := range samples[2].Programs[1] {
		if ns <= 0 || ns > 1e5 {
			t.Errorf("program %q takes %g ns", label, ns)
		}
		labels = append(labels, label)
	}
	slices.Sort(labels)
	want := []string{allPrograms, "edge_in@nb", "edge_out@na", "uplink_in@ga1", "uplink_in@gb1", "uplink_in@nb", "uplink_out@ga1", "uplink_out@gb1", "uplink_out@na"}
	if diff := cmp.Diff(want, labels); diff != "" {
		t.Errorf("programs on the path, -want +got\n%s", diff)
	}
}

// A variant over which nothing passes is reported with its name, gives no figures, and does not end
// the run.
func TestBrokenVariantIsReported(t *testing.T) {
	netns.Require(t)
	broken := Variant{Name: "broken", Setup: func(*Topology, Scale) (setup, error) { return setup{}, nil }, Target: plainB}
	b := bench{prefix: testPrefix(), rounds: 1, slice: 20 * time.Millisecond}
	samples, err := b.run(t.Context(), []Case{{Name: caseGatewayPath, Variants: []Variant{broken, limit()}}})
	if err == nil || !strings.Contains(err.Error(), "variant broken: no traffic passes") {
		t.Errorf("error = %v; want one that names the variant", err)
	}
	if len(samples) != 1 || samples[0].Variant != "limit" || len(samples[0].Rounds[0]) != len(metrics) {
		t.Errorf("beside the broken variant were measured %v", samples)
	}
}

func TestInterruptRemovesEverything(t *testing.T) {
	netns.Require(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := bench{prefix: testPrefix(), rounds: 100, slice: time.Hour}.run(ctx, []Case{{Name: caseGatewayPath, Variants: []Variant{limit()}}})
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		t.Errorf("run ended before the interruption: %v", err)
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
		{[]string{"-cases", "none"}, "unknown"},
		{[]string{"-rounds", "0"}, "at least 1"},
		{[]string{"-slice", "1ms"}, "at least 10ms"},
		{[]string{load.Command}, "one argument"},
		{[]string{load.Command, "x"}, "number of the processor"},
	} {
		if err := run(c.args, &strings.Builder{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("run(%q) = %v, want %q", c.args, err, c.want)
		}
	}
}
