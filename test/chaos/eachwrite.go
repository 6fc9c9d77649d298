package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pelago-net/pelago/test/program"
)

const (
	// quiet is how long there are no writes when the hub is done with a change.
	quiet = 500 * time.Millisecond
	// misses is how many changes in a row must make fewer writes than the trap waits for before
	// their kind is regarded as done.
	misses = 6
	// maxWrites bounds how many writes a change may cause, before something is thought to go round
	// in circles.
	maxWrites = 200
	// eachWriteLag is the history's Lag here: every change is waited for, and the API server is
	// always there.
	eachWriteLag = 20 * time.Second
)

// kindOfChange is one at whose writes the hub is killed.
type kindOfChange struct {
	name   string
	change func(context.Context) error
	// ready waits until the change can be made; nil: it can.
	ready func(context.Context) error
}

// eachWrite is the scenario of that name: of each kind of change, pelago-hub is killed at the first
// write that it causes, at the second and so on, once before and once after the server has it.
func eachWrite(ctx context.Context, s *stage, r *result) error {
	s.history.Lag = eachWriteLag
	var err error
	if s.evicted, err = newEvicted(ctx, s); err != nil {
		return err
	}
	all := append([]kindOfChange{
		{"a new template", s.churn.newTemplate, nil}, {"a deleted template", s.churn.deleteTemplate, nil},
		{"another placement", s.churn.replace, nil}, {"another group", s.churn.regroup, nil}, {"an override", s.churn.override, nil},
		{"a policy made again", func(ctx context.Context) error {
			return errors.Join(s.churn.dropPolicy(ctx), s.churn.restorePolicy(ctx))
		}, nil},
	}, s.evicted.evictions()...)
	chosen, err := program.Choose("change", s.options.changes, all, func(k kindOfChange) string { return k.name })
	if err != nil {
		return err
	}
	for _, kind := range chosen {
		for _, after := range []bool{false, true} {
			if err := s.level(ctx); err != nil {
				return err
			}
			n, err := s.eachWriteOf(ctx, kind, after, r)
			slog.Info("killed at each write", "change", kind.name, "after the write", after, "writes", n)
			if err == nil && n == 0 {
				err = fmt.Errorf("%s: the hub was killed at no write", kind.name)
			}
			if err != nil || len(r.violations) > 0 {
				return err
			}
		}
	}
	return nil
}

// level has as many templates as at the start, so that there is something to delete, and room for
// more. No process is killed meanwhile.
func (s *stage) level(ctx context.Context) error {
	s.trap.disarm()
	for tries := 0; len(s.churn.deployments) != s.options.templates; tries++ {
		if tries > 10*maxTemplates { // a change may be none, where a name is taken
			return fmt.Errorf("there are %d templates and are to be %d", len(s.churn.deployments), s.options.templates)
		}
		change := s.churn.newTemplate
		if len(s.churn.deployments) > s.options.templates {
			change = s.churn.deleteTemplate
		}
		if err := change(ctx); err != nil {
			return err
		}
	}
	return s.settled(ctx)
}

// eachWriteOf kills the hub at the first, second … write that a kind of change causes, until there
// are no more, and returns how many there were.
func (s *stage) eachWriteOf(ctx context.Context, kind kindOfChange, after bool, r *result) (n int, err error) {
	for missed := 0; missed < misses; {
		if n >= maxWrites {
			return n, fmt.Errorf("a change causes more than %d writes", maxWrites)
		}
		if kind.ready != nil {
			s.trap.disarm()
			if err := kind.ready(ctx); err != nil {
				return n, err
			}
		}
		s.trap.set(n+1, after, s.replica.kill)
		if err := kind.change(ctx); err != nil {
			return n, err
		}
		s.churn.done.Add(1)
		if err := s.settled(ctx); err != nil {
			return n, err
		}
		write, killed, _ := s.trap.state()
		if write == "" {
			missed++
			continue
		}
		missed, n = 0, n+1
		r.counts.hub++
		r.counts.last = killed
		if err := s.leading(ctx); err != nil {
			return n, err
		}
		r.counts.leads = append(r.counts.leads, time.Since(killed))
		if r.violations, _, err = s.converged(ctx, false); err != nil {
			return n, err
		}
		r.converged = max(r.converged, time.Since(killed))
		r.violations = append(append(r.violations, s.history.Violations()...), s.evicted.violations()...)
		if len(r.violations) > 0 {
			slog.Error("a violation", "killed at", write, "after the write", after)
			return n, nil
		}
	}
	return n, nil
}

// settled waits until the trap has sprung, or the hub has not written for a while and all is as
// wanted.
func (s *stage) settled(ctx context.Context) error {
	before, since := -1, time.Now()
	for end := time.Now().Add(s.options.limit); time.Now().Before(end); {
		sprung, _, written := s.trap.state()
		if sprung != "" {
			return nil
		}
		if written != before {
			before, since = written, time.Now()
		}
		if time.Since(since) > quiet {
			if violations, err := s.compare(ctx, false); err == nil && len(violations) == 0 {
				return nil
			}
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
	return nil // what is missing shows itself
}
