package node

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"
)

const (
	// writeTime bounds one write to the API server.
	writeTime = 10 * time.Second
	// spread of the RouteAgents' writes: when a gateway dies all nodes have something to say at once.
	spread = time.Second
)

// outbox takes the newest value to the API server in its own time, so that who makes values never waits for a server that
// is away. Only one goroutine may put.
type outbox[T any] struct{ next chan T }

func newOutbox[T any]() outbox[T] { return outbox[T]{make(chan T, 1)} }

// put replaces a value that was not taken yet.
func (o outbox[T]) put(v T) {
	select {
	case <-o.next:
	default:
	}
	o.next <- v
}

// run writes until ctx ends, each value up to delay after it came, the newest again until it is written.
func (o outbox[T]) run(ctx context.Context, delay time.Duration, write func(context.Context, T) error, log *slog.Logger) {
	said, pause := "", time.Duration(0)
	for {
		var v T
		select {
		case <-ctx.Done():
			return
		case v = <-o.next:
		}
		for wait := jitter(delay); ; wait = pause + jitter(delay) {
			if v = o.latest(ctx, v, wait); ctx.Err() != nil {
				return
			}
			err := o.try(ctx, v, write)
			if err == nil {
				said = ""
				break
			}
			if ctx.Err() == nil && err.Error() != said {
				said = err.Error()
				log.Error("report to the API server", "error", err)
			}
			pause = retry
		}
	}
}

// latest waits, and returns what came meanwhile, or v.
func (o outbox[T]) latest(ctx context.Context, v T, wait time.Duration) T {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	select {
	case v = <-o.next:
	default:
	}
	return v
}

func (o outbox[T]) try(ctx context.Context, v T, write func(context.Context, T) error) error {
	ctx, cancel := context.WithTimeout(ctx, writeTime)
	defer cancel()
	return write(ctx, v)
}

func jitter(most time.Duration) time.Duration {
	if most == 0 {
		return 0
	}
	return rand.N(most)
}
