package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/bench/mixed"
	"github.com/pelago-net/pelago/test/resultfile"
)

// TestRun: every binding of the mix can be decided, and all rows are there.
func TestRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.json")
	if err := run([]string{"-reps", "1", "-bindings", fmt.Sprint(3 * mixed.Combinations * running), "-out", file}, io.Discard); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var report resultfile.Report
	if err := json.Unmarshal(raw, &report); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range report.Rows {
		if r.Median <= 0 {
			t.Errorf("%s %s %s is %v", r.Case, r.Variant, r.Metric, r.Median)
		}
		got = append(got, r.Case+" "+r.Variant+" "+r.Metric)
	}
	var want []string
	for _, kase := range []string{"pure-100", "pure-1000"} {
		for _, variant := range []string{"one-core", "all-cores"} {
			for _, metric := range []string{"decisions_per_s", "decision_ms_p99", "decision_cpu_us"} {
				want = append(want, kase+" "+variant+" "+metric)
			}
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}
