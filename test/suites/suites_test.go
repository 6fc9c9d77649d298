package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/names"
)

// twoRuns are the events of a first run, in which two of three parts of a test and another test
// fail, and of the runs once more.
const twoRuns = `
{"Action":"start","Package":"github.com/pelago-net/pelago/test/e2e"}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo"}
{"Action":"output","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo","Output":"clusters are up\n"}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway"}
{"Action":"output","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway","Output":"3 datagrams lost\n"}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway","Elapsed":4.5}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_daemon"}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_daemon","Elapsed":2}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/names"}
{"Action":"pass","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/names","Elapsed":9}
{"Action":"output","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo","Output":"state of the clusters\n"}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo","Elapsed":20}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestOther"}
{"Action":"pass","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestOther","Elapsed":0.1}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Elapsed":21}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo"}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway"}
{"Action":"output","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway","Output":"all is well\n"}
{"Action":"pass","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_gateway","Elapsed":3}
{"Action":"pass","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo","Elapsed":10}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo"}
{"Action":"run","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_daemon"}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo/a_daemon","Elapsed":2}
{"Action":"fail","Package":"github.com/pelago-net/pelago/test/e2e","Test":"TestTwo","Elapsed":10}
`

func read(t *testing.T, events string) outcome {
	t.Helper()
	o, err := readOutcome(strings.NewReader(events))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func idStrings(ids []testID) (out []string) {
	for _, id := range ids {
		out = append(out, id.String())
	}
	return out
}

func TestFailures(t *testing.T) {
	o := read(t, twoRuns)
	flaky, failed := o.failures()
	if diff := cmp.Diff([]string{"test/e2e TestTwo/a_gateway"}, idStrings(flaky)); diff != "" {
		t.Errorf("flaky -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"test/e2e TestTwo/a_daemon"}, idStrings(failed)); diff != "" {
		t.Errorf("failed -want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"test/e2e TestTwo/names", "test/e2e TestTwo/a_gateway"}, idStrings(o.slowest(2))); diff != "" {
		t.Errorf("slowest -want +got:\n%s", diff)
	}
}

// A test whose own code fails, in no subtest, and the clusters that a run once more cannot bring
// up.
func TestFailuresOutsideOfSubtests(t *testing.T) {
	const p = `"Package":"p","Test":`
	for _, tt := range []struct {
		name, events  string
		flaky, failed []string
	}{
		{"bring-up fails, then passes", `{"Action":"fail",` + p + `"T"}{"Action":"pass",` + p + `"T/a"}{"Action":"pass",` + p + `"T"}`, []string{"p T"}, nil},
		{"part fails, then bring-up", `{"Action":"fail",` + p + `"T/a"}{"Action":"fail",` + p + `"T"}{"Action":"fail",` + p + `"T"}`, nil, []string{"p T/a"}},
		{"not run once more", `{"Action":"fail",` + p + `"T/a"}{"Action":"fail",` + p + `"T"}`, nil, []string{"p T/a"}},
		{"all pass", `{"Action":"pass",` + p + `"T/a"}{"Action":"pass",` + p + `"T"}`, nil, nil},
		// the suite fails by its exit status
		{"ended by a panic", `{"Action":"run",` + p + `"T/a"}`, nil, nil},
	} {
		o := read(t, tt.events)
		flaky, failed := o.failures()
		if !slices.Equal(idStrings(flaky), tt.flaky) || !slices.Equal(idStrings(failed), tt.failed) {
			t.Errorf("%s: flaky %q, failed %q; want %q, %q", tt.name, flaky, failed, tt.flaky, tt.failed)
		}
	}
}

// A run that was killed has not passed, whatever its exit status.
func TestUnfinished(t *testing.T) {
	o := read(t, `{"Action":"start","Package":"a"}{"Action":"pass","Package":"a","Test":"T"}{"Action":"pass","Package":"a"}{"Action":"skip","Package":"b"}{"Action":"start","Package":"c"}`)
	if err := o.unfinished([]string{"a", "b"}); err != nil {
		t.Error(err)
	}
	if err := o.unfinished([]string{"a", "b", "c"}); err == nil || !strings.Contains(err.Error(), "package c") {
		t.Errorf("package c has begun only: %v", err)
	}
}

func TestReport(t *testing.T) {
	o := read(t, twoRuns)
	events := strings.ReplaceAll(twoRuns, `"fail"`, `"pass"`)
	results := []result{
		{suite: suite{name: "lint", about: "what linters check"}, took: 61 * time.Second, err: errors.New("exit status 2")},
		{suite: suite{name: "netns", about: "namespaces"}, took: 9 * time.Second, outcome: read(t, events)},
		{suite: suite{name: "e2e", about: "two clusters"}, took: 400 * time.Second, err: errors.New("exit status 1"), outcome: o},
	}
	const want = `
=== What took the time
suite  wall time  tests  slowest
lint   1m1s       0      
netns  9s         5      9.0s test/e2e TestTwo/names
                         4.5s test/e2e TestTwo/a_gateway
                         2.0s test/e2e TestTwo/a_daemon
                         0.1s test/e2e TestOther
e2e    6m40s      5      9.0s test/e2e TestTwo/names
                         4.5s test/e2e TestTwo/a_gateway
                         2.0s test/e2e TestTwo/a_daemon
                         0.1s test/e2e TestOther

=== What was run
--- FAIL: lint: exit status 2
FAIL	lint	61.0s	what linters check
ok  	netns	9.0s	namespaces
--- FAIL: test/e2e TestTwo/a_daemon (2.00s)
FAIL	e2e	400.0s	two clusters

DONE 10 tests, 2 failures, 1 flaky in 470.0s
FLAKY: test/e2e TestTwo/a_gateway: failed, passed when it was run once more; its first log is kept/e2e-TestTwo_a_gateway.log
`
	var got bytes.Buffer
	report(&got, results, 470*time.Second, "kept")
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The log that is kept is that of the first run: of the part, of the test around it, and nothing of
// the run once more.
func TestKeepLogs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "flaky")
	if err := (result{suite: suite{name: "e2e"}, outcome: read(t, twoRuns)}).keepLogs(dir); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "e2e-TestTwo_a_gateway.log"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "clusters are up\n3 datagrams lost\nstate of the clusters\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	if err := (result{suite: suite{name: "race"}, outcome: read(t, "")}).keepLogs(filepath.Join(dir, "none")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("without flaky tests: %v, want no directory", err)
	}
}

// Only package need may skip a test, and only in `make check`.
func TestSkips(t *testing.T) {
	const p = `"Package":"p","Test":`
	left := `{"Action":"run",` + p + `"T"}{"Action":"output",` + p + `"T","Output":"    a_test.go:9: left out: needs root on Linux: run ` + "`make test`" + `\n"}{"Action":"skip",` + p + `"T"}`
	other := `{"Action":"run",` + p + `"U"}{"Action":"output",` + p + `"U","Output":"    a_test.go:9: not today\n"}{"Action":"skip",` + p + `"U"}`
	for _, tt := range []struct {
		name, events string
		check        bool
		want         string
	}{
		{"left out in make check", left, true, ""},
		{"left out elsewhere", left, false, "p T"},
		{"skipped in make check", left + other, true, "p U"},
		{"skipped elsewhere", other, false, "p U"},
		{"nothing", "", false, ""},
	} {
		o := read(t, tt.events)
		err := o.skips(tt.check)
		if (err != nil) != (tt.want != "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	o := read(t, left)
	if got, want := leftOut(o.leftOut), "LEFT OUT: 1 tests: 1 need root on Linux (`make test`)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Each test is in one suite of `make test` or `make test-clusters`, or in those before a release;
// each name chooses a test; and what is run once more holds no packet or race tests.
func TestEachTestIsRun(t *testing.T) {
	t.Chdir("../..")
	runs := map[string][]string{} // by package.Test
	named := map[string]bool{}
	for _, s := range suites {
		if s.target != "" || slices.Contains(s.tiers, tierCheck) {
			continue
		}
		if s.rerun && s.race {
			t.Errorf("suite %s repeats tests with the race detector", s.name)
		}
		packages, err := s.expand()
		if err != nil {
			t.Fatal(err)
		}
		chosen := map[string]bool{}
		for _, p := range packages {
			p = strings.TrimPrefix(p, module)
			if s.rerun && p == "test/packet" {
				t.Errorf("suite %s repeats packet tests", s.name)
			}
			tests, err := names.Read(p)
			if err != nil {
				continue // a package without tests
			}
			for _, test := range tests.Tests() {
				named[test] = true
				if slices.Contains(s.except, test) || s.only != nil && !slices.Contains(s.only, test) {
					continue
				}
				chosen[test] = true
				runs[p+"."+test] = append(runs[p+"."+test], s.name)
			}
		}
		for _, test := range s.only {
			if !chosen[test] {
				t.Errorf("suite %s has no %s", s.name, test)
			}
		}
	}
	for _, s := range suites {
		for _, test := range s.except {
			if !named[test] {
				t.Errorf("suite %s leaves out %s, which does not exist", s.name, test)
			}
		}
	}
	all, err := list([]string{"./..."})
	if err != nil {
		t.Fatal(err)
	}
	again := []string{"variants", "model", "wires", "race"} // the same tests with other arguments, or flags of the compiler
	for _, p := range all {
		p = strings.TrimPrefix(p, module)
		tests, err := names.Read(p)
		if err != nil {
			continue
		}
		for _, test := range tests.Tests() {
			in := slices.DeleteFunc(runs[p+"."+test], func(suite string) bool { return slices.Contains(again, suite) })
			if len(in) != 1 {
				t.Errorf("%s.%s is in the suites %q, want one", p, test, in)
			}
		}
	}
}

func suiteNames(chosen []suite) (names []string) {
	for _, s := range chosen {
		names = append(names, s.name)
	}
	return names
}

func TestChoose(t *testing.T) {
	for tier, want := range map[string][]string{
		tierCheck:    {"generated", "lint", "pure"},
		tierTest:     {"verify", "lint", "unit", "walk", "netns"},
		tierClusters: {"programs", "race", "lab", "e2e", "datapaths", "smoke"},
		tierFull:     {"lab-rare", "e2e-rare", "cni", "versions", "charts", "release", "variants", "model", "wires"},
	} {
		got, err := choose(nil, tier)
		if err != nil || !slices.Equal(suiteNames(got), want) {
			t.Errorf("%s runs %q, %v; want %q", tier, suiteNames(got), err, want)
		}
	}
	named, err := choose([]string{"wires", "race"}, tierTest)
	if err != nil || !slices.Equal(suiteNames(named), []string{"race", "wires"}) {
		t.Errorf("%q, %v", suiteNames(named), err)
	}
	if _, err := choose([]string{"all"}, tierTest); err == nil || !strings.Contains(err.Error(), `"all"`) {
		t.Errorf("an unknown suite: %v", err)
	}
	if _, err := choose(nil, "all"); err == nil || !strings.Contains(err.Error(), `"all"`) {
		t.Errorf("an unknown tier: %v", err)
	}
}

// The background starts when generated code is checked; without a foreground its suites run like
// any other.
func TestOrder(t *testing.T) {
	for _, tt := range []struct {
		names []string
		root  bool
		want  [][]string
	}{
		{nil, true, [][]string{{"verify"}, {"unit", "walk", "netns"}, {"lint"}}},
		{[]string{"generated", "lint", "pure"}, false, [][]string{{"generated"}, {"lint", "pure"}, nil}},
		{[]string{"race", "unit"}, true, [][]string{nil, {"unit", "race"}, nil}},
		{[]string{"lint"}, true, [][]string{nil, {"lint"}, nil}},
	} {
		chosen, err := choose(tt.names, tierTest)
		if err != nil {
			t.Fatal(err)
		}
		first, foreground, background := order(chosen, tt.root)
		got := [][]string{suiteNames(first), suiteNames(foreground), suiteNames(background)}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q -want +got:\n%s", tt.names, diff)
		}
	}
}
