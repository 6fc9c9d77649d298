package access

import (
	"context"
	"log/slog"
	"net/http"
	"testing"

	"github.com/pelago-net/pelago/test/await"
)

// TestProxyReady: a replica is ready from when it listens until it ends.
func TestProxyReady(t *testing.T) {
	s := &server{Options: Options{Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler)}, handler: http.NotFoundHandler(), tunnels: newTunnels("a")}
	if err := s.ready(nil); err == nil {
		t.Error("ready before it listens")
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error)
	go func() { ended <- s.Start(ctx) }()
	await.True(t, "it is ready", func() bool { return s.ready(nil) == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if err := s.ready(nil); err == nil {
		t.Error("ready after its end")
	}
}
