package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const report = `[{"SpecReports": [
 {"LeafNodeType": "SynchronizedBeforeSuite", "State": "passed"},
 {"LeafNodeType": "It", "LeafNodeText": "moves", "State": "%s", "ContainerHierarchyTexts": ["failover", "of a cluster"], "RunTime": 2000000000,
  "LeafNodeLocation": {"FileName": "github.com/karmada-io/karmada/test/e2e/suites/base/failover_test.go"}, "Failure": {"Message": "too\nlate"}},
 {"LeafNodeType": "It", "LeafNodeText": "joins", "State": "%s", "LeafNodeLocation": {"FileName": "/x/join_test.go"}}]}]`

func TestVerdict(t *testing.T) {
	const table = `
- {area: failover, specs: of a cluster, outcome: %s, reason: it waits}
- {area: join, outcome: not run, reason: needs Docker}
`
	for name, c := range map[string]struct {
		table, moves, joins string
		focused             bool
		want                string // outcomes
		wantErr             string
	}{
		"as expected":             {fmt.Sprintf(table, different), "failed", "skipped", false, "different, not run", ""},
		"passed though in table":  {fmt.Sprintf(table, different), "passed", "skipped", false, "passed, not run", `passed: failover: "failover of a cluster moves": remove it`},
		"failed without an entry": {"- {area: join, outcome: not run, reason: needs Docker}", "failed", "skipped", false, "failed, not run", `"failover of a cluster moves": too late`},
		"timed out is failed":     {"[]", "timedout", "passed", false, "failed, passed", "failed: failover"},
		"skipped for no reason":   {"[]", "passed", "skipped", false, "passed, not run", "not run: join"},
		"skipped by a focus":      {"[]", "passed", "skipped", true, "passed, not run", ""},
		"an entry without a spec": {"- {area: mcs, outcome: different, reason: no}", "passed", "passed", false, "passed, passed", "area mcs has no spec"},
	} {
		t.Run(name, func(t *testing.T) {
			entries, err := readTable([]byte(c.table))
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "report.json")
			if err := os.WriteFile(file, fmt.Appendf(nil, report, c.moves, c.joins), 0o600); err != nil {
				t.Fatal(err)
			}
			specs, err := readReport(file, entries)
			if err != nil {
				t.Fatal(err)
			}
			var outcomes []string
			for _, s := range specs {
				outcomes = append(outcomes, s.outcome)
			}
			if diff := cmp.Diff(c.want, strings.Join(outcomes, ", ")); diff != "" {
				t.Error(diff)
			}
			err = verdict(specs, entries, c.focused)
			if (err == nil) != (c.wantErr == "") || err != nil && !strings.Contains(err.Error(), c.wantErr) {
				t.Errorf("error %v, want %q", err, c.wantErr)
			}
		})
	}
}

// A set-up that failed is no result.
func TestSetUpFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	text := strings.Replace(fmt.Sprintf(report, "skipped", "skipped"), `"State": "passed"`, `"State": "failed", "Failure": {"Message": "no cluster"}`, 1)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := readReport(file, nil); err == nil || !strings.Contains(err.Error(), "no cluster") {
		t.Errorf("error %v", err)
	}
}

func TestTable(t *testing.T) {
	table, err := readTable(specsYAML)
	if err != nil {
		t.Fatal(err)
	}
	flags := strings.Join(skips(table), " ")
	for _, want := range []string{"-skip-file=/metrics_test.go", "-skip=Karmadactl top testing"} {
		if !strings.Contains(flags, want) {
			t.Errorf("flags %s, want %s", flags, want)
		}
	}
	for text, want := range map[string]string{
		"- {area: a, outcome: skipped, reason: r}":               `outcome "skipped"`,
		"- {area: a, outcome: different}":                        "reason",
		"- {area: a, specs: '(', outcome: different, reason: r}": "area a",
		"- {file: a}": "unknown field",
	} {
		if _, err := readTable([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", text, err, want)
		}
	}
}
