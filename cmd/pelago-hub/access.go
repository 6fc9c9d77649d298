package main

import (
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/semaphore"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
)

// inFlight is how many requests are made at a time on each way to the hub's API server; what is more waits here, in its order. An API
// server with much to do answers no sooner if there are more. Its priority and fairness queues them, refuses those that have waited for
// 15 s (429) and makes them come back a second later, the renewal of the leader's lease among them; and it ends the watches that get too
// little of the processor beside them, its own controllers' too, and then sends again what they have missed: with 32 on two cores about
// a hundred times while 1,000 templates came, with 16 twenty times, with 8 once. An answer takes a few milliseconds, so 8 are still
// more than a thousand a second. What fills a cache is not counted, and the lease goes its own way.
const inFlight = 8

// access is how the controllers reach the hub's API server, and the gate that their writes there and into members pass.
type access struct {
	config    *rest.Config
	gate      transport.WrapperFunc
	attempted func() time.Time // see fence.Fence
}

// way is one through the gate, with a bound of its own: who has few workers does not wait behind who has hundreds.
func (a access) way() *rest.Config {
	c := rest.CopyConfig(a.config)
	c.Wrap(a.gate)
	c.Wrap(bounded(inFlight)) // what waits there has not been through the gate
	return c
}

// bounded lets only n requests be under way, each from when it is sent until the answer begins, over all transports that are wrapped.
func bounded(n int64) transport.WrapperFunc {
	slots := semaphore.NewWeighted(n)
	return func(next http.RoundTripper) http.RoundTripper { return &boundedTransport{slots, n, next} }
}

type boundedTransport struct {
	slots *semaphore.Weighted
	n     int64
	next  http.RoundTripper
}

var _ utilnet.RoundTripperWrapper = &boundedTransport{}

// RoundTrip implements http.RoundTripper.
func (b *boundedTransport) RoundTrip(q *http.Request) (*http.Response, error) {
	if err := b.slots.Acquire(q.Context(), 1); err != nil {
		if q.Body != nil {
			_ = q.Body.Close() // as a RoundTripper must; nothing was read
		}
		return nil, fmt.Errorf("wait for %d other requests to the hub's API server: %w", b.n, err)
	}
	defer b.slots.Release(1)
	return b.next.RoundTrip(q)
}

// WrappedRoundTripper implements utilnet.RoundTripperWrapper.
func (b *boundedTransport) WrappedRoundTripper() http.RoundTripper { return b.next }
