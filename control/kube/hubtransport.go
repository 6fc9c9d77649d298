package kube

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// authenticate puts the token of the moment on each request.
type authenticate struct {
	token func() string
	next  http.RoundTripper
}

func (a *authenticate) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context()) // a RoundTripper may not change the request
	req.Header.Set("Authorization", "Bearer "+a.token())
	return a.next.RoundTrip(req)
}

// resume holds reads back while the hub cannot be reached and lets them go on soon after it can. An informer would
// retry by itself, but with pauses that grow to a minute: a hub that was away for long would be noticed late.
type resume struct {
	min, max time.Duration
	reach    *reachability
	next     http.RoundTripper
}

func (r *resume) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		resp, err := r.next.RoundTrip(req)
		if err == nil {
			r.reach.up()
			return resp, nil
		}
		ctx := req.Context()
		if ctx.Err() != nil {
			return nil, err
		}
		r.reach.down(err)
		if req.Method != http.MethodGet {
			return nil, err // a write is repeated by its controller, with what is wanted by then
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), err)
		case <-time.After(r.pause()):
		}
	}
}

func (r *resume) pause() time.Duration {
	if r.max <= r.min {
		return r.min
	}
	return r.min + rand.N(r.max-r.min)
}

// reachability tells people whether the hub can be reached: one line for each change, and a gauge.
type reachability struct {
	logger logr.Logger
	gauge  prometheus.Gauge

	mu    sync.Mutex
	known bool
	is    bool
}

func newReachability(logger logr.Logger) *reachability {
	return &reachability{logger: logger, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pelago_hub_connected", Help: "1 if the last request to the hub was answered, else 0.",
	})}
}

func (r *reachability) up() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known || !r.is {
		r.logger.Info("hub answers")
	}
	r.known, r.is = true, true
	r.gauge.Set(1)
}

func (r *reachability) down(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known || r.is {
		r.logger.Error(err, "hub cannot be reached; the last known state stays in use")
	}
	r.known, r.is = true, false
	r.gauge.Set(0)
}

// IsUnreachable says whether a request to the hub failed without an answer from it.
func IsUnreachable(err error) bool {
	var answer apierrors.APIStatus
	return err != nil && !errors.As(err, &answer)
}
