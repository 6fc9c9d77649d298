// Command bench compares, in one interleaved run, ways from a pod of one cluster through two gateways to a pod of
// another: the limit of this machine, the floor of the topology, kernel routing, the netfilter ways of other projects
// and Pelago's own. Everything runs in network namespaces that it makes and removes (see Topology); nothing outside them
// is touched. It is what `make bench` starts:
//
//	go run ./test/bench -reps 5 -variants limit,floor,plain,iptables -out out/bench.json -duration 1.2s
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/bench/load"
	"github.com/pelago-net/pelago/test/netns"
	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/resultfile"
)

// nsPrefix begins the namespaces of a run (behind netns.Prefix); leftovers of a killed run are found by it.
const nsPrefix = "bench-"

func main() { program.Main("bench", run) }

func run(args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == load.Command {
		return load.Main(args[1:], out)
	}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	reps := flags.Int("reps", 5, "repetitions; each runs every variant once, in rotating order")
	names := flags.String("variants", "", "comma-separated variants (default: "+strings.Join(program.Names(variants(), nameOf), ",")+")")
	file := flags.String("out", "out/bench.json", "result file")
	duration := flags.Duration("duration", 1200*time.Millisecond, "length of each of a repetition's four measurements")
	kubeProxy := flags.Bool("kube-proxy", true, "give the pods' nodes the ruleset of a kube-proxy node")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := program.Choose("variant", *names, variants(), nameOf)
	if err != nil {
		return err
	}
	if err := check(*reps, *duration); err != nil {
		return err
	}
	unlock, err := lock()
	if err != nil {
		return err
	}
	defer unlock()
	stale, err := netns.RemoveStale(nsPrefix)
	if err != nil {
		return err
	}
	if len(stale) > 0 {
		slog.Info("removed namespaces of an earlier run", "namespaces", stale)
	}
	ctx, cancel := program.Context()
	defer cancel()

	b := bench{prefix: nsPrefix, reps: *reps, duration: *duration, kubeProxy: *kubeProxy}
	samples, failures := b.run(ctx, chosen)
	if ctx.Err() != nil {
		return errors.New("interrupted; no result file written")
	}
	return errors.Join(failures, report(out, *file, program.Names(chosen, nameOf), samples))
}

// bench is the plan of one run.
type bench struct {
	prefix    string
	reps      int
	duration  time.Duration
	kubeProxy bool
}

// run measures all variants in every repetition, in an order that rotates, so that no variant always runs behind the
// same other one. It goes on after a failure; the error joins all of them.
func (b bench) run(ctx context.Context, chosen []Variant) (Samples, error) {
	samples := Samples{}
	for _, v := range chosen {
		samples[v.Name] = make([]Values, b.reps)
	}
	var errs []error
	for rep := range b.reps {
		for i := range chosen {
			v := chosen[(rep+i)%len(chosen)]
			values, err := b.once(ctx, v)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				err = fmt.Errorf("variant %s, repetition %d: %w", v.Name, rep+1, err)
				errs = append(errs, err)
			}
			samples[v.Name][rep] = values
			slog.Info("measured", "repetition", rep+1, "variant", v.Name, "", values)
		}
	}
	return samples, errors.Join(errs...)
}

// once makes a topology, measures one variant in it and takes everything down.
func (b bench) once(ctx context.Context, v Variant) (values Values, err error) {
	t, err := NewTopology(b.prefix, b.kubeProxy)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, t.Close()) }()
	teardown, err := v.Setup(t)
	if err != nil {
		return nil, fmt.Errorf("set up: %w", err)
	}
	if teardown != nil {
		defer func() { err = errors.Join(err, teardown()) }()
	}
	return measure(ctx, t, v, b.duration)
}

// report writes the result file and prints the tables.
func report(out io.Writer, file string, names []string, samples Samples) error {
	r, err := resultfile.New("bench", rows(names, samples))
	if err != nil {
		return err
	}
	return errors.Join(r.Write(file), printTables(out, names, r.Rows))
}

// check refuses what cannot work before anything is made.
func check(reps int, d time.Duration) error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("the benchmark makes network namespaces: run it as root"))
	}
	if n := runtime.NumCPU(); n < 2 {
		errs = append(errs, fmt.Errorf("the benchmark needs 2 processors, one for each end; this machine has %d", n))
	}
	if reps < 1 || d < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("-reps %d must be at least 1, -duration %s at least 10ms", reps, d))
	}
	return errors.Join(errs...)
}

// lock keeps a second run away from this one's namespaces and processors. An abstract socket needs no file and ends with
// the process.
func lock() (unlock func() error, err error) {
	l, err := net.Listen("unix", "@pelago-bench")
	if err != nil {
		return nil, fmt.Errorf("another benchmark is running (or its end takes a moment): %w", err)
	}
	return l.Close, nil
}
