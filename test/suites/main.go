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

// runAll runs suites one after the other, and those of the background at the same time, at idle
// priority; their output is kept until all have ended.
func runAll(ctx context.Context, chosen []suite, flakyDir string) (results []result) {
	sequence := func(suites []suite, out io.Writer, idle bool) (results []result) {
		for _, s := range suites {
			if ctx.Err() != nil {
				break
			}
			fmt.Fprintf(out, "\n=== %s: %s\n", s.name, s.about)
			results = append(results, run(s, out, idle, flakyDir))
		}
		return results
	}
	first, foreground, background := order(chosen, os.Geteuid() == 0)
	results = sequence(first, os.Stdout, false)
	var log bytes.Buffer
	var others []result
	var wait sync.WaitGroup
	if len(background) > 0 {
		fmt.Println("\n=== lint runs in the background, at idle priority; its output comes at the end")
		wait.Go(func() { others = sequence(background, &log, true) })
	}
	results = append(results, sequence(foreground, os.Stdout, false)...)
	wait.Wait()
	removeIdle()
	_, _ = log.WriteTo(os.Stdout) // a screen that is gone is no failure of the tests
	return append(results, others...)
}

// order returns what runs before all others, and what runs in the foreground and in the background.
// There is no background without a foreground, nor without idle priority: two commands that compile
// the same packages at the same time compile them twice.
func order(chosen []suite, root bool) (first, foreground, background []suite) {
	for _, s := range chosen {
		switch {
		case s.target == "verify", s.target == "generated":
			first = append(first, s) // it writes the files that all others compile
		case s.background && root:
			background = append(background, s)
		default:
			foreground = append(foreground, s)
		}
	}
	if len(foreground) == 0 {
		return first, background, nil
	}
	return first, foreground, background
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
func run(s suite, out io.Writer, idle bool, flakyDir string) result {
	begin := time.Now()
	r := result{suite: s}
	r.outcome, r.err = execute(s, out, idle)
	r.took = time.Since(begin)
	r.err = errors.Join(r.err, r.keepLogs(flakyDir))
	return r
}

func execute(s suite, out io.Writer, idle bool) (outcome, error) {
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
	if failure == nil && idle {
		if err := runIdle(cmd.Process.Pid); err != nil {
			fmt.Fprintln(out, "warning: the background slows down the other suites:", err)
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
