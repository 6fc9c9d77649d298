// Command suites runs the suites of `make test` and `make test-full`, or those that are named, and prints at the end what took
// the time, what failed and what failed only once. It is started in the repository's root by the Makefile, which makes first what
// the suites need.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	full := flag.Bool("full", false, "also run the long series and the rare variants")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "go run ./test/suites [-full] [SUITE…]")
		for _, s := range suites {
			fmt.Fprintf(flag.CommandLine.Output(), "  %-10s %s\n", s.name, s.about)
		}
	}
	flag.Parse()
	chosen, err := choose(flag.Args(), *full)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	// A signal to the terminal reaches the tests as well. They take down what they made, and no further suite begins.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed := false
	var results []result
	flakyDir := dir("flaky", time.Now().Format("20060102-150405"))
	for _, s := range chosen {
		if ctx.Err() != nil {
			break
		}
		fmt.Printf("\n=== %s: %s\n", s.name, s.about)
		r := run(s, flakyDir)
		failed = failed || r.err != nil
		results = append(results, r)
	}
	report(os.Stdout, results, flakyDir)
	if failed || ctx.Err() != nil {
		os.Exit(1)
	}
}

// choose returns the named suites, or those of `make test`, or all, in their order.
func choose(names []string, full bool) ([]suite, error) {
	var chosen []suite
	for _, s := range suites {
		if full {
			s.flags = slices.Concat(s.flags, s.fullFlags)
		}
		if slices.Contains(names, s.name) || len(names) == 0 && (full || !s.full) {
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
func run(s suite, flakyDir string) result {
	begin := time.Now()
	r := result{suite: s}
	r.outcome, r.err = execute(s)
	r.took = time.Since(begin)
	r.err = errors.Join(r.err, r.keepLogs(flakyDir))
	return r
}

func execute(s suite) (outcome, error) {
	events := dir("test", s.name+".json")
	if err := os.MkdirAll(filepath.Dir(events), 0o755); err != nil {
		return outcome{}, fmt.Errorf("make the directory of the results: %w", err)
	}
	packages, err := s.expand()
	if err != nil {
		return outcome{}, err
	}
	cmd := s.command(packages, events)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := os.Remove(events); err != nil && !errors.Is(err, os.ErrNotExist) { // of an earlier run
		return outcome{}, fmt.Errorf("remove the results of an earlier run: %w", err)
	}
	failure := cmd.Run()
	if s.target != "" {
		return outcome{}, failure
	}
	f, err := os.Open(events)
	if err != nil {
		return outcome{}, errors.Join(failure, fmt.Errorf("read the results: %w", err))
	}
	defer f.Close()
	o, err := readOutcome(f)
	return o, errors.Join(failure, err, o.unfinished(packages))
}

// commandError adds what a command wrote to its standard error.
func commandError(doing string, err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && len(exit.Stderr) > 0 {
		return fmt.Errorf("%s: %w: %s", doing, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return fmt.Errorf("%s: %w", doing, err)
}
