package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/pelago-net/pelago/test/hubset"
)

const (
	// pauseLength is how long the leader is suspended next to a second replica: longer than the
	// second one needs to take over. That one polls the lease every 2 to 2.4 s, counts its 15 s
	// from when it observes the last renewal, and acquires it at the next poll: up to 20 s. A
	// leader that is resumed earlier renews its lease, and rightly remains the leader.
	pauseLength = 25 * time.Second
	// leadLimit bounds the wait for a started hub to lead.
	leadLimit = time.Minute
	// working is the longest time that a hub may work before it is killed; the time is random.
	working = 3 * time.Second
)

// counts are what was done to the hub, and what came of it.
type counts struct {
	hub, api, paused int
	// ended is how often pelago-hub ended by itself, as it does when it loses its lease.
	ended int
	// leads are the times from each kill until the hub led again.
	leads []time.Duration
	// last is when the last kill was.
	last time.Time
}

// kills lets churn go on and kills pelago-hub or its API server again and again, n times.
func (s *stage) kills(ctx context.Context, n int) (done counts, err error) {
	rng := rand.New(rand.NewPCG(s.options.seed, 1))
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.churn.run(ctx, s.options.every, stop) }()
	defer func() {
		close(stop)
		if e := <-ended; err == nil {
			err = e
		}
	}()
	start := time.Now()
	if err := s.leading(ctx); err != nil {
		return done, err
	}
	for i := range n {
		if err := wait(ctx, time.Duration(rng.Int64N(int64(working)))); err != nil {
			return done, err
		}
		done.last = time.Now()
		switch {
		case (i+1)%s.options.pauseEvery == 0:
			done.paused++
			done.ended += s.replica.ended()
			err = s.pauseLeader(ctx, fmt.Sprintf("pelago-hub-%d", i+1))
		case rng.IntN(3) == 0:
			done.api++
			s.set.Server.KillAPI()
			if err = wait(ctx, time.Duration(rng.Int64N(int64(time.Second)))); err == nil {
				err = s.set.Server.StartAPI(ctx)
			}
		case rng.IntN(4) == 0:
			done.hub++
			done.ended += s.replica.ended()
			s.replica.retire()
			s.replica, err = startReplica(s.set, fmt.Sprintf("pelago-hub-%d", i+1))
		default:
			done.hub++
			s.replica.kill()
		}
		if err == nil {
			err = s.leading(ctx)
		}
		if err != nil {
			return done, err
		}
		done.leads = append(done.leads, time.Since(done.last))
		if (i+1)%10 == 0 {
			slog.Info("killed", "times", i+1, "operations", s.churn.done.Load(), "objects", s.history.Alive(),
				"violations", len(s.history.Violations()), "elapsed", time.Since(start).Round(time.Second))
		}
	}
	done.ended += s.replica.ended()
	return done, nil
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// leading waits until the hub works.
func (s *stage) leading(ctx context.Context) error {
	for end := time.Now().Add(leadLimit); ; {
		p, err := s.replica.current()
		if err != nil {
			return err
		}
		if leads(ctx, p) {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("pelago-hub does not lead within %v; its last words:\n%s", leadLimit, p.Tail())
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// leads reads from the metrics of a hub whether it is the leader. One that takes part in no
// election always is.
func leads(ctx context.Context, p *hubset.Process) bool {
	metrics, err := p.Metrics(ctx)
	if err != nil {
		return false
	}
	for series, value := range metrics {
		if strings.HasPrefix(series, "leader_election_master_status") && value == 0 {
			return false
		}
	}
	return true
}

// pauseLeader stops the hub where it is for longer than its lease, next to a second replica that
// takes over, and lets it go on: it must notice that it leads no more before it does harm. The
// second one stays.
func (s *stage) pauseLeader(ctx context.Context, name string) error {
	second, err := startReplica(s.set, name)
	if err != nil {
		return err
	}
	first := s.replica
	s.replica, s.former = second, first
	defer func() {
		first.retire()
		s.former = nil
	}()
	if err := wait(ctx, 3*time.Second); err != nil { // it fills its caches
		return err
	}
	p, err := first.current()
	if err != nil {
		return err
	}
	p.Pause()
	err = wait(ctx, pauseLength)
	p.Continue()
	if err != nil {
		return err
	}
	if err := s.leading(ctx); err != nil {
		return err
	}
	return wait(ctx, 5*time.Second) // what the first one had in hand when it was stopped
}
