package autoscale

import (
	"context"
	"fmt"
	"slices"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// retainReconciler is Karmada's hpaScaleTargetMarker: it labels the target of a propagated
// HorizontalPodAutoscaler, so that the members keep the replicas that it sets there. Requests are
// the names of the targets' ResourceBindings.
type retainReconciler struct {
	client client.Client
	live   client.Reader
}

func setupRetain(mgr ctrl.Manager) error {
	r := &retainReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader()}
	do, err := kube.Reconciler("retainreplicas", kube.EventRecorder(mgr, "pelago-hub"), r.reconcile)
	if err != nil {
		return err
	}
	// Of an update both the former and the present object are mapped.
	return ctrl.NewControllerManagedBy(mgr).Named("retainreplicas").
		Watches(&workv1alpha2.ResourceBinding{}, handler.EnqueueRequestsFromMapFunc(r.ofBinding), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&autoscalingv2.HorizontalPodAutoscaler{}, handler.EnqueueRequestsFromMapFunc(r.ofAutoscaler)).
		WithOptions(kube.HubControllerOptions(workers)).Complete(do)
}

// ofAutoscaler maps an autoscaler to the binding of its target. One that does not exist yet comes
// with its own event.
func (r *retainReconciler) ofAutoscaler(ctx context.Context, o client.Object) []reconcile.Request {
	bindings, err := r.bindingsOf(ctx, o.GetNamespace(), o.(*autoscalingv2.HorizontalPodAutoscaler).Spec.ScaleTargetRef)
	if err != nil {
		return nil // a cache fails only when the manager ends
	}
	var out []reconcile.Request
	for i := range bindings {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&bindings[i])})
	}
	return out
}

// bindingsOf lists the bindings of a template, not to be changed. Their names depend on other
// templates.
func (r *retainReconciler) bindingsOf(
	ctx context.Context, namespace string, of autoscalingv2.CrossVersionObjectReference,
) ([]workv1alpha2.ResourceBinding, error) {
	var list workv1alpha2.ResourceBindingList
	err := r.client.List(ctx, &list, client.MatchingFields{targetIndex: targetKey(namespace, of)}, client.UnsafeDisableDeepCopy)
	if err != nil {
		return nil, fmt.Errorf("list the ResourceBindings of %s %s/%s: %w", of.Kind, namespace, of.Name, err)
	}
	return list.Items, nil
}

// ofBinding maps the binding of an autoscaler to that of its target, and any other to itself.
func (r *retainReconciler) ofBinding(ctx context.Context, o client.Object) []reconcile.Request {
	ref := o.(*workv1alpha2.ResourceBinding).Spec.Resource
	if !isAutoscaler(ref) {
		return []reconcile.Request{{NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	hpa := &autoscalingv2.HorizontalPodAutoscaler{}
	if r.client.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, hpa) != nil {
		return nil // its own event comes
	}
	return r.ofAutoscaler(ctx, hpa)
}

func group(apiVersion string) string {
	return schema.FromAPIVersionAndKind(apiVersion, "").Group
}

const autoscalerKind = "HorizontalPodAutoscaler"

func isAutoscaler(ref workv1alpha2.ObjectReference) bool {
	return ref.Kind == autoscalerKind && group(ref.APIVersion) == autoscalingv2.GroupName
}

func (r *retainReconciler) reconcile(ctx context.Context, req ctrl.Request) (time.Duration, error) {
	b := &workv1alpha2.ResourceBinding{}
	if err := r.client.Get(ctx, req.NamespacedName, b); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("read the ResourceBinding %s: %w", req, err))
	}
	ref := b.Spec.Resource
	by, err := r.autoscalerOf(ctx, ref)
	if err != nil {
		return 0, err
	}
	if by == "" && b.Spec.Replicas == 0 {
		return 0, nil // no workload: not one read for each ConfigMap
	}
	t := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: ref.APIVersion, Kind: ref.Kind}}
	if err := r.live.Get(ctx, client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, t); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("read the %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err))
	}
	_, labelled := t.Labels[workv1alpha2.LabelRetainReplicas]
	former := t.Annotations[workv1alpha2.AnnotationRetainReplicasBy]
	if former == by && labelled == (by != "") || labelled && former == "" {
		return 0, nil // a label without the annotation is the user's
	}
	before := t.DeepCopy()
	if by == "" {
		delete(t.Labels, workv1alpha2.LabelRetainReplicas)
		delete(t.Annotations, workv1alpha2.AnnotationRetainReplicasBy)
	} else {
		metav1.SetMetaDataLabel(&t.ObjectMeta, workv1alpha2.LabelRetainReplicas, "true")
		metav1.SetMetaDataAnnotation(&t.ObjectMeta, workv1alpha2.AnnotationRetainReplicasBy, by)
	}
	if err := r.client.Patch(ctx, t, kube.MergeFrom(before)); err != nil {
		return 0, client.IgnoreNotFound(fmt.Errorf("label the %s %s/%s: %w", ref.Kind, ref.Namespace, ref.Name, err))
	}
	return 0, nil
}

// autoscalerOf is the name of the propagated HorizontalPodAutoscaler of a template, the first if
// there are several, or "".
func (r *retainReconciler) autoscalerOf(ctx context.Context, target workv1alpha2.ObjectReference) (string, error) {
	var all autoscalingv2.HorizontalPodAutoscalerList
	if err := r.client.List(ctx, &all, client.InNamespace(target.Namespace)); err != nil {
		return "", fmt.Errorf("list HorizontalPodAutoscalers of namespace %s: %w", target.Namespace, err)
	}
	first := ""
	for _, hpa := range all.Items {
		to := hpa.Spec.ScaleTargetRef
		if to.Kind != target.Kind || to.Name != target.Name || group(to.APIVersion) != group(target.APIVersion) || hpa.DeletionTimestamp != nil ||
			first != "" && first < hpa.Name {
			continue
		}
		bindings, err := r.bindingsOf(ctx, hpa.Namespace, autoscalingv2.CrossVersionObjectReference{
			APIVersion: autoscalingv2.SchemeGroupVersion.String(), Kind: autoscalerKind, Name: hpa.Name})
		if err != nil {
			return "", err
		}
		if slices.ContainsFunc(bindings, func(b workv1alpha2.ResourceBinding) bool { return b.DeletionTimestamp == nil }) {
			first = hpa.Name
		}
	}
	return first, nil
}
