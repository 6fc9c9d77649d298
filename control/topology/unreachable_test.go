package topology

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDamper(t *testing.T) {
	start := time.Unix(1_700_000_000, 0)
	var d UnreachableClustersDamper
	for _, step := range []struct {
		at   time.Duration
		seen map[string]bool
		want []string
	}{
		{0, map[string]bool{"g2": false, "g3": false}, []string{}},
		{time.Second, map[string]bool{"g2": true, "g3": false}, []string{"g2"}},
		{2 * time.Second, map[string]bool{"g2": false, "g3": true}, []string{"g2", "g3"}},
		{4 * time.Second, map[string]bool{"g2": false, "g3": true}, []string{"g2", "g3"}},
		{5 * time.Second, map[string]bool{"g2": false, "g3": false}, []string{"g3"}},
		{6 * time.Second, map[string]bool{"g2": false, "g3": true}, []string{"g3"}}, // g3 flaps
		{7 * time.Second, map[string]bool{"g2": false, "g3": false}, []string{"g3"}},
		{9 * time.Second, map[string]bool{"g2": false, "g3": false}, []string{"g3"}},
		{10 * time.Second, map[string]bool{"g2": false, "g3": false}, []string{}},
		{11 * time.Second, map[string]bool{"g2": true, "g3": true}, []string{"g2", "g3"}},
		// g2 has left the clusterset
		{12 * time.Second, map[string]bool{"g3": true}, []string{"g3"}},
	} {
		if diff := cmp.Diff(step.want, d.Note(step.seen, start.Add(step.at))); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step.at, diff)
		}
	}
}

// serve runs a server until the returned function is called.
func serve(t *testing.T, s *UnreachableClustersServer, socket string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, socket) }()
	return func() {
		t.Helper()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func next(t *testing.T, got <-chan []string, want ...string) {
	t.Helper()
	select {
	case dead := <-got:
		if diff := cmp.Diff(append([]string{}, want...), dead); diff != "" {
			t.Errorf("dead (-want +got):\n%s", diff)
		}
	case <-time.After(3 * time.Minute):
		t.Fatalf("nothing came; want %v", want)
	}
}

// A watcher hears the verdict at once and every change, and keeps it over a restart of the server.
func TestWatch(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "verdict.sock")
	got := make(chan []string, 10)
	watching, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		WatchUnreachableClusters(watching, socket, func(d []string) { got <- d }, slog.New(slog.DiscardHandler))
	}()
	defer func() { end(); <-done }()

	first := NewUnreachableClustersServer()
	stop := serve(t, first, socket)
	first.Publish(nil) // also that none is dead: an agent before may have found one
	next(t, got)
	first.Publish([]string{"g3", "g2"})
	next(t, got, "g2", "g3")
	first.Publish([]string{"g2", "g3"}) // nothing new
	first.Publish([]string{"g3"})
	next(t, got, "g3")
	stop()

	second := NewUnreachableClustersServer()
	stop = serve(t, second, socket)
	defer stop()
	time.Sleep(2 * again) // a server that knows nothing yet says nothing
	if len(got) > 0 {
		t.Errorf("after a restart: %v", <-got)
	}
	second.Publish(nil)
	next(t, got)
}

// If no server ever appears, no cluster is dead after a while: a watcher must not keep the verdict
// of a previous watcher for ever.
func TestWatchWithoutServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "verdict.sock")
	var at []time.Duration
	var verdicts [][]string
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 3*keep)
		defer cancel()
		start := time.Now()
		WatchUnreachableClusters(ctx, socket, func(d []string) {
			at, verdicts = append(at, time.Since(start)), append(verdicts, d)
		}, slog.New(slog.DiscardHandler))
	})
	if diff := cmp.Diff([][]string{{}}, verdicts); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if at[0] < keep || at[0] > keep+2*time.Second {
		t.Errorf("after %s; want %s", at[0], keep)
	}
}

// Without a server for long, no cluster is dead: the verdict of a node whose daemon is gone must
// not stand for ever.
func TestWatchForgets(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "verdict.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = c.Write([]byte(`{"dead":["g2"]}` + "\n"))
			err = errors.Join(err, c.Close())
		}
		served <- errors.Join(err, l.Close()) // nobody listens any more
	}()
	var at []time.Duration
	var verdicts [][]string
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), keep+5*time.Second)
		defer cancel()
		start := time.Now()
		WatchUnreachableClusters(ctx, socket, func(d []string) {
			at, verdicts = append(at, time.Since(start)), append(verdicts, d)
		}, slog.New(slog.DiscardHandler))
	})
	if diff := cmp.Diff([][]string{{"g2"}, {}}, verdicts); diff != "" {
		t.Fatalf("-want +got:\n%s", diff)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if d := at[1] - at[0]; d < keep || d > keep+2*time.Second {
		t.Errorf("forgotten after %s; want %s", d, keep)
	}
}
