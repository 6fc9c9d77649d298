// Command chaos breaks a hub while users change what it propagates, and then compares what is in
// the members with what the objects at the hub request: `make chaos`. It exits with code 1 if
// anything was duplicated, lost, left behind, recreated or wrongly deleted.
//
//	go run ./test/chaos -kills 100 -seed 1 -out out/chaos.json
//	go run ./test/chaos -scenarios older,new-uids
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
	program.QuietClients() // it breaks connections on purpose
	program.Main("chaos", run)
}

type options struct {
	bin, file, dir, hubFlags string
	changes                  string
	members, simulated       int
	kills, templates         int
	pauseEvery               int
	seed                     uint64
	every, churn, lag, limit time.Duration
}

// scenario is one way to break a hub. Ties between clusters for a replica are broken by the
// template's UID: in a scenario that changes UIDs, a hub may rightly decide differently than
// before.
type scenario struct {
	name, title string
	run         func(ctx context.Context, s *stage, r *result) error
	trapped     bool // a trap lies on the product's ways
	decisive    bool // no two clusters have the same claim to a replica
}

func scenarios() []scenario {
	return []scenario{
		{"kills", "pelago-hub and the hub's API server killed at random during churn, and the leader stopped beside a second replica",
			kills, false, false},
		{"each-write", "pelago-hub killed at each write that a change causes, before it and after it", eachWrite, true, false},
		{"older", "the hub restored from a backup that is older than the members", func(ctx context.Context, s *stage,
			r *result) (err error) {
			r.violations, err = s.older(ctx)
			return err
		}, false, false},
		{"new-uids", "the users' objects exported and imported into an empty hub", func(ctx context.Context, s *stage,
			r *result) (err error) {
			r.violations, err = s.newUIDs(ctx, false)
			return err
		}, false, true},
		{"new-uids-all", "the same with bindings and Works, whose owner references point nowhere then", func(ctx context.Context,
			s *stage, r *result) (err error) {
			r.violations, err = s.newUIDs(ctx, true)
			return err
		}, false, true},
		{"new-hub", "the same in a new cluster: the hub's id is another one until somebody says whose place it has taken", func(
			ctx context.Context, s *stage, r *result) (err error) {
			r.violations, err = s.newHub(ctx)
			return err
		}, false, true},
	}
}

func nameOf(s scenario) string { return s.name }

func run(args []string, out io.Writer) error {
	var o options
	flags := flag.NewFlagSet("chaos", flag.ExitOnError)
	flags.StringVar(&o.bin, "bin", "bin", "directory of the product's programs")
	flags.StringVar(&o.file, "out", "out/chaos.json", "result file")
	flags.StringVar(&o.dir, "dir", "out/chaos", "directory for the logs of the hub, emptied at the start")
	flags.StringVar(&o.hubFlags, "hub-flags", "", "more flags of pelago-hub, separated by blanks")
	flags.IntVar(&o.members, "members", 2, "members with real API servers")
	flags.IntVar(&o.simulated, "simulated", 2, "simulated members beside them")
	flags.StringVar(&o.changes, "changes", "", "comma-separated kinds of change in the scenario each-write (default: all)")
	flags.IntVar(&o.kills, "kills", 100, "kills in the scenario of that name")
	flags.IntVar(&o.pauseEvery, "pause-every", 25, "every how many kills one is a pause of the leader instead")
	flags.IntVar(&o.templates, "templates", 20, "templates at the start; churn makes up to 60 of them")
	flags.Uint64Var(&o.seed, "seed", uint64(time.Now().UnixNano()), "seed of the random changes and kills")
	flags.DurationVar(&o.every, "every", 150*time.Millisecond, "mean time between two changes")
	flags.DurationVar(&o.churn, "churn", 30*time.Second, "length of the churn before a restore, and before its backup")
	flags.DurationVar(&o.lag, "lag", time.Minute, "how late the hub may act on what a user asked for while it was away")
	flags.DurationVar(&o.limit, "limit", 3*time.Minute, "how long members may take at the end until they hold what is wanted")
	names := flags.String("scenarios", "", "comma-separated scenarios (default: "+strings.Join(program.Names(scenarios(), nameOf), ",")+")")
	if err := flags.Parse(args); err != nil {
		return err
	}
	chosen, err := program.Choose("scenario", *names, scenarios(), nameOf)
	if err != nil {
		return err
	}
	if o.kills < 1 || o.pauseEvery < 1 || o.members+o.simulated < 2 {
		return fmt.Errorf("-kills %d and -pause-every %d must be at least 1, -members and -simulated together at least 2", o.kills, o.pauseEvery)
	}
	if o.dir, err = program.Emptied(o.dir); err != nil {
		return err
	}
	ctx, cancel := program.Context()
	defer cancel()
	slog.Info("chaos begins", "seed", o.seed, "scenarios", *names)

	var results []result
	var failures []error
	for _, sc := range chosen {
		r := result{scenario: sc.name}
		if err := play(ctx, o, sc, &r); err != nil {
			failures = append(failures, fmt.Errorf("scenario %s: %w", sc.name, err))
			slog.Error("a scenario failed", "scenario", sc.name, "error", err)
		} else {
			results = append(results, r)
			slog.Info("scenario done", "scenario", sc.name, "violations", len(r.violations))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(append(failures, report(out, o.file, results), verdict(results))...)
}

// play sets a stage of its own for a scenario.
func play(ctx context.Context, o options, sc scenario, r *result) (err error) {
	slog.Info("scenario", "name", sc.name, "what", sc.title)
	s, err := newStage(ctx, o, sc)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	start := time.Now()
	if err := sc.run(ctx, s, r); err != nil {
		return err
	}
	r.took, r.operations = time.Since(start), int(s.churn.done.Load())
	if len(r.violations) > 0 {
		return s.record(ctx)
	}
	return nil
}

// verdict fails on any violation.
func verdict(results []result) error {
	var errs []error
	for _, r := range results {
		if len(r.violations) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d violations, the first: %s", r.scenario, len(r.violations), r.violations[0]))
		}
	}
	return errors.Join(errs...)
}
