package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/resultfile"
	"github.com/pelago-net/pelago/test/vm/job"
)

func TestResult(t *testing.T) {
	var r result
	for _, line := range []string{
		job.Event{Kind: job.Up, Name: "6.1"}.String(),
		job.Event{Kind: job.Begin, Name: "a"}.String(),
		"=== RUN   TestOne", "--- PASS: TestOne (1.50s)", "    --- FAIL: TestTwo/part (0.10s)", "--- FAIL: TestTwo (0.25s)",
		"--- SKIP: TestThree (0.00s)", "FAIL",
		job.Event{Kind: job.End, Name: "a", Status: 1, Took: time.Second}.String(),
		job.Event{Kind: job.Begin, Name: "b"}.String(),
		job.Event{Kind: job.Fail, Name: "guest", Text: "broken"}.String(),
	} {
		r.line(line)
	}
	want := []outcome{
		{"a", "TestOne", true, 1.5}, {"a", "TestTwo/part", false, 0.1}, {"a", "TestTwo", false, 0.25}, {"a", "TestThree", false, 0},
	}
	if diff := cmp.Diff(want, r.tests, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Errorf("tests -want +got\n%s", diff)
	}
	err := r.err([]suite{{name: "a"}, {name: "b"}})
	for _, said := range []string{"a: TestTwo/part: fail", "a: TestThree: skip", "a: exit status 1", "b: did not come to its end", "the guest: guest: broken"} {
		if err == nil || !strings.Contains(err.Error(), said) {
			t.Errorf("error %v: want %q in it", err, said)
		}
	}
	report, err := r.report(2)
	if err != nil {
		t.Fatal(err)
	}
	rows := report.Rows
	if r.kernel != "6.1" || len(rows) != 8 {
		t.Errorf("kernel %s, %d rows", r.kernel, len(rows))
	}
	if diff := cmp.Diff(resultfile.Row{Case: "TestOne", Variant: "a", Metric: "duration_s", Unit: "s", N: 1, Median: 1.5, Min: 1.5, Max: 1.5}, rows[1]); diff != "" {
		t.Errorf("row -want +got\n%s", diff)
	}
}

func TestNothingRanIsAFailure(t *testing.T) {
	r := result{ended: map[string]bool{"a": true}}
	if err := r.err([]suite{{name: "a"}}); err == nil || !strings.Contains(err.Error(), "no test ran") {
		t.Errorf("error %v", err)
	}
	r.tests = []outcome{{"a", "TestOne", true, 1}}
	if err := r.err([]suite{{name: "a"}}); err != nil {
		t.Error(err)
	}
}
