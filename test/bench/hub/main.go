// Command hub measures propagation: how long a template takes from apply at the hub to existence in
// members, how many a second there can be, against a client that makes the same requests without
// having to think, how many writes each costs, and how large the hub is with a hundred members. It
// runs the product's own programs on real API servers: `make bench-hub`.
//
//	go run ./test/bench/hub -out out/hub.json
//	go run ./test/bench/hub -templates 50 -rate 10 -reps 1 -placed 50 -simulated 4    # a short run
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/program"
)

func main() {
	program.QuietClients() // it ends servers under their clients
	program.Main("bench of the hub", run)
}

type options struct {
	bin, file, dir, hubFlags      string
	templates, members, simulated int
	placed, reps, inFlight        int
	rate                          float64
	stall                         time.Duration
}

// cases in the order in which they run.
var cases = []string{"steady", caseBurst, caseCold, "scale", caseEvict, caseMixed}

// caseEvict is the end of a cluster with 500 templates.
const caseEvict = "evict"

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("hub", flag.ExitOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flags.StringVar(&o.file, "out", "out/hub.json", "result file")
	flags.StringVar(&o.dir, "dir", "out/hub", "directory for the logs of the hub, emptied at the start")
	flags.StringVar(&o.hubFlags, "hub-flags", "", "more flags of pelago-hub, separated by blanks")
	flags.IntVar(&o.templates, "templates", 1000,
		"Deployments, each with a policy, in the cases steady, burst, cold (each also with a ConfigMap) and mixed")
	flags.IntVar(&o.members, "members", 2, "members with real API servers, to all of which they go")
	flags.Float64Var(&o.rate, "rate", 5, "templates per second in the case steady")
	flags.IntVar(&o.reps, "reps", 3, "repetitions of burst, cold and mixed; the hub and the replaying client take turns")
	flags.IntVar(&o.inFlight, "in-flight", inFlight, "requests that the replaying client makes at a time")
	flags.IntVar(&o.placed, "placed", 5000, "templates in the case scale, each on two members")
	flags.IntVar(&o.simulated, "simulated", 100, "simulated members in the cases scale and mixed")
	flags.DurationVar(&o.stall, "stall", 2*time.Minute, "how long nothing may come before a measurement counts as failed")
	names := flags.String("cases", "", "comma-separated cases (default: "+strings.Join(cases, ",")+")")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := program.Choose("case", *names, cases, func(name string) string { return name })
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	if o.dir, err = program.Emptied(o.dir); err != nil {
		return err
	}
	ctx, cancel := program.Context()
	defer cancel()

	r := results{members: o.members, templates: o.templates, throughput: map[string]samples{}}
	var failures []error
	for _, name := range chosen {
		slog.Info("case", "name", name)
		start := time.Now()
		if err := r.measure(ctx, o, name); err != nil {
			if ctx.Err() != nil {
				return errors.New("interrupted; no result file written")
			}
			slog.Error("a case failed", "case", name, "error", err)
			failures = append(failures, fmt.Errorf("case %s: %w", name, err))
		}
		slog.Info("case done", "name", name, "elapsed", time.Since(start).Round(time.Second))
	}
	return errors.Join(append(failures, r.report(out, o.file), r.verdict())...)
}

// measure runs one case.
func (r *results) measure(ctx context.Context, o options, name string) error {
	switch name {
	case "steady":
		got, err := measureSteady(ctx, o)
		if err == nil {
			r.steady = &got
		}
		return err
	case "scale":
		got, err := measureScale(ctx, o)
		if err == nil {
			r.scale = &got
		}
		return err
	case caseEvict:
		got, err := measureEvict(ctx, o)
		if err == nil {
			r.evict = &got
		}
		return err
	}
	got, err := throughput(ctx, o, name)
	if len(got.ratio) > 0 {
		r.throughput[name] = got
	}
	return err
}

// check refuses what cannot work before anything is started.
func (o options) check() error {
	if o.templates < 1 || o.reps < 1 || o.placed < 1 || o.inFlight < 1 || o.rate <= 0 {
		return errors.New("-templates, -reps, -placed, -in-flight and -rate must be positive")
	}
	if o.members < 1 || o.simulated < 2 {
		return fmt.Errorf("-members %d must be at least 1, -simulated %d at least 2", o.members, o.simulated)
	}
	return nil
}
