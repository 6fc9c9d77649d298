package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/pelago-net/pelago/test/resultfile"
)

// Metric names of the result file.
const (
	metricQPS = "qps_per_core" // answers by second of the servers' processor time, under a flood
	// The others are with one query at a time.
	metricSingle = "qps_per_core_single"
	metricP50    = "p50_us" // time to an answer
	metricP99    = "p99_us"
	metricRSS    = "rss_bytes"
)

// caseMemory is the state after all cases.
const caseMemory = "end"

var units = []struct{ metric, unit string }{{metricQPS, "1/s"}, {metricSingle, "1/s"}, {metricP50, "us"}, {metricP99, "us"}, {metricRSS, "B"}}

// ratios are taken within each round and case: the machine's speed, which changes from minute to
// minute, cancels out.
var ratios = []struct{ variant, reference, metric string }{
	{"pelago", "coredns", metricQPS}, {"pelago", "coredns-cache", metricQPS},
	{"pelago", "coredns", metricSingle}, {"pelago", "coredns-cache", metricSingle}, {"pelago", "coredns", metricP99},
	{"whole-way", "coredns-cache", metricQPS}, {"whole-way", "coredns-cache", metricP50}, {"whole-way", "coredns-cache", metricP99},
	{"whole-way-cache", "coredns-cache", metricQPS}, {"whole-way-cache", "coredns-cache", metricP50}, {"whole-way-cache", "coredns-cache", metricP99},
}

// values are metric → value of one round.
type values map[string]float64

type sample struct {
	name, variant string
	rounds        []values
}

// samples are in the order of measuring.
type samples []*sample

func (all samples) find(name, variant string) *sample {
	i := slices.IndexFunc(all, func(s *sample) bool { return s.name == name && s.variant == variant })
	if i < 0 {
		return nil
	}
	return all[i]
}

// add records a round; rounds come in order.
func (all *samples) add(name, variant string, round int, v values) {
	s := all.find(name, variant)
	if s == nil {
		s = &sample{name: name, variant: variant}
		*all = append(*all, s)
	}
	if len(s.rounds) == round {
		s.rounds = append(s.rounds, v)
	}
}

func (all samples) rows() (out []resultfile.Row) {
	for _, s := range all {
		for _, u := range units {
			var got []float64
			for _, r := range s.rounds {
				if x, ok := r[u.metric]; ok {
					got = append(got, x)
				}
			}
			out = appendRow(out, s, u.metric, u.unit, got)
		}
	}
	for _, r := range ratios {
		for _, s := range all {
			base := all.find(s.name, r.reference)
			if s.variant != r.variant || s.name == caseMemory || base == nil {
				continue
			}
			var got []float64
			for i := range min(len(s.rounds), len(base.rounds)) {
				if x, ok := s.rounds[i][r.metric]; ok {
					got = append(got, x/base.rounds[i][r.metric])
				}
			}
			out = appendRow(out, s, r.metric+"_vs_"+r.reference, "ratio", got)
		}
	}
	return out
}

func appendRow(rows []resultfile.Row, s *sample, metric, unit string, got []float64) []resultfile.Row {
	if len(got) == 0 {
		return rows
	}
	slices.Sort(got)
	return append(rows, resultfile.Row{Case: s.name, Variant: s.variant, Metric: metric, Unit: unit, N: len(got),
		Median: got[len(got)/2], Min: got[0], Max: got[len(got)-1]})
}

// printTable writes the rows for people.
func printTable(w io.Writer, rows []resultfile.Row) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "case\tvariant\tmetric\tmedian\tmin\tmax\t")
	for _, r := range rows {
		format := "%s\t%s\t%s\t%.0f\t%.0f\t%.0f\t\n"
		if r.Unit == "ratio" {
			format = "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t\n"
		}
		fmt.Fprintf(tw, format, r.Case, r.Variant, r.Metric, r.Median, r.Min, r.Max)
	}
	return tw.Flush()
}
