package main

import (
	"fmt"
	"net/http"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/transport"
)

// requestsInFlight is how many requests the controllers make at a time to the hub's API server, statuses of Works and all others
// each; what is more waits here, in its order. An API server with much to do answers no sooner if there are more: its priority and
// fairness queues them, refuses those that have waited for 15 s (429) and makes them come back a second later, the renewal of the
// leader's lease among them. What fills a cache is not counted, and the lease goes its own way.
//
// Statuses of Works are apart since eight workers for each member write them: what the few workers of other controllers do would
// wait behind hundreds.
const requestsInFlight = 32

// bounded lets only so many requests of each kind be under way, each from when it is sent until the answer begins.
func bounded(n int) transport.WrapperFunc {
	statuses, others := make(chan struct{}, n), make(chan struct{}, n)
	return func(next http.RoundTripper) http.RoundTripper { return &boundedTransport{statuses, others, next} }
}

type boundedTransport struct {
	statuses, others chan struct{}
	next             http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = &boundedTransport{}

// RoundTrip implements http.RoundTripper.
func (b *boundedTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	slots := b.others
	if strings.Contains(q.URL.Path, "/works/") && strings.HasSuffix(q.URL.Path, "/status") {
		slots = b.statuses
	}
	select {
	case slots <- struct{}{}:
	case <-q.Context().Done():
		if q.Body != nil {
			_ = q.Body.Close() // as a RoundTripper must; nothing was read
		}
		return nil, fmt.Errorf("wait for %d other requests to the hub's API server: %w", cap(slots), q.Context().Err())
	}
	defer func() { <-slots }()
	return b.next.RoundTrip(q)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b *boundedTransport) WrappedRoundTripper() http.RoundTripper { return b.next }
