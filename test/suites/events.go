package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/need"
)

// event is a line of `go test -json`.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64
}

// testID names a test or a subtest of a package.
type testID struct{ pkg, name string }

// String is the package below the module and the test, as one writes them in `go test ./PACKAGE
// -run TEST`.
func (id testID) String() string { return strings.TrimPrefix(id.pkg, module) + " " + id.name }

// root is the top-level test.
func (id testID) root() testID {
	name, _, _ := strings.Cut(id.name, "/")
	return testID{id.pkg, name}
}

// attempts is what became of a test each time it ran, in the order of the runs.
type attempts struct {
	results []string // pass, fail or skip
	took    time.Duration
}

// outcome is what the events of a suite's runs tell.
type outcome struct {
	order []testID // as they began
	tests map[testID]*attempts
	ended map[string]bool // packages with a result
	// leftOut counts the tests that package need left out, by its message.
	leftOut map[string]int
	// firstLog is the output of top-level tests in their first run, with that of their subtests.
	firstLog map[testID]*strings.Builder
}

// readOutcome reads the events of all runs of a suite.
func readOutcome(r io.Reader) (outcome, error) {
	o := outcome{tests: map[testID]*attempts{}, ended: map[string]bool{}, firstLog: map[testID]*strings.Builder{},
		leftOut: map[string]int{}}
	for d := json.NewDecoder(r); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return o, nil
		} else if err != nil {
			return o, fmt.Errorf("read the events of go test: %w", err)
		}
		if e.Test == "" {
			o.ended[e.Package] = o.ended[e.Package] || slices.Contains([]string{"pass", "fail", "skip"}, e.Action)
			continue
		}
		id := testID{e.Package, e.Test}
		if o.tests[id] == nil {
			o.tests[id] = &attempts{}
			o.order = append(o.order, id)
		}
		switch e.Action {
		case "output":
			o.log(id.root(), e.Output)
			if _, message, ok := strings.Cut(e.Output, need.LeftOut); ok {
				o.leftOut[strings.TrimSpace(message)]++
			}
		case "pass", "fail", "skip":
			a := o.tests[id]
			a.results = append(a.results, e.Action)
			a.took = max(a.took, time.Duration(e.Elapsed*float64(time.Second)))
		}
	}
}

// log keeps output of a top-level test's first run.
func (o *outcome) log(root testID, output string) {
	if a := o.tests[root]; a != nil && len(a.results) > 0 {
		return
	}
	if o.firstLog[root] == nil {
		o.firstLog[root] = &strings.Builder{}
	}
	o.firstLog[root].WriteString(output)
}

// unfinished is an error if one of the packages has no result. The exit status does not show that:
// `go tool` returns 0 when a signal ends the tool.
func (o *outcome) unfinished(packages []string) error {
	if i := slices.IndexFunc(packages, func(p string) bool { return !o.ended[p] }); i >= 0 {
		return fmt.Errorf("package %s has no result: the run was interrupted", packages[i])
	}
	return nil
}

// skips is an error if a test was skipped that package need did not leave out, or, unless some may
// be left out, any test.
func (o *outcome) skips(mayLeaveOut bool) error {
	var skipped []string
	for _, id := range o.order {
		if r := o.tests[id].results; len(r) > 0 && r[len(r)-1] == "skip" {
			skipped = append(skipped, id.String())
		}
	}
	allowed := 0
	for _, n := range o.leftOut {
		allowed += n
	}
	if len(skipped) == 0 || mayLeaveOut && len(skipped) <= allowed {
		return nil
	}
	return fmt.Errorf("%d tests were skipped, %d of them by test/need, which alone may do so and only in `make check`: %s",
		len(skipped), allowed, strings.Join(skipped, ", "))
}

// parents yields the tests that a subtest belongs to.
func (id testID) parents() (out []testID) {
	for i := strings.LastIndex(id.name, "/"); i > 0; i = strings.LastIndex(id.name[:i], "/") {
		out = append(out, testID{id.pkg, id.name[:i]})
	}
	return out
}

// leaves are the tests without those that are parents of another one of them.
func leaves(tests []testID) []testID {
	parents := map[testID]bool{}
	for _, id := range tests {
		for _, p := range id.parents() {
			parents[p] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(tests), func(id testID) bool { return parents[id] })
}

// slowest are the n tests without subtests that took longest.
func (o *outcome) slowest(n int) []testID {
	all := leaves(o.order)
	slices.SortStableFunc(all, func(a, b testID) int { return cmp.Compare(o.tests[b].took, o.tests[a].took) })
	return all[:min(n, len(all))]
}

// failures are the tests that failed in their first run, and not only because a subtest did: those
// whose last run passed, and the others.
func (o *outcome) failures() (flaky, failed []testID) {
	var first []testID
	for _, id := range o.order {
		if r := o.tests[id].results; len(r) > 0 && r[0] == "fail" {
			first = append(first, id)
		}
	}
	for _, id := range leaves(first) {
		if r := o.tests[id].results; r[len(r)-1] == "pass" {
			flaky = append(flaky, id)
		} else {
			failed = append(failed, id)
		}
	}
	return flaky, failed
}
