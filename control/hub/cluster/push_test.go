package cluster

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/control/hub/member"
	"github.com/pelago-net/pelago/test/await"
)

// A run continues while its member is reached as before; another begins only after the former has
// ended, and nothing waits for that.
func TestRuns(t *testing.T) {
	var began, running, most atomic.Int32
	slow := make(chan struct{})
	r := newRuns(func(ctx context.Context, _ string, config *rest.Config) {
		began.Add(1)
		if n := running.Add(1); n > most.Load() {
			most.Store(n)
		}
		<-ctx.Done()
		if config.BearerToken == "first" {
			<-slow
		}
		running.Add(-1)
	}, time.Hour)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Start(ctx) }()

	start := func(token string) {
		t.Helper()
		if err := r.start("m1", member.Config{Endpoint: "https://m1", Token: token}); err != nil {
			t.Fatal(err)
		}
	}
	start("first")
	start("first")
	await.Equal(t, 1, func() int32 { return running.Load() })
	start("second") // does not wait for the first, which is slow
	start("third")  // the second has not begun, and need not
	close(slow)
	await.Equal(t, 1, func() int32 { return running.Load() })
	await.True(t, "the last one runs", func() bool { return began.Load() >= 2 && running.Load() == 1 })
	if most.Load() != 1 {
		t.Errorf("%d runs of one member at a time", most.Load())
	}
	r.stop("m1")
	await.Equal(t, 0, func() int32 { return running.Load() })
	start("fourth")
	await.Equal(t, 1, func() int32 { return running.Load() })
	cancel()
	if err := <-ended; err != nil || running.Load() != 0 {
		t.Errorf("%v; %d runs outlive the hub", err, running.Load())
	}
	start("fifth") // a reconcile that was under way
	if running.Load() != 0 {
		t.Error("a run begins after the hub has ended")
	}
}

func TestKeepRepeats(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	times, began := 0, time.Now()
	keep(ctx, slog.New(slog.DiscardHandler), "test", func(context.Context) error {
		if times++; times == 2 {
			cancel()
		}
		return errors.New("no")
	})
	if took := time.Since(began); times != 2 || took < time.Second {
		t.Errorf("%d times within %v, want a second time after a second", times, took)
	}
}
