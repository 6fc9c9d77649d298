package verify

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// Count returns the number of outcomes with a verdict.
func Count(all []Outcome, v Verdict) (n int) {
	for _, o := range all {
		if o.Verdict == v {
			n++
		}
	}
	return n
}

// Print writes outcomes as table, wide, json, yaml or junit, with a suite for each cluster.
func Print(out io.Writer, output string, all []Outcome) error {
	if output == "junit" {
		cases := []check.Case{}
		for _, o := range all {
			c := check.Case{Suite: o.From, Class: o.Step, Name: o.Step, Output: o.Detail}
			if o.To != "" {
				c.Name += " to " + o.To
			}
			switch o.Verdict {
			case Failed:
				c.Failure, c.Output = o.Detail, ""
			case Skipped:
				c.Skipped, c.Output = o.Detail, ""
			}
			cases = append(cases, c)
		}
		slices.SortStableFunc(cases, func(a, b check.Case) int { return strings.Compare(a.Suite, b.Suite) })
		return check.WriteJUnit(out, cases)
	}
	t := view.Table{Header: []string{"STEP", "FROM", "TO", "RESULT", "DETAIL"}, Empty: "Nothing was tried."}
	for _, o := range all {
		to := o.To
		if to == "" {
			to = "-"
		}
		t.Rows = append(t.Rows, view.Row{Cells: []string{o.Step, o.From, to, string(o.Verdict), o.Detail}, Object: o})
	}
	if err := view.PrintTables(out, output, t); err != nil || output == "json" || output == "yaml" {
		return err
	}
	_, err := fmt.Fprintf(out, "%d passed, %d failed, %d skipped\n", Count(all, Passed), Count(all, Failed), Count(all, Skipped))
	return err
}
