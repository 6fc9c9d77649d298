package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const reportHead = `<?xml version="1.0" encoding="UTF-8"?><testsuites tests="3"><testsuite name="Conformance Suite">`

func report(t *testing.T, cases string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "junit.xml")
	if err := os.WriteFile(file, []byte(reportHead+cases+`</testsuite></testsuites>`), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestReadJUnit(t *testing.T) {
	got, err := readJUnit(report(t, `
		<testcase name="[BeforeSuite]" status="passed" time="0.1"></testcase>
		<testcase name="[It]  A DNS SRV query [Optional, DNS]" status="skipped" time="0"><skipped message="two"></skipped></testcase>
		<testcase name="[It]  An IP should be allocated [Required]" status="failed" time="20.5"><failure message="not&#xA;empty"></failure></testcase>
		<testcase name="[ReportAfterSuite] MCS conformance report" status="passed" time="0"></testcase>`))
	want := []spec{
		{description: "An IP should be allocated", required: true, status: "failed", seconds: 20.5, message: "not empty"},
		{description: "A DNS SRV query", status: "skipped"},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(spec{})); diff != "" || err != nil {
		t.Errorf("specs (-want +got):\n%s%v", diff, err)
	}
	if _, err := readJUnit(report(t, `<testcase name="[BeforeSuite]" status="failed"><failure message="no such context"></failure></testcase>`)); err == nil || !strings.Contains(err.Error(), "[BeforeSuite] failed: no such context") {
		t.Errorf("a failed set-up: %v", err)
	}
	if _, err := readJUnit(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("no report: no error")
	}
}

func TestVerdict(t *testing.T) {
	specs := func(change func([]spec) []spec) result {
		all := make([]spec, minSpecs)
		for i := range all {
			all[i] = spec{description: string(rune('a' + i)), status: "passed", seconds: 4}
		}
		return result{specs: change(all)}
	}
	status := func(i int, s string) func([]spec) []spec {
		return func(all []spec) []spec { all[i].status = s; return all }
	}
	b := []excluded{{description: "b"}}
	tests := map[string]struct {
		result
		exclusions []excluded
		focused    bool
		want       string
	}{
		"all pass":                     {result: specs(status(0, "passed"))},
		"one fails":                    {result: specs(status(2, "failed")), want: `failed: "c"`},
		"an excluded one fails":        {result: specs(status(1, "failed")), exclusions: b},
		"an excluded one passes":       {result: specs(status(0, "passed")), exclusions: b, want: `"b" passed: remove it`},
		"skipped, as with one cluster": {result: specs(status(2, "skipped")), want: `skipped: "c"`},
		"skipped by -focus":            {result: specs(status(2, "skipped")), focused: true},
		"too few":                      {result: specs(func(all []spec) []spec { return all[:19] }), want: "19 specs, at least 28"},
		"a dry run": {result: specs(func(all []spec) []spec {
			for i := range all {
				all[i].seconds = 0
			}
			return all
		}), want: "they have not run"},
	}
	for what, tt := range tests {
		err := tt.verdict(tt.exclusions, tt.focused)
		if text := ""; err != nil {
			if text = err.Error(); tt.want == "" || !strings.Contains(text, tt.want) {
				t.Errorf("%s: %v, want %q", what, err, tt.want)
			}
		} else if tt.want != "" {
			t.Errorf("%s: no error, want %q", what, tt.want)
		}
	}
}

func TestPrintTable(t *testing.T) {
	var out strings.Builder
	one := []spec{{description: "An IP", required: true, status: "passed"}, {description: "A name", status: "passed"}}
	printTable(&out, []result{{mode: "mcs", contexts: "g1,g2", specs: one}, {mode: "mcs", contexts: "g2,g1", specs: one[:1]}})
	want := "LEVEL     MCS G1,G2  MCS G2,G1  SPEC\nrequired  passed     passed     An IP\noptional  passed     -          A name\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// Without a checkout and without the module the error names both ways to have the suite.
func TestNoSuite(t *testing.T) {
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOFLAGS", "")
	for dir, want := range map[string]string{"": "get the Go module", t.TempDir(): "the suite is not in"} {
		err := compile(t.Context(), dir, "v0.5.2", filepath.Join(t.TempDir(), "suite.test"))
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "SUITE=") {
			t.Errorf("suite in %q: %v, want %q and the remedy", dir, err, want)
		}
	}
}
