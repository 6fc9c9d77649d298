package work

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// report emits Events of Works that could not be written. The binding's status shows those that
// were.
func (r *reconciler) report(b binding.Binding, template *unstructured.Unstructured, plan BindingPlan, err error) {
	for _, f := range plan.Failed {
		reason, text := workv1alpha2.EventSyncWorkFailed, fmt.Sprintf("Cluster %s keeps what it has: %v", f.Cluster, f.Err)
		if overrides := new(OverrideError); errors.As(f.Err, &overrides) {
			reason, text = workv1alpha2.EventApplyOverridePolicyFailed, text+"; correct that rule or the template"
		}
		r.event(b, template, corev1.EventTypeWarning, reason, text)
	}
	r.failed(b, template, err)
}

// unmade are the reasons why clusters have no current Work, by cluster. What passes, such as a
// conflict or an API server that does not answer, is none.
func unmade(all Writes, written error) map[string]string {
	out := map[string]string{}
	for _, f := range all.Failed {
		out[f.Cluster] = f.Err.Error()
	}
	var walk func(error)
	walk = func(err error) {
		var joined interface{ Unwrap() []error }
		var w *writeError
		switch {
		case errors.As(err, &joined):
			for _, e := range joined.Unwrap() {
				walk(e)
			}
		case errors.As(err, &w) && w.tooLarge():
			out[w.cluster] = w.Error()
		case errors.As(err, &w) && (apierrors.IsInvalid(err) || apierrors.IsForbidden(err)):
			out[w.cluster] = w.Error()
		}
	}
	walk(written)
	return out
}

// failed makes an Event of an error that is not the cache's.
func (r *reconciler) failed(b binding.Binding, template *unstructured.Unstructured, err error) {
	if err != nil && !kube.IsStale(err) {
		r.event(b, template, corev1.EventTypeWarning, workv1alpha2.EventSyncWorkFailed, err.Error())
	}
}

// notCleaned makes an Event of an error that is not the cache's, and returns it.
func (r *reconciler) notCleaned(b binding.Binding, template *unstructured.Unstructured, err error) error {
	if err != nil && !kube.IsStale(err) {
		r.event(b, template, corev1.EventTypeWarning, workv1alpha2.EventCleanupWorkFailed, err.Error())
	}
	return err
}

// event emits an Event on the binding and on the template, if it exists.
func (r *reconciler) event(b binding.Binding, template *unstructured.Unstructured, kind, reason, text string) {
	r.recorder.Event(b.Object, kind, reason, text)
	if template != nil {
		r.recorder.Event(template, kind, reason, text)
	}
}

// durations is the metric of how long the Works of a binding take, in seconds, by result (success
// or error).
type durations struct{ *prometheus.HistogramVec }

func newDurations() (durations, error) {
	vec, err := kube.Registered(prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "binding_sync_work_duration_seconds", Help: "Time that writing the Works of a binding took.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 12),
	}, []string{"result"}))
	return durations{vec}, err
}

// observe ignores a reconcile that only met a stale cache: it is repeated.
func (d durations) observe(begin time.Time, err error) {
	if kube.IsStale(err) {
		return
	}
	result := "success"
	if err != nil {
		result = "error"
	}
	d.WithLabelValues(result).Observe(time.Since(begin).Seconds())
}

// orphans are Works whose binding has not existed for a while. They are counted and reported, never
// deleted: their workloads run in a cluster, and a missing binding is no request to remove them.
type orphans struct {
	count *prometheus.GaugeVec // by cluster

	mu sync.Mutex
	of map[reconcile.Request]*missing
}

// missing is a binding that does not exist.
type missing struct {
	since    time.Time
	reported map[types.UID]bool // Works
	clusters []string           // that hold them; none before the time
}

func newOrphans() (*orphans, error) {
	count, err := kube.Registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "pelago_orphaned_works", Help: "Works in the cluster's execution namespace whose binding does not exist.",
	}, []string{"member_cluster"}))
	return &orphans{count: count, of: map[reconcile.Request]*missing{}}, err
}

// since is when the binding was first missed.
func (o *orphans) since(binding reconcile.Request) time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.of[binding] == nil {
		o.of[binding] = &missing{since: time.Now(), reported: map[types.UID]bool{}}
	}
	return o.of[binding].since
}

