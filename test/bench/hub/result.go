package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/pelago-net/pelago/test/resultfile"
)

// Variants of the result file.
const (
	variantPelago = "pelago"
	variantReplay = "replay"
)

// samples are the repetitions of one case of throughput.
type samples struct {
	hub, replay []float64 // templates per second
	decided     []float64 // decisions per second until the last template has its first one
	ratio       []float64 // of the same repetition
	// hubEnded and replayEnded are the watches of whomever that the API server ended meanwhile, as
	// too slow.
	hubEnded, replayEnded []float64
	writes                writes // of the last one
}

// results are all that was measured; what was not is nil.
type results struct {
	members, templates int
	steady             *steadyResult
	throughput         map[string]samples
	scale              *scaleResult
	evict              *evictResult
}

// budget is how many writes at the hub a template may cost that goes to n clusters: claim, binding,
// n Works, n Work statuses, two binding statuses, template status.
func budget(n int) int { return 5 + 2*n }

// rows are those of the result file.
func (r results) rows() (out []resultfile.Row) {
	if r.steady != nil {
		ms := r.steady.ms
		for _, p := range []struct {
			metric string
			share  float64
		}{{"apply_to_member_ms_p50", 0.5}, {"apply_to_member_ms_p99", 0.99}} {
			out = append(out, resultfile.Row{Case: "steady", Variant: variantPelago, Metric: p.metric, Unit: "ms", N: len(ms),
				Median: percentile(ms, p.share), Min: ms[0], Max: ms[len(ms)-1]})
		}
		out = append(out, r.writeRows("steady", r.steady.writes)...)
	}
	for _, name := range slices.Sorted(maps.Keys(r.throughput)) {
		s := r.throughput[name]
		out = append(out,
			row(name, variantPelago, "templates_per_s", "1/s", s.hub), row(name, variantReplay, "templates_per_s", "1/s", s.replay),
			row(name, variantPelago, "decisions_per_s", "1/s", s.decided), row(name, variantPelago, "replay_ratio", "ratio", s.ratio),
			row(name, variantPelago, "watches_ended", "1", s.hubEnded), row(name, variantReplay, "watches_ended", "1", s.replayEnded))
		out = append(out, r.writeRows(name, s.writes)...)
	}
	if s := r.scale; s != nil {
		deepest := 0.0
		for _, depth := range s.queues {
			deepest = max(deepest, depth)
		}
		out = append(out,
			row("scale", variantPelago, "rss_bytes", "B", []float64{float64(s.rss)}), row("scale", variantPelago, "rss_max_bytes", "B",
				[]float64{float64(s.largest)}),
			row("scale", variantPelago, "queue_depth", "1", []float64{deepest}), row("scale", variantPelago, "took_s", "s",
				[]float64{s.took.Seconds()}))
		if len(s.flips) > 0 {
			out = append(out, row("scale", variantPelago, "taint_flip_cpu_ms", "ms", s.flips))
		}
	}
	if e := r.evict; e != nil {
		one := func(metric, unit string, value float64) {
			out = append(out, row(caseEvict, variantPelago, metric, unit, []float64{value}))
		}
		one("first_moved_s", "s", e.first.Seconds())
		one("all_moved_s", "s", e.moved.Seconds())
		one("rss_bytes", "B", float64(e.rss))
		one("rss_max_bytes", "B", float64(e.largest))
	}
	return out
}

// writeRows are the writes of one case. The budget is that of a template until its status is
// complete; a dependent, which has none, has the same. The rest is not a template's.
func (r results) writeRows(name string, w writes) (out []resultfile.Row) {
	one := func(metric string, value float64) {
		out = append(out, resultfile.Row{Case: name, Variant: variantPelago, Metric: metric, Unit: "1", N: r.templates, Median: value,
			Min: value, Max: value})
	}
	n := float64(r.templates)
	one("writes_per_template", float64(w.byClass[ofDeployment])/n)
	one("writes_per_dependent", float64(w.byClass[ofConfigMap])/n)
	one("writes_per_template_later", float64(w.later)/n)
	one("writes_per_policy", float64(w.byClass[ofPolicy])/n)
	one("events_per_template", float64(w.byClass[ofEvent])/n)
	one("writes_for_members", float64(w.byClass[ofMember]))
	one("writes_refused", float64(w.refused))
	return out
}

func row(name, variant, metric, unit string, values []float64) resultfile.Row {
	sorted := slices.Sorted(slices.Values(values))
	return resultfile.Row{Case: name, Variant: variant, Metric: metric, Unit: unit, N: len(sorted),
		Median: percentile(sorted, 0.5), Min: sorted[0], Max: sorted[len(sorted)-1]}
}

// percentile of sorted values, of which there is at least one: the smallest that the share of them
// does not exceed.
func percentile(sorted []float64, share float64) float64 {
	n := int(share*float64(len(sorted)) + 0.999999)
	return sorted[min(max(n, 1), len(sorted))-1]
}

// verdict fails on what does not depend on the machine: too many writes for a template, a queue
// that does not empty.
func (r results) verdict() error {
	var errs []error
	check := func(name string, w writes) {
		for _, c := range []class{ofDeployment, ofConfigMap} {
			if each := float64(w.byClass[c]) / float64(r.templates); each > float64(budget(r.members)) {
				errs = append(errs, fmt.Errorf("%s: %.2f writes for each %s in %d clusters, more than %d", name, each, c, r.members,
					budget(r.members)))
			}
		}
	}
	if r.steady != nil {
		check("steady", r.steady.writes)
	}
	// no workload reports there: a lower bound, which is over or is not
	for _, name := range slices.Sorted(maps.Keys(r.throughput)) {
		if name != caseMixed { // there, each goes to another number of clusters
			check(name, r.throughput[name].writes)
		}
	}
	if r.scale != nil && len(r.scale.queues) > 0 {
		errs = append(errs, fmt.Errorf("scale: queues that do not empty: %v", r.scale.queues))
	}
	return errors.Join(errs...)
}

// targets are what the measures are to be, for the table.
func (r results) target(name, metric string) string {
	switch metric {
	case "apply_to_member_ms_p99":
		return "≤ 300"
	case "replay_ratio":
		return "≥ 0.8"
	case "writes_per_template", "writes_per_dependent":
		if name == caseMixed {
			return ""
		}
		return fmt.Sprintf("≤ %d", budget(r.members))
	case "rss_bytes":
		return "≤ 500 Mi"
	case "queue_depth":
		return "0"
	case "all_moved_s":
		return "< 60"
	}
	return ""
}

// report prints the table and writes the result file.
func (r results) report(w io.Writer, file string) error {
	f, err := resultfile.New("hub", r.rows())
	if err != nil {
		return err
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "case\tvariant\tmetric\tmedian\tmin\tmax\tn\ttarget")
	for _, row := range f.Rows {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.4g\t%.4g\t%.4g\t%d\t%s\n", row.Case, row.Variant, row.Metric, row.Median, row.Min, row.Max, row.N,
			r.target(row.Case, row.Metric))
	}
	return errors.Join(tw.Flush(), f.Write(file))
}
