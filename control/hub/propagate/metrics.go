package propagate

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// counts are metrics under Karmada's names; no label has a value that users choose.
type counts struct {
	match               *prometheus.HistogramVec // no labels
	apply               *prometheus.HistogramVec // result
	attempts, preempted *prometheus.CounterVec   // result
	decisions           *prometheus.CounterVec   // result, schedule_type
	decided             *prometheus.HistogramVec // result, schedule_type
}

func newCounts() (*counts, error) {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	c := &counts{
		match: histogram("resource_match_policy_duration_seconds", "How long it takes to find the policy of a template."),
		apply: histogram("resource_apply_policy_duration_seconds",
			"How long it takes to write a template's claim and binding.", "result"),
		attempts: counter("policy_apply_attempts_total",
			"Attempts to write the binding of a template that follows a policy.", "result"),
		preempted: counter("policy_preemption_total", "Templates that a policy has taken over from another one.", "result"),
		decisions: counter("karmada_scheduler_schedule_attempts_total",
			"Attempts to decide where a template runs.", "result", "schedule_type"),
		decided: histogram("karmada_scheduler_e2e_scheduling_duration_seconds",
			"How long it takes to decide where a template runs and to write it.", "result", "schedule_type"),
	}
	var errs []error
	for _, v := range []**prometheus.HistogramVec{&c.match, &c.apply, &c.decided} {
		var err error
		*v, err = kube.Registered(*v)
		errs = append(errs, err)
	}
	for _, v := range []**prometheus.CounterVec{&c.attempts, &c.preempted, &c.decisions} {
		var err error
		*v, err = kube.Registered(*v)
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// since is a time in seconds.
func since(began time.Time) float64 { return time.Since(began).Seconds() }

func resultOf(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// applied counts an attempt to make a template follow its policy. One that only met a newer object is made again at once.
func (c *counts) applied(began time.Time, err error) {
	if kube.IsStale(err) {
		return
	}
	c.apply.WithLabelValues(resultOf(err)).Observe(since(began))
	c.attempts.WithLabelValues(resultOf(err)).Inc()
}

// decision counts an attempt to decide, if one was made; failure is that of the write.
func (c *counts) decision(d decided, failure error) {
	if d.began.IsZero() || kube.IsStale(failure) {
		return
	}
	kind, result := "again", "scheduled"
	if d.first {
		kind = "first"
	}
	var fit *scheduler.FitError
	var room *scheduler.UnschedulableError
	var spread *scheduler.SpreadError
	switch {
	case errors.As(d.failure, &fit), errors.As(d.failure, &room), errors.As(d.failure, &spread):
		result = "unschedulable"
	case d.failure != nil, failure != nil:
		result = "error"
	}
	c.decisions.WithLabelValues(result, kind).Inc()
	c.decided.WithLabelValues(result, kind).Observe(since(d.began))
}
