package propagate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1alpha1 "github.com/pelago-net/pelago/api/apps/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// SetupRebalancer adds the controller of WorkloadRebalancers to the manager; it needs the indexes
// of Setup.
func SetupRebalancer(mgr ctrl.Manager) error {
	r := &rebalancer{client: mgr.GetClient()}
	do, err := kube.Reconciler("rebalance", kube.EventRecorder(mgr, "pelago-hub"), r.reconcile)
	if err != nil {
		return err
	}
	err = ctrl.NewControllerManagedBy(mgr).Named("rebalance").For(&appsv1alpha1.WorkloadRebalancer{}).
		WithOptions(kube.HubControllerOptions(1)).Complete(do)
	if err != nil {
		return fmt.Errorf("set up controller rebalance: %w", err)
	}
	return nil
}

// rebalancer sets spec.rescheduleTriggeredAt of the bindings that WorkloadRebalancers name. The
// decision is propagate's.
type rebalancer struct{ client client.Client }

func (r *rebalancer) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	w := &appsv1alpha1.WorkloadRebalancer{}
	if err := r.client.Get(ctx, req.NamespacedName, w); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("read the WorkloadRebalancer %s: %w", req.Name, err))
	}
	if w.DeletionTimestamp != nil {
		return 0, nil
	}
	if w.Status.ObservedGeneration != w.Generation || w.Status.FinishTime == nil {
		if err := r.rebalance(ctx, w); err != nil {
			return 0, fmt.Errorf("rebalance the workloads of the WorkloadRebalancer %s: %w", w.Name, err)
		}
	}
	if w.Spec.TTLSecondsAfterFinished == nil {
		return 0, nil
	}
	ttl := time.Duration(*w.Spec.TTLSecondsAfterFinished) * time.Second
	if left := time.Until(w.Status.FinishTime.Add(ttl)); left > 0 {
		return left, nil
	}
	if err := r.client.Delete(ctx, w, kube.Exactly(w)); client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("delete the finished WorkloadRebalancer %s: %w", w.Name, err)
	}
	return 0, nil
}

// rebalance gives each workload without a result one, and writes the status. A workload whose
// binding could not be written has none.
func (r *rebalancer) rebalance(ctx context.Context, w *appsv1alpha1.WorkloadRebalancer) error {
	before := w.DeepCopy()
	w.Status = appsv1alpha1.WorkloadRebalancerStatus{ObservedGeneration: w.Generation,
		ObservedWorkloads: observed(w.Spec.Workloads, w.Status.ObservedWorkloads)}
	var errs []error
	for i := range w.Status.ObservedWorkloads {
		o := &w.Status.ObservedWorkloads[i]
		if o.Result != "" {
			continue
		}
		found, err := r.trigger(ctx, o.Workload, w.CreationTimestamp)
		switch {
		case err != nil:
			errs = append(errs, err)
		case found:
			o.Result = appsv1alpha1.RebalanceSuccessful
		default:
			o.Result, o.Reason = appsv1alpha1.RebalanceFailed, appsv1alpha1.RebalanceObjectNotFound
		}
	}
	if len(errs) == 0 {
		now := metav1.Now()
		w.Status.FinishTime = &now
	}
	err := r.client.Status().Patch(ctx, w, kube.MergeFrom(before))
	return errors.Join(append(errs, err)...)
}

// observed returns the workloads for the status. Results are kept, those of rebalanced workloads
// even if the spec no longer lists them. The order is Karmada's, since clients compare the list.
func observed(spec []appsv1alpha1.ObjectReference, before []appsv1alpha1.ObservedWorkload) []appsv1alpha1.ObservedWorkload {
	var out []appsv1alpha1.ObservedWorkload
	seen := map[appsv1alpha1.ObjectReference]bool{}
	for _, o := range before {
		if slices.Contains(spec, o.Workload) || o.Result == appsv1alpha1.RebalanceSuccessful {
			out = append(out, o)
			seen[o.Workload] = true
		}
	}
	for _, workload := range spec {
		if !seen[workload] {
			out = append(out, appsv1alpha1.ObservedWorkload{Workload: workload})
			seen[workload] = true
		}
	}
	slices.SortFunc(out, func(a, b appsv1alpha1.ObservedWorkload) int {
		x, y := a.Workload, b.Workload
		return cmp.Or(strings.Compare(x.APIVersion, y.APIVersion), strings.Compare(x.Kind, y.Kind),
			strings.Compare(x.Namespace, y.Namespace), strings.Compare(x.Name, y.Name))
	})
	return out
}

// trigger requests a new decision, unless one was requested at or after the time of the request.
// found is false if the workload has no binding.
func (r *rebalancer) trigger(ctx context.Context, of appsv1alpha1.ObjectReference, requested metav1.Time) (found bool, err error) {
	version, err := schema.ParseGroupVersion(of.APIVersion)
	if err != nil {
		return false, nil // no object has such a version
	}
	have, err := bindingsOf(ctx, r.client, version.WithKind(of.Kind).GroupKind(), of.Namespace, of.Name)
	if err != nil || len(have) == 0 {
		return false, err
	}
	b := have[0]
	if asked := b.Spec.RescheduleTriggeredAt; asked != nil && !asked.Before(&requested) {
		return true, nil
	}
	next := b.Copy()
	// Times of objects have a resolution of seconds, and a request takes effect only if it is later
	// than the last decision. It has the rebalancer's creation time, which clients compare, so the
	// time in the record of a later decision is set back instead.
	if last := workv1alpha2.ReadDecision(b.GetAnnotations()); last != nil && !requested.After(last.Scheduled.Time) {
		last.Scheduled = metav1.NewMicroTime(requested.Add(-time.Microsecond))
		text, err := last.Encode()
		if err != nil {
			return false, err
		}
		setAnnotation(next, workv1alpha2.AnnotationDecision, text)
	}
	next.Spec.RescheduleTriggeredAt = &requested
	if err := r.client.Patch(ctx, next.Object, kube.MergeFrom(b.Object)); err != nil {
		return false, client.IgnoreNotFound(fmt.Errorf("write %s: %w", b, err))
	}
	return true, nil
}
