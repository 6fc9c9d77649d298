// Command bench compares, in one interleaved run, paths from a pod in one cluster through two
// gateways to a pod in another: the limit of the machine, the floor of the topology, kernel
// routing, the netfilter datapaths of other projects, and Pelago's. All paths exist at the same
// time, in network namespaces that the command creates and removes (see Topology), and are measured
// in turn in short slices; nothing outside the namespaces is changed. `make bench` runs it:
//
//	go run ./test/bench -rounds 30 -slice 100ms -out out/bench.json
//	go run ./test/bench -cases gateway-path -variants floor,iptables,pelago-safe
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/bench/load"
	"github.com/pelago-net/pelago/test/netns"
	"github.com/pelago-net/pelago/test/program"
	"github.com/pelago-net/pelago/test/resultfile"
)

// nsPrefix begins the namespaces of a run (behind netns.Prefix); leftovers of a killed run are
// found by it.
const nsPrefix = "bench-"

func main() { program.Main("bench", run) }

func run(args []string, out io.Writer) error {
	if len(args) > 0 && args[0] == load.Command {
		return load.Main(args[1:], os.Stdin, out)
	}
	flags := flag.NewFlagSet("bench", flag.ExitOnError)
	rounds := flags.Int("rounds", 30, "rounds; each measures every path once, in rotating order")
	slice := flags.Duration("slice", 100*time.Millisecond, "length of one measurement of one path")
	caseNames := flags.String("cases", "", "comma-separated cases (default: "+strings.Join(program.Names(cases(), caseName), ",")+")")
	variantNames := flags.String("variants", "", "comma-separated variants; cases without any of them are left out (default: all)")
	file := flags.String("out", "out/bench.json", "result file")
	kubeProxy := flags.Bool("kube-proxy", true, "give the pods' nodes the ruleset of a kube-proxy node")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := choose(*caseNames, *variantNames)
	if err != nil {
		return err
	}
	if err := check(*rounds, *slice); err != nil {
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

	b := bench{prefix: nsPrefix, rounds: *rounds, slice: *slice, kubeProxy: *kubeProxy}
	samples, failures := b.run(ctx, chosen)
	if ctx.Err() != nil {
		return errors.New("interrupted; no result file written")
	}
	return errors.Join(failures, report(out, *file, samples))
}

func caseName(c Case) string { return c.Name }

// choose selects cases and, in them, variants.
func choose(caseNames, variantNames string) ([]Case, error) {
	chosen, err := program.Choose("case", caseNames, cases(), caseName)
	if err != nil || variantNames == "" {
		return chosen, err
	}
	names, err := program.Choose("variant", variantNames, program.Names(variants(), nameOf), func(name string) string { return name })
	if err != nil {
		return nil, err
	}
	for i := range chosen {
		chosen[i].Variants = slices.DeleteFunc(chosen[i].Variants, func(v Variant) bool { return !slices.Contains(names, v.Name) })
	}
	return slices.DeleteFunc(chosen, func(c Case) bool { return len(c.Variants) == 0 }), nil
}

// bench is the plan of one run.
type bench struct {
	prefix    string
	rounds    int
	slice     time.Duration
	kubeProxy bool
}

// minShare is the share of its slices that a path must have measured.
const minShare = 0.5

// run sets all paths up and measures each of them once a round and kind of traffic, in an order
// that rotates, so that no path always runs after the same other one. A path that fails does not
// end the run; the error joins all failures.
func (b bench) run(ctx context.Context, chosen []Case) (samples Samples, err error) {
	var errs []error
	var paths []*path
	defer func() {
		for _, p := range paths {
			errs = append(errs, p.Close())
		}
		err = errors.Join(errs...)
	}()
	for i, c := range chosen {
		for j, v := range c.Variants {
			p, err := openPath(ctx, fmt.Sprintf("%s%d%d-", b.prefix, i, j), b.kubeProxy, c, v)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil {
				errs = append(errs, fmt.Errorf("case %s, variant %s: %w", c.Name, v.Name, err))
				continue
			}
			paths = append(paths, p)
			slog.Info("set up", "case", c.Name, "variant", v.Name)
		}
	}
	samples = Samples{}
	for _, p := range paths {
		s := &Sample{Case: p.Case.Name, Variant: p.Variant.Name, Rounds: make([]Values, b.rounds)}
		for round := range s.Rounds {
			s.Rounds[round] = Values{}
		}
		samples = append(samples, s)
	}
	failed := make([][]error, len(paths))
	for round := range b.rounds {
		for _, m := range measurements {
			for i := range paths {
				k := (round + i) % len(paths)
				if !m.of(paths[k].Case.Name) {
					continue
				}
				values, err := paths[k].slice(m, b.slice)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if err != nil {
					failed[k] = append(failed[k], fmt.Errorf("round %d, %s: %w", round+1, m.name, err))
					continue
				}
				maps.Copy(samples[k].Rounds[round], values)
			}
		}
		slog.Info("measured", "round", round+1, "of", b.rounds)
	}
	for k, p := range paths {
		if n := len(failed[k]); n > 0 {
			slog.Warn("slices failed", "case", p.Case.Name, "variant", p.Variant.Name, "slices", n, "first", failed[k][0])
		}
		if float64(len(failed[k])) > (1-minShare)*float64(b.rounds) {
			errs = append(errs, fmt.Errorf("case %s, variant %s: %d slices in %d rounds failed; the first: %w",
				p.Case.Name, p.Variant.Name, len(failed[k]), b.rounds, failed[k][0]))
		}
		if len(p.programs) == 0 || p.Case.Name == caseWireGuard {
			continue
		}
		if err := b.profile(p, samples[k]); err != nil {
			errs = append(errs, fmt.Errorf("case %s, variant %s: measure the BPF programs: %w", p.Case.Name, p.Variant.Name, err))
		}
	}
	return samples, nil
}

// profile measures the BPF programs of a path, a slice of datagrams and one of connections a round.
func (b bench) profile(p *path, s *Sample) error {
	var failed []error
	for range b.rounds {
		perRun, err := p.profile(b.slice)
		if err == nil {
			s.Programs = append(s.Programs, perRun)
			if perRun, err = p.profileConnections(b.slice); err == nil {
				s.Connections = append(s.Connections, perRun)
			}
		}
		if err != nil {
			failed = append(failed, err)
		}
	}
	if float64(len(failed)) > (1-minShare)*float64(b.rounds) {
		return fmt.Errorf("%d of %d slices failed; the first: %w", len(failed), b.rounds, failed[0])
	}
	return nil
}

// report writes the result file and prints the tables.
func report(out io.Writer, file string, samples Samples) error {
	r, err := resultfile.New("bench", samples.rows())
	if err != nil {
		return err
	}
	return errors.Join(r.Write(file), printTables(out, r.Rows))
}

// check refuses what cannot work before anything is created.
func check(rounds int, slice time.Duration) error {
	var errs []error
	if os.Geteuid() != 0 {
		errs = append(errs, errors.New("the benchmark makes network namespaces: run it as root"))
	}
	if n := runtime.NumCPU(); n < 2 {
		errs = append(errs, fmt.Errorf("the benchmark needs 2 processors, one for each end; this machine has %d", n))
	}
	if rounds < 1 || slice < 10*time.Millisecond {
		errs = append(errs, fmt.Errorf("-rounds %d must be at least 1, -slice %s at least 10ms", rounds, slice))
	}
	return errors.Join(errs...)
}

// lock refuses a second run, which would share the namespaces and processors of this one. An
// abstract socket needs no file and ends with the process.
func lock() (unlock func() error, err error) {
	l, err := net.Listen("unix", "@pelago-bench")
	if err != nil {
		return nil, fmt.Errorf("another benchmark is running (or its end takes a moment): %w", err)
	}
	return l.Close, nil
}
