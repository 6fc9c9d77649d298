package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pelago-net/pelago/test/resultfile"
	"github.com/pelago-net/pelago/test/vm/job"
)

// result gathers what the guest writes.
type result struct {
	kernel  string
	running string // name of the job, "" between them
	tests   []outcome
	failed  []string // in words
	ended   map[string]bool
}

// outcome is one test.
type outcome struct {
	suite, test string
	passed      bool
	seconds     float64
}

var verdict = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(([0-9.]+)s\)$`)

// line takes one line of the guest's output and returns what to show for it.
func (r *result) line(text string) string {
	if e, ok := job.Parse(text); ok {
		return r.event(e)
	}
	if m := verdict.FindStringSubmatch(text); m != nil {
		seconds, _ := strconv.ParseFloat(m[3], 64) // digits and a point
		r.tests = append(r.tests, outcome{r.running, m[2], m[1] == "PASS", seconds})
		if m[1] != "PASS" { // none of ours skips
			r.failed = append(r.failed, fmt.Sprintf("%s: %s: %s", r.running, m[2], strings.ToLower(m[1])))
		}
	}
	return text
}

func (r *result) event(e job.Event) string {
	switch e.Kind {
	case job.Up:
		r.kernel = e.Name
		return "Linux " + e.Name + " is up"
	case job.Begin:
		r.running = e.Name
		return "suite " + e.Name
	case job.End:
		r.running = ""
		if r.ended == nil {
			r.ended = map[string]bool{}
		}
		r.ended[e.Name] = true
		if e.Status != 0 {
			r.failed = append(r.failed, fmt.Sprintf("%s: exit status %d", e.Name, e.Status))
		}
		return fmt.Sprintf("suite %s ended with status %d after %.0f s", e.Name, e.Status, e.Took.Seconds())
	}
	r.failed = append(r.failed, fmt.Sprintf("the guest: %s: %s", e.Name, e.Text))
	return fmt.Sprintf("the guest failed: %s: %s", e.Name, e.Text)
}

// err reports what failed of the suites that were to run.
func (r *result) err(wanted []suite) error {
	failed := slices.Clone(r.failed)
	for _, s := range wanted {
		if !r.ended[s.name] {
			failed = append(failed, s.name+": did not come to its end")
		}
	}
	if len(r.tests) == 0 {
		failed = append(failed, "no test ran: does -run name one?")
	}
	if len(failed) > 0 {
		return fmt.Errorf("%d failures:\n  %s", len(failed), strings.Join(failed, "\n  "))
	}
	return nil
}

// report gives of each test how long it took and whether it passed. The kernel and the processors
// are the guest's.
func (r *result) report(cpus int) (resultfile.Report, error) {
	out, err := resultfile.New("vm", []resultfile.Row{})
	if err != nil {
		return out, err
	}
	out.Kernel, out.CPUs = r.kernel, cpus
	tests := slices.Clone(r.tests)
	slices.SortStableFunc(tests, func(a, b outcome) int {
		return cmp.Or(cmp.Compare(a.suite, b.suite), cmp.Compare(a.test, b.test))
	})
	for _, t := range tests {
		passed := 0.0
		if t.passed {
			passed = 1
		}
		add := func(metric, unit string, v float64) {
			out.Rows = append(out.Rows, resultfile.Row{Case: t.test, Variant: t.suite, Metric: metric, Unit: unit, N: 1, Median: v, Min: v, Max: v})
		}
		add("passed", "1", passed)
		add("duration_s", "s", t.seconds)
	}
	return out, nil
}
