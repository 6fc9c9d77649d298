package main

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/need"
)

// Sizes and rates are positive numbers.
func TestNumbers(t *testing.T) {
	if got, err := numbers("nodes", "10,1000"); err != nil || len(got) != 2 || got[1] != 1000 {
		t.Errorf("%v, %v", got, err)
	}
	for _, text := range []string{"", "0", "-1", "ten", "10,"} {
		if got, err := numbers("nodes", text); err == nil {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// The objects of all sizes fit the ranges that they are in, and each has a name of its own.
func TestObjects(t *testing.T) {
	for _, nodes := range []int{1, 10, 5000} {
		c := clusterOf(nodes)
		if got := c.clusters * gatewaysPerCluster; nodes == 5000 && got != 1016 {
			t.Errorf("%d gateways of other clusters, want 1016", got)
		}
		names := map[string]bool{}
		for _, o := range c.objects(true) {
			name := filepath.Join(o.GetNamespace(), o.GetName())
			kind := fmt.Sprintf("%T ", o)
			if names[kind+name] {
				t.Fatalf("%d nodes: two objects of kind %s are called %s", nodes, kind, name)
			}
			names[kind+name] = true
		}
	}
}

// The smallest cluster is measured from the start of the daemon to the last figure.
func TestRun(t *testing.T) {
	need.Root(t)
	need.Kubernetes(t)
	const shortest = 3 * time.Second
	rows, err := measure(t.Context(), options{bin: "../../../bin", dir: t.TempDir(), period: shortest, rates: []float64{5}}, clusterOf(1))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, r := range rows {
		got[r.Metric] = r.Median
	}
	for _, metric := range []string{"start_s", "start_cpu_s", "cores_0_per_s", "rss_5_per_s", "cores_5_per_s", "change_to_map_5_per_s"} {
		if got[metric] <= 0 {
			t.Errorf("%s: %v", metric, got[metric])
		}
	}
}
