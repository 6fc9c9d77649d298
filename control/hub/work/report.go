package work

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// report makes Events of what could not be made. What was written the status of the binding says.
func (r *reconciler) report(b Binding, template *unstructured.Unstructured, plan BindingPlan, err error) {
	for _, f := range plan.Failed {
		reason, text := workv1alpha2.EventSyncWorkFailed, fmt.Sprintf("Cluster %s keeps what it has: %v", f.Cluster, f.Err)
		if overrides := new(OverrideError); errors.As(f.Err, &overrides) {
			reason, text = workv1alpha2.EventApplyOverridePolicyFailed, text+"; correct that rule or the template"
		}
		r.event(b, template, corev1.EventTypeWarning, reason, text)
	}
	r.failed(b, template, err)
}

// failed makes an Event of an error that is not the cache's.
func (r *reconciler) failed(b Binding, template *unstructured.Unstructured, err error) {
	if err != nil && !kube.IsStale(err) {
		r.event(b, template, corev1.EventTypeWarning, workv1alpha2.EventSyncWorkFailed, err.Error())
	}
}

// notCleaned makes an Event of an error that is not the cache's, and returns it.
func (r *reconciler) notCleaned(b Binding, template *unstructured.Unstructured, err error) error {
	if err != nil && !kube.IsStale(err) {
		r.event(b, template, corev1.EventTypeWarning, workv1alpha2.EventCleanupWorkFailed, err.Error())
	}
	return err
}

// event tells both the binding and the template, as far as there is one.
func (r *reconciler) event(b Binding, template *unstructured.Unstructured, kind, reason, text string) {
	r.recorder.Event(b.Object, kind, reason, text)
	if template != nil {
		r.recorder.Event(template, kind, reason, text)
	}
}

// durations is the metric of how long the Works of a binding take, in seconds, by result (success or error).
type durations struct{ *prometheus.HistogramVec }

func newDurations() (durations, error) {
	vec, err := kube.Registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "binding_sync_work_duration_seconds", Help: "Time that writing the Works of a binding took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
	}, []string{"result"}))
	return durations{vec}, err
}

func (d durations) observe(begin time.Time, err error) {
	result := "success"
	if err != nil && !kube.IsStale(err) {
		result = "error"
	}
	d.WithLabelValues(result).Observe(time.Since(begin).Seconds())
}
