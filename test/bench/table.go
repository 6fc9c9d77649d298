package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/pelago-net/pelago/test/resultfile"
)

// printTables writes tables for people: the medians, the medians of the paired ratios with their
// range, and the BPF programs.
func printTables(w io.Writer, all []resultfile.Row) error {
	fmt.Fprintln(w, "medians")
	errs := []error{printTable(w, all, "", func(r resultfile.Row) string { return short(r.Median) })}
	for _, of := range []struct{ suffix, to string }{{ratioSuffix, reference}, {directSuffix, "the service's own address"}} {
		if slices.ContainsFunc(all, func(r resultfile.Row) bool { return strings.HasSuffix(r.Metric, of.suffix) }) {
			fmt.Fprintf(w, "\npaired ratios to %s: median (min-max)\n", of.to)
			errs = append(errs, printTable(w, all, of.suffix, func(r resultfile.Row) string {
				return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Median, r.Min, r.Max)
			}))
		}
	}
	if slices.ContainsFunc(all, func(r resultfile.Row) bool { return r.Metric == metricProgram }) {
		fmt.Fprintln(w, "\nBPF programs: ns a run; of a case, all programs: ns a packet; of connections, ns a connection")
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
		for _, r := range all {
			if r.Metric == metricProgram || r.Metric == metricConnection {
				fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t\n", r.Case, r.Variant, r.Metric, short(r.Median))
			}
		}
		errs = append(errs, tw.Flush())
	}
	return errors.Join(errs...)
}

func printTable(w io.Writer, all []resultfile.Row, suffix string, cell func(resultfile.Row) string) error {
	type path struct{ name, variant string }
	cells := map[path]map[string]string{}
	var paths []path
	for _, r := range all {
		name, ok := strings.CutSuffix(r.Metric, suffix)
		if !ok || !slices.ContainsFunc(metrics, func(m metric) bool { return m.name == name }) {
			continue
		}
		p := path{r.Case, r.Variant}
		if cells[p] == nil {
			cells[p], paths = map[string]string{}, append(paths, p)
		}
		cells[p][name] = cell(r)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "case\tvariant\t")
	for _, m := range metrics {
		fmt.Fprintf(tw, "%s\t", m.name)
	}
	fmt.Fprintln(tw)
	for _, p := range paths {
		fmt.Fprintf(tw, "%s\t%s\t", p.name, p.variant)
		for _, m := range metrics {
			fmt.Fprintf(tw, "%s\t", cmp.Or(cells[p][m.name], "-"))
		}
		fmt.Fprintln(tw)
	}
	return tw.Flush()
}

// short writes four significant digits, without an exponent for large numbers.
func short(x float64) string {
	if x >= 1000 {
		return strconv.FormatFloat(math.Round(x), 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 4, 64)
}
