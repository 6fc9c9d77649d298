package propagate

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// recordEvents emits Events for what was written: problems on template and binding, successes as
// one Event on the template.
func (r *reconciler) recordEvents(w inputs, p placed) {
	b, d, e := p.binding, p.decision, p.eviction
	warn := func(reason, message string) {
		r.events.Event(w.template, corev1.EventTypeWarning, reason, message)
		r.events.Event(b.Object, corev1.EventTypeWarning, reason, message)
	}
	if d.written && d.pendingWhy() != "" {
		warn(workv1alpha2.EventScheduleBindingFailed, d.message)
	}
	for _, t := range e.Began {
		r.counts.evictions.WithLabelValues(t.Reason).Inc()
		what := "it leaves"
		if t.Reason == workv1alpha2.EvictionReasonFailback {
			what = "replicas leave"
		}
		warn(workv1alpha2.EventEvictWorkloadFromClusterSucceed, fmt.Sprintf("%s cluster %s: %s", what, t.FromCluster, t.Message))
	}
	if f := e.Return.Record; d.written && f != nil && f.Message != ptr.Deref(recorded(w.have).Failback, workv1alpha2.Failback{}).Message {
		r.events.Event(b.Object, corev1.EventTypeNormal, workv1alpha2.EventFailbackAwaited, f.Message)
	}
	if d.written && len(e.Held) > 0 {
		warn(workv1alpha2.EventEvictWorkloadFromClusterFailed, strings.Join(e.Held, "; "))
	}
	r.recordRollout(w, b)
	if d.written && d.stuck != "" && d.record.Held != recorded(w.have).Held {
		warn(workv1alpha2.EventDescheduleBindingFailed, d.stuck)
	}
	if d.written && d.descheduled != "" {
		r.events.Event(w.template, corev1.EventTypeNormal, workv1alpha2.EventDescheduleBindingSucceed, d.descheduled)
		r.events.Event(b.Object, corev1.EventTypeNormal, workv1alpha2.EventDescheduleBindingSucceed, d.descheduled)
	}
	steps := progress(w, b, d)
	if r.AllEvents {
		r.recordSteps(w, b, steps)
	} else if len(steps) > 0 {
		var all []string
		for _, s := range slices.Backward(steps) {
			all = append(all, s.message)
		}
		r.events.Event(w.template, corev1.EventTypeNormal, steps[len(steps)-1].reason, strings.Join(all, "; "))
	}
}

// recordSteps emits the Events of Karmada: each step on the template, the decision on the binding,
// too, and on the binding of a dependent that it follows others.
func (r *reconciler) recordSteps(w inputs, b binding.Binding, steps []step) {
	for _, s := range steps {
		r.events.Event(w.template, corev1.EventTypeNormal, s.reason, s.message)
		if s.reason == workv1alpha2.EventScheduleBindingSucceed {
			r.events.Event(b.Object, corev1.EventTypeNormal, s.reason, s.message)
		}
	}
	required := !w.have.Exists() || !equality.Semantic.DeepEqual(w.have.Spec.RequiredBy, b.Spec.RequiredBy)
	if len(w.parents) > 0 && required {
		r.events.Event(b.Object, corev1.EventTypeNormal, workv1alpha2.EventSyncDependenciesSucceed,
			fmt.Sprintf("it goes where the templates of %d bindings go that depend on it", len(w.parents)))
	}
}

// step is what differs in a written binding from the former one.
type step struct{ reason, message string }

// progress returns dependencies, policy and clusters that differ from those of the former binding,
// in this order.
func progress(w inputs, b binding.Binding, d decision) (steps []step) {
	was, is := "", b.GetAnnotations()[workv1alpha2.AnnotationDependencies]
	if w.have.Exists() {
		was = w.have.GetAnnotations()[workv1alpha2.AnnotationDependencies]
	}
	if is != was {
		steps = append(steps, step{workv1alpha2.EventGetDependenciesSucceed,
			fmt.Sprintf("it depends on %d objects", len(dependenciesOf(b)))})
	}
	if w.policy != nil && (!w.have.Exists() || !claimOf(w.have).of(w.policy)) && claimOf(b).of(w.policy) {
		steps = append(steps, step{workv1alpha2.EventApplyPolicySucceed, fmt.Sprintf("it follows %s", w.policy)})
	}
	if d.written && d.pendingWhy() == "" && d.moved {
		message := "it runs in " + places(b.Spec.Clusters)
		if d.message != "" {
			message += "; " + d.message
		}
		steps = append(steps, step{workv1alpha2.EventScheduleBindingSucceed, message})
	}
	return steps
}

// recordConflict records an event if the policies of those that need a template disagree about
// something else than at the last reconcile. The binding may be the same: its fields are those of
// one side.
func (r *reconciler) recordConflict(w inputs, b binding.Binding) {
	key := w.key
	now := ""
	if b.Spec.Placement == nil {
		now = conflict(w.parents)
	}
	r.mu.Lock()
	was := r.conflicts[key]
	if now == "" {
		delete(r.conflicts, key)
	} else {
		r.conflicts[key] = now
	}
	r.mu.Unlock()
	if now != "" && now != was {
		r.events.Event(w.template, corev1.EventTypeWarning, workv1alpha2.EventDependencyPolicyConflict, now)
		r.events.Event(b.Object, corev1.EventTypeWarning, workv1alpha2.EventDependencyPolicyConflict, now)
	}
}

// recordFailure records that the binding cannot be computed.
func (r *reconciler) recordFailure(w inputs, err error) {
	reason := workv1alpha2.EventApplyPolicyFailed
	switch {
	case errors.Is(err, errDependencies):
		reason = workv1alpha2.EventGetDependenciesFailed
	case errors.Is(err, errReplicas):
		reason = workv1alpha2.EventGetReplicasFailed
	}
	r.events.Event(w.template, corev1.EventTypeWarning, reason, err.Error())
}

// places lists the clusters of a template with their replicas.
func places(clusters []workv1alpha2.TargetCluster) string {
	if len(clusters) == 0 {
		return "no cluster"
	}
	var out []string
	for _, c := range clusters {
		if c.Replicas > 0 {
			out = append(out, fmt.Sprintf("%s (%d)", c.Name, c.Replicas))
		} else {
			out = append(out, c.Name)
		}
	}
	return strings.Join(out, ", ")
}
