// Command suites runs the suites of a tier (-tier), or those named as arguments, and reports
// durations, failures, flaky tests and tests that are left out. The Makefile runs it in the
// repository's root, after building what the suites need.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	tier := flag.String("tier", tierTest, "which suites, if none is named: "+strings.Join(tiers, ", "))
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "go run ./test/suites [-tier TIER] [SUITE…]")
		for _, s := range suites {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-10s %-12s %s\n", s.name, strings.Join(s.tiers, ", "), s.about)
		}
	}
	flag.Parse()
	chosen, err := choose(flag.Args(), *tier)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// A signal to the terminal reaches the tests as well. They take down what they made, and no
	// further suite begins.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	begin := time.Now()
	flakyDir := dir("flaky", begin.Format("20060102-150405"))
	results := runAll(ctx, chosen, flakyDir)
	report(os.Stdout, results, time.Since(begin), flakyDir)
	if ctx.Err() != nil || slices.ContainsFunc(results, func(r result) bool { return r.err != nil }) {
		os.Exit(1)
	}
}

// runAll runs suites in their places; the output of those that run at the same time as others is
// kept until these have ended.
func runAll(ctx context.Context, chosen []suite, flakyDir string) (results []result) {
	sequence := func(suites []suite, out io.Writer) (results []result) {
		for _, s := range suites {
			if ctx.Err() != nil {
				break
			}
			fmt.Fprintf(out, "\n=== %s: %s\n", s.name, s.about)
			results = append(results, run(s, out, flakyDir))
		}
		return results
	}
	places := arrange(chosen)
	results = sequence(places[first], os.Stdout)
	var logs [alone]bytes.Buffer
	var others [alone][]result
	var wait sync.WaitGroup
	for _, p := range []place{beside, background} {
		if len(places[p]) > 0 {
			fmt.Printf("\n=== at the same time: %s; its output comes at the end\n", strings.Join(suiteNames(places[p]), ", "))
			wait.Go(func() { others[p] = sequence(places[p], &logs[p]) })
		}
	}
	results = append(results, sequence(places[inTurn], os.Stdout)...)
	wait.Wait()
	removeIdle()
	for p := range others {
		_, _ = logs[p].WriteTo(os.Stdout) // a screen that is gone is no failure of the tests
		results = append(results, others[p]...)
	}
	return append(results, sequence(places[alone], os.Stdout)...)
}

// arrange returns the suites of each place, in their order. Where nothing runs in turn, they run
// one after the other with all of the CPU time.
func arrange(chosen []suite) map[place][]suite {
	places := make(map[place][]suite)
	for _, s := range chosen {
		places[s.place] = append(places[s.place], s)
	}
	if len(places[inTurn]) > 0 {
		return places
	}
	for _, p := range []place{beside, background} {
		for _, s := range places[p] {
			s.place = inTurn
			places[inTurn] = append(places[inTurn], s)
		}
		delete(places, p)
	}
	return places
}

func suiteNames(suites []suite) (names []string) {
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// choose returns the named suites, or those of a tier, in their order.
func choose(names []string, tier string) ([]suite, error) {
	if !slices.Contains(tiers, tier) {
		return nil, fmt.Errorf("unknown tier %q: the tiers are %s", tier, strings.Join(tiers, ", "))
	}
	var chosen []suite
	for _, s := range suites {
		if slices.Contains(names, s.name) || len(names) == 0 && slices.Contains(s.tiers, tier) {
			chosen = append(chosen, s)
		}
	}
	for _, name := range names {
		if !slices.ContainsFunc(suites, func(s suite) bool { return s.name == name }) {
			return nil, fmt.Errorf("unknown suite %q: `go run ./test/suites -h` lists them", name)
		}
	}
	return chosen, nil
}

// run runs a suite and reads what its tests reported.
func run(s suite, out io.Writer, flakyDir string) result {
	begin := time.Now()
	r := result{suite: s}
	r.outcome, r.err = execute(s, out)
	r.took = time.Since(begin)
	r.err = errors.Join(r.err, r.keepLogs(flakyDir))
	return r
}

func execute(s suite, out io.Writer) (outcome, error) {
	events := dir("test", s.name+".json")
	if err := os.MkdirAll(filepath.Dir(events), 0o755); err != nil {
		return outcome{}, fmt.Errorf("make the directory of the results: %w", err)
	}
	packages, err := s.expand()
	if err != nil {
		return outcome{}, err
	}
	cmd := s.command(packages, events)
	cmd.Stdout, cmd.Stderr = out, out
	// of an earlier run
	if err := os.Remove(events); err != nil && !errors.Is(err, os.ErrNotExist) {
		return outcome{}, fmt.Errorf("remove the results of an earlier run: %w", err)
	}
	failure := cmd.Start()
	if failure == nil {
		if err := s.place.prioritize(cmd.Process.Pid); err != nil {
			fmt.Fprintf(out, "warning: %s slows down the other suites: %v\n", s.name, err)
		}
	}
	if failure == nil {
		failure = cmd.Wait()
	}
	if s.target != "" {
		return outcome{}, failure
	}
	f, err := os.Open(events)
	if err != nil {
		return outcome{}, errors.Join(failure, fmt.Errorf("read the results: %w", err))
	}
	defer f.Close()
	o, err := readOutcome(f)
	return o, errors.Join(failure, err, o.unfinished(packages), o.skips(slices.Contains(s.tiers, tierCheck)))
}

// commandError adds what a command wrote to its standard error.
func commandError(doing string, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%s: %w: %s", doing, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return fmt.Errorf("%s: %w", doing, err)
}
