package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// variant is the product as it is installed here.
const variant = "pelago-vxlan"

// The targets beyond the round-trip time of the path.
const (
	targetP99    = 60 * time.Millisecond
	targetMedian = 45 * time.Millisecond
)

// Report is the content of a result file; every suite writes this form.
type Report struct {
	Suite  string `json:"suite"`
	Commit string `json:"commit"` // "-dirty" at its end: the tree had changes
	Kernel string `json:"kernel"`
	CPUs   int    `json:"cpus"`
	Rows   []Row  `json:"rows"`
}

// Row is one metric of one fault. Of outages, n counts the flows that were hit, of everything else the runs. The median of
// outage_ms_p99 is that percentile of all flows of all runs.
type Row struct {
	Case    string  `json:"case"`
	Variant string  `json:"variant"`
	Metric  string  `json:"metric"`
	Unit    string  `json:"unit"`
	N       int     `json:"n"`
	Median  float64 `json:"median"`
	Min     float64 `json:"min"`
	Max     float64 `json:"max"`
}

func rows(chosen []fault, results map[string][]outcome) (out []Row) {
	for _, f := range chosen {
		runs := results[f.name]
		if len(runs) == 0 {
			continue
		}
		if outages := outagesOf(runs); len(outages) > 0 {
			for _, p := range []struct {
				metric string
				share  float64
			}{{"outage_ms_p50", 0.5}, {"outage_ms_p90", 0.9}, {"outage_ms_p99", 0.99}} {
				out = append(out, Row{Case: f.name, Variant: variant, Metric: p.metric, Unit: "ms", N: len(outages),
					Median: percentile(outages, p.share), Min: outages[0], Max: outages[len(outages)-1]})
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
			out = append(out, Row{Case: f.name, Variant: variant, Metric: m.metric, Unit: m.unit, N: len(values),
				Median: percentile(values, 0.5), Min: values[0], Max: values[len(values)-1]})
		}
	}
	return out
}

// outagesOf are those of all flows that were hit, in milliseconds, sorted.
func outagesOf(runs []outcome) (out []float64) {
	for _, r := range runs {
		for _, d := range r.outages {
			out = append(out, ms(d))
		}
	}
	slices.Sort(out)
	return out
}

// percentile of sorted values, of which there is at least one: the smallest that the share of them does not exceed.
func percentile(sorted []float64, share float64) float64 {
	n := int(share*float64(len(sorted)) + 0.999999)
	return sorted[min(max(n, 1), len(sorted))-1]
}

// report prints the table and writes the result file.
func report(out io.Writer, file string, chosen []fault, results map[string][]outcome) error {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return fmt.Errorf("read the kernel's release: %w", err)
	}
	r := Report{Suite: "failover", Commit: commit(), Kernel: unix.ByteSliceToString(uts.Release[:]), CPUs: runtime.NumCPU(), Rows: rows(chosen, results)}
	return errors.Join(printTable(out, chosen, results), r.write(file))
}

// printTable shows the distribution of the outages of the flows that were hit, beside the target.
func printTable(w io.Writer, chosen []fault, results map[string][]outcome) error {
	fmt.Fprintf(w, "outage in ms of the flows that were hit; %d flows of %d datagrams/s, %d connections, %d new ones/s\n\n", flows, rate, connections, dialRate)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "fault\truns\thit\tmin\tmedian\tp90\tp99\tmax\ttarget\tlost/run\tmax\thealing\tbroken\tfailed\tstuck\tfalse\tstall\t")
	for _, f := range chosen {
		runs := results[f.name]
		if len(runs) == 0 {
			continue
		}
		fmt.Fprintf(tw, "%s\t%d\t", f.name, len(runs))
		if outages := outagesOf(runs); len(outages) > 0 {
			fmt.Fprintf(tw, "%d\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t", len(outages), outages[0],
				percentile(outages, 0.5), percentile(outages, 0.9), percentile(outages, 0.99), outages[len(outages)-1])
		} else {
			fmt.Fprint(tw, "0\t-\t-\t-\t-\t-\t")
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

// commit names the tree that runs, or says that it is unknown (no git, or no repository around).
func commit() string {
	head, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(head))
}

// write puts the report into a file, whose folder it makes.
func (r Report) write(name string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("encode the report: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.WriteFile(name, append(b, '\n'), 0o644)
}
