package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/pelago-net/pelago/test/resultfile"
)

// The targets beyond the round-trip time of the path.
const (
	targetP99    = 60 * time.Millisecond
	targetMedian = 45 * time.Millisecond
)

// rows are those of the result file; variant is the product as it is installed here. Of outages, n
// counts the flows that were hit, of everything else the runs. The median of outage_ms_p99 is that
// percentile of all flows of all runs.
func rows(variant string, chosen []fault, results map[string][]outcome) (out []resultfile.Row) {
	for _, f := range chosen {
		runs := results[f.name]
		if len(runs) == 0 {
			continue
		}
		outages, certain := outagesOf(runs)
		for _, p := range []struct {
			metric string
			of     []float64
			share  float64
		}{{"outage_ms_p50", outages, 0.5}, {"outage_ms_p90", outages, 0.9}, {"outage_ms_p99", outages, 0.99}, {"outage_certain_ms_p99", certain, 0.99}} {
			if n := len(p.of); n > 0 {
				out = append(out, resultfile.Row{Case: f.name, Variant: variant, Metric: p.metric, Unit: "ms", N: n,
					Median: percentile(p.of, p.share), Min: p.of[0], Max: p.of[n-1]})
			}
		}
		for _, m := range []struct {
			metric, unit string
			of           func(outcome) int
		}{
			{"packets_lost", "1", func(r outcome) int { return r.lost }},
			{"packets_lost_healing", "1", func(r outcome) int { return r.lostHealing }},
			{"connections_broken", "1", func(r outcome) int { return len(r.broken) }},
			{"connections_failed", "1", func(r outcome) int { return len(r.failed) }},
			{"flows_stuck", "1", func(r outcome) int { return r.stuck }},
			{"false_deaths", "1", func(r outcome) int { return len(r.falseDeaths) }},
		} {
			var values []float64
			for _, r := range runs {
				values = append(values, float64(m.of(r)))
			}
			slices.Sort(values)
			out = append(out, resultfile.Row{Case: f.name, Variant: variant, Metric: m.metric, Unit: m.unit, N: len(values),
				Median: percentile(values, 0.5), Min: values[0], Max: values[len(values)-1]})
		}
	}
	return out
}

// outagesOf are those of all flows that were hit, and what of them is certain, in milliseconds,
// sorted.
func outagesOf(runs []outcome) (outages, certain []float64) {
	for _, r := range runs {
		for _, d := range r.outages {
			outages = append(outages, ms(d))
		}
		for _, d := range r.certain {
			certain = append(certain, ms(d))
		}
	}
	slices.Sort(outages)
	slices.Sort(certain)
	return outages, certain
}

// percentile of sorted values, of which there is at least one: the smallest that the share of them
// does not exceed.
func percentile(sorted []float64, share float64) float64 {
	n := int(share*float64(len(sorted)) + 0.999999)
	return sorted[min(max(n, 1), len(sorted))-1]
}

// report prints the table and writes the result file. Rows name the product as it is installed:
// "pelago-WIRE-DATAPATH".
func report(out io.Writer, o options, chosen []fault, results map[string][]outcome) error {
	r, err := resultfile.New("failover", rows("pelago-"+o.wire+"-"+o.datapath, chosen, results))
	if err != nil {
		return err
	}
	return errors.Join(printTable(out, o.load, chosen, results), r.Write(o.file))
}

// printTable shows the distribution of the outages of the flows that were hit, next to the target.
func printTable(w io.Writer, l load, chosen []fault, results map[string][]outcome) error {
	fmt.Fprintf(w, "outage in ms of the flows that were hit; %d flows of %d datagrams/s, %d connections, %d new ones/s\n\n", flows, l.rate, l.connections, dialRate)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "fault\truns\thit\tmin\tmedian\tp90\tp99\tmax\tcertain p99\ttarget\tlost/run\tmax\thealing\tbroken\tfailed\tstuck\tfalse\tstall\t")
	for _, f := range chosen {
		runs := results[f.name]
		if len(runs) == 0 {
			continue
		}
		fmt.Fprintf(tw, "%s\t%d\t", f.name, len(runs))
		if outages, certain := outagesOf(runs); len(outages) > 0 {
			fmt.Fprintf(tw, "%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t", len(outages), outages[0], percentile(outages, 0.5),
				percentile(outages, 0.9), percentile(outages, 0.99), outages[len(outages)-1], percentile(certain, 0.99))
		} else {
			fmt.Fprint(tw, "0\t-\t-\t-\t-\t-\t-\t")
		}
		fmt.Fprintf(tw, "%s\t", f.target())
		lost, most, healing, broken, failed, stuck, deaths, stall := 0, 0, 0, 0, 0, 0, 0, time.Duration(0)
		for _, r := range runs {
			lost += r.lost
			most = max(most, r.lost)
			healing += r.lostHealing
			broken += len(r.broken)
			failed += len(r.failed)
			stuck += r.stuck
			deaths += len(r.falseDeaths)
			stall = max(stall, r.stall)
		}
		fmt.Fprintf(tw, "%.0f\t%d\t%d\t%d\t%d\t%d\t%d\t%.0f\t\n", float64(lost)/float64(len(runs)), most, healing, broken, failed, stuck, deaths, ms(stall))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	fmt.Fprintln(w)
	for _, f := range chosen {
		fmt.Fprintf(w, "%s: %s\n", f.name, f.title)
	}
	return nil
}

// target is what the outages, or the losses, are to be.
func (f fault) target() string {
	switch {
	case f.name == nothing:
		return "-"
	case f.planned:
		return "0 lost"
	}
	return fmt.Sprintf("p50≤%.0f p99≤%.0f", ms(f.rtt+targetMedian), ms(f.rtt+targetP99))
}
