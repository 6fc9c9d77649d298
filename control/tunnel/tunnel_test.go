package tunnel

import (
	"context"
	"encoding/pem"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/test/await"
)

// TestTunnelPauses: a hub that accepts tunnels and ends them at once is not asked in a loop.
func TestTunnelPauses(t *testing.T) {
	var attempts atomic.Int32
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		attempts.Add(1)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		// the client may have gone
		_, _ = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: yamux\r\n\r\n"))
		conn.Close()
	}))
	defer hub.Close()
	ctx, cancel := context.WithCancel(t.Context())
	tunnel := &Agent{Cluster: "m1", Server: hub.URL, CA: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw}),
		Token: func() string { return "t" }, Member: &rest.Config{Host: "https://127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler)}
	ended := make(chan error, 1)
	go func() { ended <- tunnel.Start(ctx) }()
	await.True(t, "the agent attaches", func() bool { return attempts.Load() > 1 })
	await.Never(t, 3*time.Second, "the agent attaches in a loop", func() bool { return attempts.Load() > 8 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestTunnelNamesUser: what comes through the tunnel without a user would have the rights of the
// agent.
func TestTunnelNamesUser(t *testing.T) {
	var user, authorization string
	member := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		user, authorization = q.Header.Get("Impersonate-User"), q.Header.Get("Authorization")
	}))
	defer member.Close()
	tunnel := &Agent{Member: &rest.Config{Host: member.URL, BearerToken: "agent"}, Log: slog.New(slog.DiscardHandler)}
	h, err := tunnel.handler()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		user, group string
		want        int
	}{
		"alice":            {"alice", "dev", http.StatusOK},
		"nobody":           {"", "", http.StatusForbidden},
		"an administrator": {"alice", "system:masters", http.StatusForbidden},
	} {
		user, authorization = "", ""
		q := httptest.NewRequest(http.MethodGet, "/version", nil)
		q.Header.Set("Authorization", "Bearer other")
		q.Header.Set("Impersonate-User", c.user)
		q.Header.Set("Impersonate-Group", c.group)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, q)
		if w.Code != c.want {
			t.Errorf("%s: status %d, want %d", name, w.Code, c.want)
		}
		if c.want == http.StatusOK && (user != c.user || authorization != "Bearer agent") {
			t.Errorf("%s arrives as %q with %q", name, user, authorization)
		}
		if c.want != http.StatusOK && authorization != "" {
			t.Errorf("%s arrives", name)
		}
	}
}
