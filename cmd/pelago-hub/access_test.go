package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/await"
)

// TestBounded: no more requests are in flight than allowed, over all transports of one bound
// together and independently of another bound; a waiting request can be cancelled; none is lost.
func TestBounded(t *testing.T) {
	const allowed, all = 3, 20
	var mu sync.Mutex
	now, most := 0, 0
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		<-release
		mu.Lock()
		now--
		mu.Unlock()
	}))
	defer server.Close()
	one, other := bounded(allowed), bounded(allowed)
	clients := []*http.Client{{Transport: one(&http.Transport{})}, {Transport: one(&http.Transport{})}}
	apart := &http.Client{Transport: other(&http.Transport{})}
	var group sync.WaitGroup
	failed := make(chan error, 2*all)
	post := func(c *http.Client) {
		answer, err := c.Post(server.URL, "text/plain", strings.NewReader("x"))
		if err == nil {
			err = answer.Body.Close()
		}
		failed <- err
	}
	under := func() int {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	for i := range all {
		group.Go(func() { post(clients[i%2]) })
	}
	await.Equal(t, allowed, under)
	for range all {
		group.Go(func() { post(apart) })
	}
	await.Equal(t, 2*allowed, under)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	q, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("x"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = clients[0].Do(q)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "wait for 3 other requests") {
		t.Errorf("a request that gave up while it waited: %v", err)
	}
	close(release)
	group.Wait()
	for range 2 * all {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	if most != 2*allowed {
		t.Errorf("%d requests at a time, want %d", most, 2*allowed)
	}
}
