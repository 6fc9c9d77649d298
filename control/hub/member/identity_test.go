package member

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/pelago-net/pelago/control/execute/collect"
	"github.com/pelago-net/pelago/test/await"
)

const (
	firstID  = "7a1c2f0e-3d3a-4a55-9a0d-1f1f0a6b9a01"
	secondID = "7a1c2f0e-3d3a-4a55-9a0d-1f1f0a6b9a02"
)

// pushCluster is a member as far as it matters here.
type pushCluster struct {
	id       atomic.Value // string: UID of its namespace kube-system
	code     atomic.Int32 // of the answer that would tell it; 0: OK
	asked    atomic.Int32
	mu       sync.Mutex
	requests []string // all others
}

func newCluster(id string) *pushCluster {
	c := &pushCluster{}
	c.id.Store(id)
	return c
}

func (c *pushCluster) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	if q.URL.Path == "/api/v1/namespaces/kube-system" {
		c.asked.Add(1)
		if code := c.code.Load(); code != 0 {
			w.WriteHeader(int(code))
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"kube-system","uid":%q}}`, c.id.Load())
		return
	}
	body, err := io.ReadAll(q.Body)
	if err != nil {
		body = []byte(err.Error())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.requests = append(c.requests, q.Method+" "+string(body))
	w.WriteHeader(http.StatusOK)
}

func (c *pushCluster) seen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.requests, ", ")
}

// serve answers for a cluster at an address, a free one if it is empty. All servers have one
// certificate: it tells nothing.
func (c *pushCluster) serve(t *testing.T, address string, http2 bool) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(c)
	if address != "" {
		if err := s.Listener.Close(); err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		s.Listener = l
	}
	s.EnableHTTP2 = http2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// reached is how the hub works with a cluster that should be the first one.
func reached(t *testing.T, s *httptest.Server, id string) (*Link, *rest.RESTClient) {
	t.Helper()
	l, err := Config{Cluster: "m1", id: id, Endpoint: s.URL, Token: "t", ca: pemOf(s.Certificate().Raw)}.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.closeAll)
	d, err := discovery.NewDiscoveryClientForConfig(l.Config)
	if err != nil {
		t.Fatal(err)
	}
	return l, d.RESTClient().(*rest.RESTClient)
}

func put(ctx context.Context, c *rest.RESTClient, text string) error {
	return c.Put().AbsPath("/x").Body([]byte(text)).MaxRetries(0).Do(ctx).Error()
}

// says wants an error that names both clusters.
func says(t *testing.T, err error) {
	t.Helper()
	var other *collect.OtherCluster
	if !errors.As(err, &other) || other.Want != firstID || other.Have != secondID ||
		!strings.Contains(err.Error(), firstID) || !strings.Contains(err.Error(), secondID) {
		t.Errorf("%v, want words of both clusters", err)
	}
}

// Another cluster that takes over the address gets no request but the one for its identity, not
// even those that are under way; when the member is back all continues.
func TestAnotherClusterBehindTheAddress(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			member, other := newCluster(firstID), newCluster(secondID)
			s := member.serve(t, "", http2)
			l, c := reached(t, s, firstID)
			address := s.Listener.Addr().String()
			for _, text := range []string{"one", "two"} {
				if err := put(t.Context(), c, text); err != nil {
					t.Fatal(err)
				}
			}
			if asked := member.asked.Load(); asked != 1 {
				t.Errorf("asked %d times who it is, for one connection", asked)
			}
			ctx, stop := context.WithCancel(t.Context())
			var writers sync.WaitGroup
			for range 3 { // all the time
				writers.Go(func() {
					for ctx.Err() == nil {
						_ = put(ctx, c, "and on") // most fail; none may arrive
					}
				})
			}
			s.CloseClientConnections()
			s.Close()
			second := other.serve(t, address, http2)
			await.True(t, "the other cluster is found out", func() bool {
				var found *collect.OtherCluster
				return errors.As(put(t.Context(), c, "three"), &found)
			})
			says(t, put(t.Context(), c, "four"))
			says(t, c.Get().AbsPath("/readyz").MaxRetries(0).Do(t.Context()).Error())
			if got := other.seen(); got != "" || other.asked.Load() == 0 {
				t.Errorf("the other cluster was asked %d times who it is, and got %q", other.asked.Load(), got)
			}
			stop()
			writers.Wait()
			second.CloseClientConnections()
			second.Close()
			again := newCluster(firstID)
			again.serve(t, address, http2)
			ctx, stop = context.WithCancel(t.Context())
			defer stop()
			go l.Watch(ctx, 10*time.Millisecond)
			await.True(t, "the member is back", func() bool { return put(t.Context(), c, "five") == nil })
			if got := again.seen(); got != "PUT five" {
				t.Errorf("it got %q", got)
			}
		})
	}
}

// Behind a proxy that stays the cluster is found out by asking again.
func TestAnotherClusterBehindAProxy(t *testing.T) {
	member := newCluster(firstID)
	l, c := reached(t, member.serve(t, "", true), firstID)
	if err := put(t.Context(), c, "one"); err != nil {
		t.Fatal(err)
	}
	member.id.Store(secondID)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go l.Watch(ctx, 10*time.Millisecond)
	await.True(t, "it is found out", func() bool {
		_, other := l.identity.state()
		return other != nil
	})
	says(t, put(t.Context(), c, "two"))
	if got := member.seen(); got != "PUT one" {
		t.Errorf("it got %q", got)
	}
}

// Many requests at once share what was found, over however many connections.
func TestManyRequests(t *testing.T) {
	for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(name, func(t *testing.T) {
			member := newCluster(firstID)
			_, c := reached(t, member.serve(t, "", http2), firstID)
			var all sync.WaitGroup
			var failed atomic.Int32
			for range 4 {
				all.Go(func() {
					for range 25 {
						if put(t.Context(), c, "x") != nil {
							failed.Add(1)
						}
					}
				})
			}
			all.Wait()
			if n := failed.Load(); n > 0 {
				t.Errorf("%d of 100 requests failed", n)
			}
		})
	}
}

// A response that does not identify the cluster is returned to the request: it shows what has to be
// done. A response that would be mistaken for one about the requested object (404) becomes an
// error.
func TestAnswersThatTellNothing(t *testing.T) {
	member := newCluster(firstID)
	_, c := reached(t, member.serve(t, "", true), firstID)
	for _, code := range []int32{http.StatusUnauthorized, http.StatusForbidden, http.StatusServiceUnavailable} {
		member.code.Store(code)
		var got int
		err := c.Put().AbsPath("/x").Body([]byte("x")).MaxRetries(0).Do(t.Context()).StatusCode(&got).Error()
		if err == nil || got != int(code) {
			t.Errorf("%d becomes %d, %v", code, got, err)
		}
	}
	member.code.Store(http.StatusNotFound)
	var got int
	err := c.Get().AbsPath("/x").MaxRetries(0).Do(t.Context()).StatusCode(&got).Error()
	if err == nil || got != 0 || !strings.Contains(err.Error(), "no namespace kube-system") {
		t.Errorf("404 becomes %d, %v", got, err)
	}
	if got := member.seen(); got != "" {
		t.Errorf("it got %q", got)
	}
}

// An id that is no UID (a ClusterProperty, none) cannot be compared.
func TestUnknownID(t *testing.T) {
	for _, id := range []string{"", "m1"} {
		member := newCluster(secondID)
		l, c := reached(t, member.serve(t, "", true), id)
		if err := put(t.Context(), c, "one"); err != nil {
			t.Errorf("id %q: %v", id, err)
		}
		l.Watch(t.Context(), time.Nanosecond) // returns
		if n := member.asked.Load(); n != 0 {
			t.Errorf("id %q: asked %d times", id, n)
		}
	}
}
