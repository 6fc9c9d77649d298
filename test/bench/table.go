package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"

	"github.com/pelago-net/pelago/test/resultfile"
)

// printTables writes two tables for people: the medians, and the medians of the paired ratios with their range.
func printTables(w io.Writer, names []string, all []resultfile.Row) error {
	fmt.Fprintln(w, "medians")
	err := printTable(w, names, all, "", func(r resultfile.Row) string { return short(r.Median) })
	if err != nil || !slices.ContainsFunc(all, func(r resultfile.Row) bool { return r.Unit == ratioUnit }) {
		return err
	}
	fmt.Fprintf(w, "\npaired ratios to %s: median (min-max)\n", reference)
	return printTable(w, names, all, ratioSuffix, func(r resultfile.Row) string {
		return fmt.Sprintf("%.2f (%.2f-%.2f)", r.Median, r.Min, r.Max)
	})
}

func printTable(w io.Writer, names []string, all []resultfile.Row, suffix string, cell func(resultfile.Row) string) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(tw, "variant\t")
	for _, m := range metrics {
		fmt.Fprintf(tw, "%s\t", m.name)
	}
	fmt.Fprintln(tw)
	for _, v := range names {
		fmt.Fprintf(tw, "%s\t", v)
		for _, m := range metrics {
			i := slices.IndexFunc(all, func(r resultfile.Row) bool { return r.Variant == v && r.Metric == m.name+suffix })
			text := "-"
			if i >= 0 {
				text = cell(all[i])
			}
			fmt.Fprintf(tw, "%s\t", text)
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
