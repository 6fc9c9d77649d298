// Command failover measures what faults and planned work at gateways cost the traffic between two
// real clusters: how long flows are without answers, how many packets are lost, how many
// connections break. It brings up the clusters, installs the product as a user does, and repeats
// every fault under load: `make failover`.
//
//	go run ./test/failover -runs 20 -out out/failover.json -faults gateway-killed,uplink-cut
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/program"
)

func main() { program.Main("failover", run) }

type options struct {
	runs        int
	file        string
	raw         string
	lab         string
	bin, images string
	keep        bool
	wire        string
	datapath    string
	load        load
}

func run(args []string, out io.Writer) error {
	if len(args) == 2 && args[0] == busyCommand {
		return busy(args[1])
	}
	var o options
	flags := flag.NewFlagSet("failover", flag.ExitOnError)
	flags.IntVar(&o.runs, "runs", 20, "repetitions of each fault, taking turns")
	flags.StringVar(&o.file, "out", "out/failover.json", "result file")
	flags.StringVar(&o.raw, "raw", "", "directory for what the load printed in each run, with the times of the fault")
	flags.StringVar(&o.lab, "lab", "failover", "name of the lab")
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flags.StringVar(&o.images, "images", "out/images", "directory of the image archives")
	flags.BoolVar(&o.keep, "keep", false, "leave the clusters up at the end, and use those of an earlier run as they are")
	flags.StringVar(&o.wire, "wire", "vxlan", "between gateways: vxlan, wireguard or ipsec")
	flags.StringVar(&o.datapath, "datapath", "strict", "of the pods: strict, hybrid or fast")
	flags.IntVar(&o.load.rate, "rate", 1000, "datagrams per second of each of the 6 flows; fewer where a wire in user space would queue them")
	flags.IntVar(&o.load.connections, "connections", 200, "that carry a line and its echo every 100 ms")
	names := flags.String("faults", "", "comma-separated faults (default: "+strings.Join(program.Names(faults(), nameOf), ",")+")")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := program.Choose("fault", *names, faults(), nameOf)
	if err != nil {
		return err
	}
	if o.runs < 1 {
		return fmt.Errorf("-runs %d: at least 1", o.runs)
	}
	if o.load.rate < 1 || o.load.connections < 1 {
		return fmt.Errorf("-rate %d -connections %d: at least 1 each", o.load.rate, o.load.connections)
	}
	ctx, cancel := program.Context()
	defer cancel()
	return measureAll(ctx, o, chosen, out)
}

func nameOf(f fault) string { return f.name }

// measureAll runs every fault in every repetition, and reports what was measured also if it is
// interrupted.
func measureAll(ctx context.Context, o options, chosen []fault, out io.Writer) (err error) {
	s, err := newStage(ctx, o)
	if !o.keep {
		defer func() { err = errors.Join(err, takeDown(o.lab)) }()
	}
	if err != nil {
		return err
	}
	results := map[string][]outcome{}
	var failures []error
	start := time.Now()
	for rep := range o.runs {
		for _, f := range chosen {
			r, err := s.once(ctx, f, rep)
			if ctx.Err() != nil {
				slog.Warn("interrupted; what was measured is reported")
				return errors.Join(append(failures, ctx.Err(), report(out, o, chosen, results), verdict(results))...)
			}
			if err != nil {
				err = fmt.Errorf("%s, run %d: %w", f.name, rep+1, err)
				slog.Error("a run failed", "error", err)
				failures = append(failures, err)
				if err := s.recover(ctx); err != nil {
					return errors.Join(append(failures, err, report(out, o, chosen, results))...)
				}
				continue
			}
			results[f.name] = append(results[f.name], r)
			slog.Info("measured", "run", rep+1, "fault", f.name, "victim", r.victim, "outcome", r, "elapsed", time.Since(start).Round(time.Second))
		}
	}
	err = report(out, o, chosen, results)
	return errors.Join(append(failures, err, verdict(results))...)
}

// verdict fails if a connection broke or a fault was not steered around. Times depend on the
// machine: they are reported.
func verdict(results map[string][]outcome) error {
	var errs []error
	for name, runs := range results {
		broken, stuck := 0, 0
		for _, r := range runs {
			broken += len(r.broken)
			stuck += r.stuck
		}
		if broken > 0 {
			errs = append(errs, fmt.Errorf("%s: %d connections broke in %d runs", name, broken, len(runs)))
		}
		if stuck > 0 {
			errs = append(errs, fmt.Errorf("%s: %d flows found no way around the fault in %d runs", name, stuck, len(runs)))
		}
	}
	slices.SortFunc(errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(errs...)
}
