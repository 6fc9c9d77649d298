package kube

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/client-go/rest"
)

// TestTunnelNamesUser: what comes through the tunnel without a user would have the rights of the agent.
func TestTunnelNamesUser(t *testing.T) {
	var user, authorization string
	member := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		user, authorization = q.Header.Get("Impersonate-User"), q.Header.Get("Authorization")
	}))
	defer member.Close()
	tunnel := &Tunnel{Member: &rest.Config{Host: member.URL, BearerToken: "agent"}, Log: slog.New(slog.DiscardHandler)}
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
