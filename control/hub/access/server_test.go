package access

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"sigs.k8s.io/controller-runtime/pkg/client"

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

// away is an API server that does not answer.
type away struct {
	client.Reader
	reads int
}

func (a *away) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	a.reads++
	return errors.New("connection refused")
}

// TestMaterialWithoutTheAPIServer: requests use what was read before, and do not ask again each.
func TestMaterialWithoutTheAPIServer(t *testing.T) {
	api := &away{}
	s := &server{live: api}
	for range 100 {
		if _, _, err := s.material(t.Context()); err == nil {
			t.Fatal("no error before the first success")
		}
	}
	s.front, s.read, s.tried = anonymous.NewAuthenticator(nil), time.Now().Add(-2*reload), time.Time{}
	for range 100 {
		if _, front, err := s.material(t.Context()); err != nil || front == nil {
			t.Fatalf("what was read before is not used: %v", err)
		}
	}
	if api.reads == 0 || api.reads > 8 { // two of an attempt, an attempt for each of the two, and a slow machine
		t.Errorf("%d reads for 200 requests", api.reads)
	}
}
