package hubclient

import (
	"crypto/tls"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// authenticate sets the current token on each request.
type authenticate struct {
	token func() string
	next  http.RoundTripper
}

func (a *authenticate) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context()) // a RoundTripper may not change the request
	req.Header.Set("Authorization", "Bearer "+a.token())
	return a.next.RoundTrip(req)
}

// resume repeats reads while the hub is unreachable. Informers retry by themselves, but with a
// backoff of up to a minute, which would delay the reconnection.
type resume struct {
	min, max time.Duration
	reach    *reachability
	next     http.RoundTripper
}

func (r *resume) RoundTrip(req *http.Request) (*http.Response, error) {
	for {
		resp, err := r.next.RoundTrip(req)
		ctx := req.Context()
		if err != nil && ctx.Err() != nil {
			return nil, err
		}
		r.reach.note(req.Method, resp, err)
		if err == nil {
			return resp, nil
		}
		if req.Method != http.MethodGet {
			return nil, err // its controller repeats a write, with the state desired by then
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

// failure is why a request to the hub was not served; the values are those of a metric's label.
type failure string

const (
	unreachable  failure = "unreachable"
	certificate  failure = "certificate"
	unauthorized failure = "unauthorized"
	forbidden    failure = "forbidden"
	serverError  failure = "server-error"
)

// remedies are the log messages of failures.
var remedies = map[failure]string{
	unreachable:  "hub cannot be reached; the last known state stays in use",
	certificate:  "hub's certificate is not trusted; the last known state stays in use: if the hub's CA has changed, announce both with `pelago deploy-broker --broker-ca` before, or run `pelago join` again",
	unauthorized: "hub refuses the token; the last known state stays in use: run `pelago join` again",
	forbidden:    "hub refuses to let this cluster read; the last known state stays in use: was it unjoined? run `pelago join` again",
	serverError:  "hub's API server fails; the last known state stays in use",
}

// classify returns why a request was not served; "": it was.
func classify(resp *http.Response, err error) failure {
	var untrusted *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &untrusted), errors.As(err, &alert), errors.Is(err, http.ErrSchemeMismatch):
		return certificate
	case err != nil:
		return unreachable
	case resp.StatusCode == http.StatusUnauthorized:
		return unauthorized
	case resp.StatusCode == http.StatusForbidden:
		return forbidden
	case resp.StatusCode >= http.StatusInternalServerError:
		return serverError
	}
	return ""
}

// reachability reports whether the hub serves requests: one log line per change, a gauge and a
// counter. It is the prometheus.Collector of both.
type reachability struct {
	logger   logr.Logger
	gauge    prometheus.Gauge
	failures *prometheus.CounterVec

	mu    sync.Mutex
	known bool
	last  failure
}

func newReachability(logger logr.Logger) *reachability {
	r := &reachability{logger: logger, gauge: prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "pelago_hub_connected", Help: "1 if the hub served the last request, 0 if it was unreachable, refused the token or its certificate is not trusted.",
	}), failures: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pelago_hub_failed_requests_total", Help: "Requests that the hub did not serve, by reason.",
	}, []string{"reason"})}
	for f := range remedies {
		r.failures.WithLabelValues(string(f))
	}
	return r
}

// Describe implements prometheus.Collector.
func (r *reachability) Describe(out chan<- *prometheus.Desc) {
	r.gauge.Describe(out)
	r.failures.Describe(out)
}

// Collect implements prometheus.Collector. The gauge has no sample before the first request: only
// the leader sends any, and an alert on 0 would fire for the other replica.
func (r *reachability) Collect(out chan<- prometheus.Metric) {
	r.mu.Lock()
	known := r.known
	r.mu.Unlock()
	if known {
		r.gauge.Collect(out)
	}
	r.failures.Collect(out)
}

// note takes the outcome of a request. A write that is forbidden is counted only: an admission
// policy may have refused that one object.
func (r *reachability) note(method string, resp *http.Response, err error) {
	now := classify(resp, err)
	if now != "" {
		r.failures.WithLabelValues(string(now)).Inc()
	}
	if now == forbidden && method != http.MethodGet {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.known || now != r.last {
		if now == "" {
			r.logger.Info("hub reachable")
		} else {
			r.logger.Error(err, remedies[now])
		}
	}
	r.known, r.last = true, now
	if now == "" {
		r.gauge.Set(1)
	} else {
		r.gauge.Set(0)
	}
}

// IsUnreachable reports whether a request to the hub failed without an answer from it.
func IsUnreachable(err error) bool {
	var answer apierrors.APIStatus
	return err != nil && !errors.As(err, &answer)
}
