package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/pelago-net/pelago/test/chaos/check"
	"github.com/pelago-net/pelago/test/resultfile"
)

// result is what came of a scenario.
type result struct {
	scenario   string
	counts     counts
	operations int
	took       time.Duration
	converged  time.Duration // since the last kill
	violations []check.Violation
}

// kills is the scenario of that name: the hub is killed during churn, then it may finish, and all
// is compared.
func kills(ctx context.Context, s *stage, r *result) (err error) {
	if r.counts, err = s.kills(ctx, s.options.kills); err != nil {
		return err
	}
	if err := s.churn.settle(ctx); err != nil {
		return err
	}
	slog.Info("the kills are over, the hub may finish", "operations", s.churn.done.Load())
	r.violations, _, err = s.converged(ctx, false)
	if err != nil {
		return err
	}
	r.converged = time.Since(r.counts.last)
	r.violations = append(r.violations, s.history.Violations()...)
	return nil
}

// rows are those of the result file.
func rows(results []result) (out []resultfile.Row) {
	add := func(r result, metric, unit string, n int, value float64) {
		out = append(out, resultfile.Row{Case: r.scenario, Variant: "pelago", Metric: metric, Unit: unit, N: n, Median: value,
			Min: value, Max: value})
	}
	for _, r := range results {
		add(r, "violations", "1", r.operations, float64(len(r.violations)))
		if len(r.counts.leads) == 0 {
			continue
		}
		add(r, "kills", "1", 1, float64(r.counts.hub+r.counts.api))
		add(r, "pauses", "1", 1, float64(r.counts.paused))
		add(r, "ended_by_itself", "1", 1, float64(r.counts.ended))
		add(r, "converged_s", "s", 1, r.converged.Seconds())
		leads := slices.Sorted(slices.Values(r.counts.leads))
		out = append(out, resultfile.Row{Case: r.scenario, Variant: "pelago", Metric: "leads_again_s", Unit: "s", N: len(leads),
			Median: leads[len(leads)/2].Seconds(), Min: leads[0].Seconds(), Max: leads[len(leads)-1].Seconds()})
	}
	return out
}

// report prints what was found and writes the result file.
func report(out io.Writer, file string, results []result) error {
	for _, r := range results {
		fmt.Fprintf(out, "%s: %d operations in %s: %d violations\n", r.scenario, r.operations, r.took.Round(time.Second),
			len(r.violations))
		if c := r.counts; len(c.leads) > 0 {
			fmt.Fprintf(out, "  pelago-hub killed %d times, the API server %d times, the leader paused %d times, "+
				"it ended by itself %d times; all was as wanted %s after the last kill\n",
				c.hub, c.api, c.paused, c.ended, r.converged.Round(100*time.Millisecond))
		}
		for _, v := range r.violations {
			fmt.Fprintf(out, "  %s\n", v)
		}
	}
	f, err := resultfile.New("chaos", rows(results))
	if err != nil {
		return err
	}
	return f.Write(file)
}
