// Command scheduler measures the scheduler's decisions per second and their latency, without an API
// server: mixed bindings pass the hub's cache of assumed capacity, computed in parallel and
// committed serially. `make bench-scheduler` runs it:
//
//	go run ./test/bench/scheduler -out out/scheduler.json
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"runtime"
	"text/tabwriter"

	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/resultfile"
)

func main() { program.Main("bench of the scheduler", run) }

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("scheduler", flag.ExitOnError)
	reps := flags.Int("reps", 5, "repetitions of each case and variant, interleaved")
	bindings := flags.Int("bindings", 20_000, "bindings that are decided in each")
	file := flags.String("out", "out/scheduler.json", "result file")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *reps < 1 || *bindings < 1 {
		return errors.New("-reps and -bindings: at least 1")
	}
	var results []result
	for range *reps {
		for _, clusters := range []int{100, 1000} {
			for _, v := range variants() {
				r, err := measure(clusters, *bindings, v.cores)
				if err != nil {
					return fmt.Errorf("%d clusters, %s: %w", clusters, v.name, err)
				}
				r.kase, r.variant = fmt.Sprintf("pure-%d", clusters), v.name
				results = append(results, r)
			}
		}
	}
	rows := rowsOf(results)
	if err := table(rows, out); err != nil {
		return err
	}
	report, err := resultfile.New("scheduler", rows)
	if err != nil {
		return err
	}
	return report.Write(*file)
}

// variant is a number of cores to decide on.
type variant struct {
	name  string
	cores int
}

func variants() []variant {
	return []variant{{"one-core", 1}, {"all-cores", runtime.NumCPU()}}
}

func table(rows []resultfile.Row, out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "case\tvariant\tmetric\tmedian\tmin\tmax\t") // errors come with Flush
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\t%.4g\t%.4g\t%.4g\t\n", r.Case, r.Variant, r.Metric, r.Median, r.Min, r.Max)
	}
	return w.Flush()
}
