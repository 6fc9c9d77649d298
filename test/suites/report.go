package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// result is a suite that has run.
type result struct {
	suite
	took    time.Duration
	err     error // it failed
	outcome outcome
}

// slowestShown is how many tests of a suite the report names.
const slowestShown = 5

// report writes what took the time, what failed and, last, what failed only once.
func report(w io.Writer, results []result, took time.Duration, flakyDir string) {
	fmt.Fprintln(w, "\n=== What took the time")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "suite\twall time\ttests\tslowest")
	tests, failures := 0, 0
	for _, r := range results {
		tests += len(r.outcome.order)
		row := fmt.Sprintf("%s\t%s\t%d\t", r.name, r.took.Round(time.Second), len(r.outcome.order))
		for _, id := range r.outcome.slowest(slowestShown) {
			fmt.Fprintf(t, "%s%.1fs %s\n", row, r.outcome.tests[id].took.Seconds(), id)
			row = "\t\t\t"
		}
		if len(r.outcome.order) == 0 {
			fmt.Fprintln(t, row)
		}
	}
	_ = t.Flush() // as with every other line, a screen that is gone is no failure of the tests

	var flaky []string
	fmt.Fprintln(w, "\n=== What was run")
	for _, r := range results {
		once, failed := r.outcome.failures()
		for _, id := range once {
			flaky = append(flaky, fmt.Sprintf("FLAKY: %s: failed, passed when it was run once more; its first log is %s", id, filepath.Join(flakyDir, r.logName(id))))
		}
		for _, id := range failed {
			fmt.Fprintf(w, "--- FAIL: %s (%.2fs)\n", id, r.outcome.tests[id].took.Seconds())
		}
		failures += len(failed)
		state := "ok  "
		if r.err != nil {
			state = "FAIL"
			if len(failed) == 0 {
				failures++
				fmt.Fprintf(w, "--- FAIL: %s: %v\n", r.name, r.err)
			}
		}
		fmt.Fprintf(w, "%s\t%s\t%.1fs\t%s\n", state, r.name, r.took.Seconds(), r.about)
	}
	fmt.Fprintf(w, "\nDONE %d tests", tests)
	switch {
	case failures == 1:
		fmt.Fprint(w, ", 1 failure")
	case failures > 1:
		fmt.Fprintf(w, ", %d failures", failures)
	}
	if len(flaky) > 0 {
		fmt.Fprintf(w, ", %d flaky", len(flaky))
	}
	fmt.Fprintf(w, " in %.1fs\n", took.Seconds())
	for _, line := range flaky {
		fmt.Fprintln(w, line)
	}
	for _, r := range results {
		if len(r.outcome.leftOut) > 0 {
			fmt.Fprintln(w, leftOut(r.outcome.leftOut))
		}
	}
}

// leftOut is a line with what was left out, and the commands that run it.
func leftOut(messages map[string]int) string {
	total := 0
	var parts []string
	for _, message := range slices.Sorted(maps.Keys(messages)) {
		what, command, _ := strings.Cut(message, ": run ")
		total += messages[message]
		parts = append(parts, fmt.Sprintf("%d need %s (%s)", messages[message], what, command))
	}
	return fmt.Sprintf("LEFT OUT: %d tests: %s", total, strings.Join(parts, ", "))
}

// logName is the file that keeps the first log of a flaky test.
func (r result) logName(id testID) string {
	name := strings.NewReplacer("/", "_", " ", "_").Replace(id.name)
	return fmt.Sprintf("%s-%s.log", r.name, name)
}

// keepLogs writes the first logs of flaky tests into a directory.
func (r result) keepLogs(dir string) error {
	flaky, _ := r.outcome.failures()
	for _, id := range flaky {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("keep the log of %s: %w", id, err)
		}
		if err := os.WriteFile(filepath.Join(dir, r.logName(id)), []byte(r.outcome.firstLog[id.root()].String()), 0o644); err != nil {
			return fmt.Errorf("keep the log of %s: %w", id, err)
		}
	}
	return nil
}
