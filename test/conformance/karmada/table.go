package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pelago-net/pelago/test/resultfile"
)

//go:embed specs.yaml
var specsYAML []byte

// Outcomes of a spec. The table has specs of the last two.
const (
	passed    = "passed"
	failed    = "failed"
	different = "different" // it runs and fails: Pelago behaves otherwise on purpose
	notRun    = "not run"   // it needs what is not here
)

// entry is a row of specs.yaml: specs that are not expected to pass.
type entry struct {
	// Area is the suite's file without _test.go.
	Area string `json:"area"`
	// Specs matches the texts of a spec; empty: all of the area.
	Specs   string `json:"specs"`
	Outcome string `json:"outcome"`
	Reason  string `json:"reason"`

	specs *regexp.Regexp
}

func (e entry) matches(area, text string) bool { return e.Area == area && e.specs.MatchString(text) }

func readTable(text []byte) ([]entry, error) {
	var table []entry
	if err := yaml.UnmarshalStrict(text, &table); err != nil {
		return nil, fmt.Errorf("read specs.yaml: %w", err)
	}
	for i := range table {
		e := &table[i]
		var err error
		if e.specs, err = regexp.Compile(e.Specs); err != nil {
			return nil, fmt.Errorf("read specs.yaml: area %s: %w", e.Area, err)
		}
		if e.Outcome != different && e.Outcome != notRun {
			return nil, fmt.Errorf("read specs.yaml: area %s, specs %q: outcome %q is neither %q nor %q", e.Area, e.Specs, e.Outcome, different, notRun)
		}
		if e.Area == "" || e.Reason == "" {
			return nil, fmt.Errorf("read specs.yaml: area %q, specs %q: area and reason are required", e.Area, e.Specs)
		}
	}
	return table, nil
}

// skips are Ginkgo's flags for what is not run.
func skips(table []entry) (flags []string) {
	for _, e := range table {
		switch {
		case e.Outcome != notRun:
		case e.Specs == "":
			flags = append(flags, "-skip-file=/"+e.Area+"_test.go")
		default:
			flags = append(flags, "-skip="+e.Specs)
		}
	}
	return flags
}

// spec is a spec of the suite and what became of it.
type spec struct {
	area, text string
	outcome    string // passed, failed, different, not run
	time       time.Duration
	message    string
	entry      int // of the table; -1: none
}

// readReport reads Ginkgo's report.
func readReport(file string, table []entry) ([]spec, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the report of the suite: %w", err)
	}
	var reports []struct {
		SpecReports []struct {
			LeafNodeType, LeafNodeText, State string
			ContainerHierarchyTexts           []string
			LeafNodeLocation                  struct{ FileName string }
			RunTime                           time.Duration
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(text, &reports); err != nil {
		return nil, fmt.Errorf("read the report of the suite in %s: %w", file, err)
	}
	var specs []spec
	for _, r := range reports {
		for _, s := range r.SpecReports {
			message := strings.ReplaceAll(s.Failure.Message, "\n", " ")
			if s.LeafNodeType != "It" { // a set-up or clean-up of the suite
				if s.State != passed {
					return nil, fmt.Errorf("%s %s: %s", s.LeafNodeType, s.State, message)
				}
				continue
			}
			x := spec{area: strings.TrimSuffix(path.Base(s.LeafNodeLocation.FileName), "_test.go"), time: s.RunTime, message: message,
				text: strings.Join(append(s.ContainerHierarchyTexts, s.LeafNodeText), " ")}
			x.entry = slices.IndexFunc(table, func(e entry) bool { return e.matches(x.area, x.text) })
			switch {
			case s.State == passed:
				x.outcome = passed
			case s.State == "skipped" || s.State == "pending":
				x.outcome = notRun
			case x.entry >= 0 && table[x.entry].Outcome == different:
				x.outcome = different
			default:
				x.outcome = failed
			}
			specs = append(specs, x)
		}
	}
	slices.SortStableFunc(specs, func(a, b spec) int {
		if c := strings.Compare(a.area, b.area); c != 0 {
			return c
		}
		return strings.Compare(a.text, b.text)
	})
	return specs, nil
}

// verdict names the specs that differ from the table: those that failed or were skipped without an
// entry, those that passed with one, and entries without a spec. A run with a focus skips others.
func verdict(specs []spec, table []entry, focused bool) error {
	var errs []error
	used := map[int]bool{}
	for _, s := range specs {
		used[s.entry] = true
		switch {
		case s.outcome == failed, s.outcome == notRun && s.entry < 0 && !focused:
			errs = append(errs, fmt.Errorf("%s: %s: %q: %s", s.outcome, s.area, s.text, s.message))
		case s.outcome == passed && s.entry >= 0:
			errs = append(errs, fmt.Errorf("passed: %s: %q: remove it from specs.yaml", s.area, s.text))
		}
	}
	for i, e := range table {
		if !used[i] {
			errs = append(errs, fmt.Errorf("specs.yaml: area %s has no spec %q: remove the entry", e.Area, e.Specs))
		}
	}
	if len(specs) == 0 {
		errs = append(errs, errors.New("the suite has no specs"))
	}
	return errors.Join(errs...)
}

// writeReport writes the result file: a row for each spec, its metric the outcome.
func writeReport(file string, specs []spec) error {
	var rows []resultfile.Row
	for _, s := range specs {
		row := resultfile.Row{Case: s.text, Variant: s.area, Metric: s.outcome, Unit: "s"}
		if s.outcome != notRun {
			seconds := s.time.Seconds()
			row.N, row.Median, row.Min, row.Max = 1, seconds, seconds, seconds
		}
		rows = append(rows, row)
	}
	report, err := resultfile.New("conformance-karmada", rows)
	if err != nil {
		return err
	}
	return report.Write(file)
}

// printSummary prints how many specs of each area have which outcome.
func printSummary(out io.Writer, specs []spec) {
	outcomes := []string{passed, failed, different, notRun}
	counts := map[string]map[string]int{}
	for _, s := range specs {
		for _, area := range []string{s.area, "~total"} {
			if counts[area] == nil {
				counts[area] = map[string]int{}
			}
			counts[area][s.outcome]++
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "AREA\t%s\n", strings.ToUpper(strings.Join(outcomes, "\t")))
	for _, area := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprint(w, strings.TrimPrefix(area, "~"))
		for _, o := range outcomes {
			fmt.Fprintf(w, "\t%d", counts[area][o])
		}
		fmt.Fprintln(w)
	}
	w.Flush()
}
