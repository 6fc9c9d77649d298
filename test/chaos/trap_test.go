package main

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
)

// The nth write of pelago-hub kills, before it reaches the server or after; what is no write of
// propagation does not count.
func TestTrap(t *testing.T) {
	var mu sync.Mutex
	var arrived []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		arrived = append(arrived, r.Method+" "+r.URL.Path)
	}))
	defer server.Close()
	var tr trap
	defer tr.close()
	config, err := tr.through("hub", &rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	c, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	send := func(agent, method, path string) int {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User-Agent", agent)
		response, err := c.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := response.Body.Close(); err != nil {
			t.Error(err)
		}
		return response.StatusCode
	}
	for _, tt := range []struct {
		name  string
		after bool
		want  []string
	}{
		{"before", false, []string{"GET /a", "POST /b", "PATCH /leases/x", "POST /c", "PUT /e"}},
		{"after", true, []string{"GET /a", "POST /b", "PATCH /leases/x", "POST /c", "PUT /d", "PUT /e"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mu.Lock()
			arrived = nil
			mu.Unlock()
			kills := 0
			tr.set(2, tt.after, func() { kills++ })
			for _, r := range [][3]string{
				{"pelago-hub", "GET", "/a"}, {"chaos", "POST", "/b"}, {"pelago-hub/leader-election", "PATCH", "/leases/x"},
				{"pelago-hub", "POST", "/c"}, {"pelago-hub", "PUT", "/d"}, {"pelago-hub", "PUT", "/e"},
			} {
				send(r[0], r[1], r[2])
			}
			if diff := cmp.Diff(tt.want, arrived); diff != "" {
				t.Errorf("what reached the server, -want +got:\n%s", diff)
			}
			if at, when, writes := tr.state(); kills != 1 || at != "hub: PUT /d" || when.IsZero() || writes != 3 {
				t.Errorf("%d kills, at %q, %v, %d writes", kills, at, when, writes)
			}
		})
	}
	tr.set(1, false, func() { t.Error("killed, although disarmed") })
	tr.disarm()
	send("pelago-hub", "PUT", "/f")
	if at, _, writes := tr.state(); at != "" || writes != 1 {
		t.Errorf("disarmed: sprung at %q after %d writes", at, writes)
	}
	for _, away := range []bool{true, false} {
		tr.cut("hub", away)
		if code := send("pelago-hub", "GET", "/g"); (code == http.StatusBadGateway) != away {
			t.Errorf("cut off %t: status %d", away, code)
		}
	}
}