// note counts the Works of a missing binding and returns those not reported yet. A binding without
// Works is forgotten.
func (o *orphans) note(binding reconcile.Request, works []*workv1alpha1.Work) (unreported []*workv1alpha1.Work) {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := o.of[binding]
	switch {
	case m == nil:
		return nil
	case len(works) == 0:
		delete(o.of, binding)
	}
	changed := m.clusters
	m.clusters = nil
	for _, w := range works {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		if !ok {
			continue // somewhere a user keeps a copy
		}
		m.clusters = append(m.clusters, cluster)
		if !m.reported[w.UID] {
			m.reported[w.UID] = true
			unreported = append(unreported, w)
		}
	}
	o.recount(append(changed, m.clusters...))
	return unreported
}

// recount sets the numbers of some clusters. A cluster without orphans has no number.
func (o *orphans) recount(clusters []string) {
	for _, cluster := range clusters {
		n := 0
		for _, m := range o.of {
			for _, of := range m.clusters {
				if of == cluster {
					n++
				}
			}
		}
		if n == 0 {
			o.count.DeleteLabelValues(cluster)
		} else {
			o.count.WithLabelValues(cluster).Set(float64(n))
		}
	}
}

// orphaned checks the Works of a binding that the cache does not have.
func (r *reconciler) orphaned(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	var list workv1alpha1.WorkList
	err := r.client.List(ctx, &list, client.MatchingFields{bindingIndex: req.String()}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return 0, fmt.Errorf("list the Works of binding %s, which does not exist: %w", req, err)
	}
	var works []*workv1alpha1.Work
	for i := range list.Items {
		if w := &list.Items[i]; w.DeletionTimestamp == nil {
			works = append(works, w)
		}
	}
	if len(works) > 0 {
		if wait := r.OrphanAfter - time.Since(r.orphans.since(req)); wait > 0 {
			return wait, nil
		}
		b := binding.New(req.NamespacedName)
		if err := r.live.Get(ctx, req.NamespacedName, b.Object); !apierrors.IsNotFound(err) {
			return 0, err // the cache is stale: the binding comes with an event
		}
	}
	for _, w := range r.orphans.note(req, works) {
		cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace) // note has looked
		r.recorder.Eventf(w.DeepCopy(), corev1.EventTypeWarning, workv1alpha2.EventWorkOrphaned,
			"%s, for which it was made, does not exist; cluster %s keeps what it has of it. "+
				"Make the template and its policy again to go on with it, or delete this Work to take it out of the cluster",
			binding.New(req.NamespacedName).String(), cluster)
	}
	return 0, nil
}

// recordWritten makes one Event if overrides apply to Works that were written in another way than
// before; the Works name them. With AllEvents the template has it as well, and written Works have
// one.
func (r *reconciler) recordWritten(b binding.Binding, in *BindingInput, plan BindingPlan) {
	written, on := slices.Concat(plan.Create, plan.Update), (*unstructured.Unstructured)(nil)
	if r.AllEvents {
		on = in.Template
	}
	if works := overridden(in.Works, written); len(works) > 0 {
		r.event(b, on, corev1.EventTypeNormal, workv1alpha2.EventApplyOverridePolicySucceed,
			"Other overrides than before apply in "+clusterNames(works)+": see "+policyv1alpha1.AnnotationAppliedOverrides+" and "+
				policyv1alpha1.AnnotationAppliedClusterOverrides+" of the Works")
	}
	if r.AllEvents && len(written) > 0 {
		r.event(b, on, corev1.EventTypeNormal, workv1alpha2.EventSyncWorkSucceed,
			"The Works of "+clusterNames(written)+" are written")
	}
}

// overridden are the Works that have overrides which they, or a Work that is new, did not have
// before.
func overridden(former, written []*workv1alpha1.Work) []*workv1alpha1.Work {
	var out []*workv1alpha1.Work
	for _, w := range written {
		before := &workv1alpha1.Work{}
		same := func(f *workv1alpha1.Work) bool { return f.Namespace == w.Namespace && f.Name == w.Name }
		if i := slices.IndexFunc(former, same); i >= 0 {
			before = former[i]
		}
		for _, key := range []string{policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides} {
			if now := w.Annotations[key]; now != "" && now != before.Annotations[key] {
				out = append(out, w)
				break
			}
		}
	}
	return out
}

// namedClusters is how many clusters an Event names.
const namedClusters = 10

func clusterNames(works []*workv1alpha1.Work) string {
	var all []string
	for _, w := range works {
		// the Works that we write are in execution namespaces
		cluster, _ := workv1alpha2.ClusterOfNamespace(w.Namespace)
		all = append(all, cluster)
	}
	if more := len(all) - namedClusters; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(all[:namedClusters], ", "), more)
	}
	return strings.Join(all, ", ")
}
