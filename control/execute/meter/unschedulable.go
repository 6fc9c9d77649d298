package meter

import (
	"cmp"
	"context"
	"encoding/json"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

// startTime is how long replicas of a Deployment may not be ready before its pods are listed, so
// that no rollout lists them.
const startTime = 30 * time.Second

// Unschedulable is the last count of the unschedulable pods of an object. The zero value is ready;
// it is used by one goroutine at a time.
type Unschedulable struct {
	last    *workv1alpha1.UnschedulablePods
	missing time.Time  // since when replicas have not been ready; zero: they are
	of      deployment // that last is of
	at      time.Time  // of last
}

// deployment is what of a Deployment changes the count.
type deployment struct {
	Generation      int64
	Wanted          int32
	Replicas, Ready int32
}

// Count returns the unschedulable pods of an object of the member (nil: none, or it is no
// Deployment), and when they are due again (0: when the object changes).
func (l *Unschedulable) Count(ctx context.Context, from Source, have *unstructured.Unstructured, now time.Time) (*workv1alpha1.UnschedulablePods, time.Duration) {
	d, of, ok := deploymentOf(have)
	if !ok || of.Ready >= of.Wanted {
		*l = Unschedulable{}
		return nil, 0
	}
	if l.missing.IsZero() {
		l.missing = now
	}
	if left := startTime - now.Sub(l.missing); left > 0 {
		return nil, left
	}
	interval := cmp.Or(from.Interval, 15*time.Second)
	if left := interval - now.Sub(l.at); left > 0 && l.of == of {
		return l.last, left
	}
	l.of, l.at = of, now
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		l.last = nil
		return nil, interval // an invalid one that the member would refuse
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	pods, err := from.pods(ctx, have.GetNamespace(), selector.String())
	if err != nil {
		l.last = nil // pods that cannot be listed move nowhere
		return nil, interval
	}
	l.last = unschedulable(pods)
	return l.last, interval
}

// deploymentOf reads a Deployment; not ok if it is none.
func deploymentOf(have *unstructured.Unstructured) (d appsv1.Deployment, of deployment, ok bool) {
	if have == nil || have.GroupVersionKind().GroupKind() != appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind() {
		return d, of, false
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"generation": have.GetGeneration()}, "spec": have.Object["spec"],
		"status": have.Object["status"]})
	if err == nil {
		err = json.Unmarshal(raw, &d)
	}
	return d, deployment{d.Generation, ptr.Deref(d.Spec.Replicas, 1), d.Status.Replicas, d.Status.ReadyReplicas}, err == nil
}

// unschedulable counts the pods that no node can run; nil: none.
func unschedulable(pods []corev1.Pod) *workv1alpha1.UnschedulablePods {
	var out workv1alpha1.UnschedulablePods
	for i := range pods {
		p := &pods[i]
		if ended(p) || p.Status.Phase != corev1.PodPending {
			continue
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				out.Pods++
				if c.LastTransitionTime.After(out.Since.Time) {
					out.Since = c.LastTransitionTime
				}
			}
		}
	}
	if out.Pods == 0 {
		return nil
	}
	return &out
}
