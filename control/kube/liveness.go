package kube

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
)

const (
	// hungReconcile is above all that bounds a reconcile: its context, or the timeouts of its
	// requests.
	hungReconcile = 15 * time.Minute
	// leaseTimeout is above the interval between attempts to take or renew the lease, failed ones
	// included.
	leaseTimeout = time.Minute
	// longestRunning is controller-runtime's gauge of the oldest reconcile under way, by queue.
	longestRunning = "workqueue_longest_running_processor_seconds"
)

// Liveness is the check behind /healthz of a program with a controller-runtime manager. It fails if
// a reconcile or the loop of the leader election hangs. It does not depend on the success of
// requests: an API server or a hub that is away is no reason for a restart. queues has the metrics
// of the manager's queues; attempted returns when the lease was last attempted, the zero time if
// not yet or without leader election.
func Liveness(queues prometheus.Gatherer, attempted func() time.Time) healthz.Checker {
	return func(*http.Request) error {
		var errs []error
		if last := attempted(); !last.IsZero() && time.Since(last) > leaseTimeout {
			errs = append(errs, fmt.Errorf("the lease was last attempted %s ago", time.Since(last).Round(time.Second)))
		}
		// an error of another metric is no hang, and what was gathered is returned with it
		families, _ := queues.Gather()
		for _, family := range families {
			if family.GetName() != longestRunning {
				continue
			}
			for _, m := range family.GetMetric() {
				age := time.Duration(m.GetGauge().GetValue() * float64(time.Second))
				if age <= hungReconcile {
					continue
				}
				labels := prometheus.Labels{}
				for _, l := range m.GetLabel() {
					labels[l.GetName()] = l.GetValue()
				}
				errs = append(errs, fmt.Errorf("a reconcile of controller %s has been running for %s", labels["name"], age.Round(time.Second)))
			}
		}
		return errors.Join(errs...)
	}
}
