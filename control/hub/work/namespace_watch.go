package work

import (
	"context"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
)

func (r *namespaceReconciler) watch(mgr ctrl.Manager, o controller.Options) error {
	labelsOrSpec := predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).Named("namespaces").WithOptions(o).
		Watches(namespace(), &handler.EnqueueRequestForObject{}, builder.WithPredicates(marksChanged())).
		Watches(&workv1alpha1.Work{}, r.writer.Events(owner), builder.WithPredicates(predicate.Or(
			labelsOrSpec, predicate.AnnotationChangedPredicate{}))).
		Watches(&clusterv1alpha1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.all), builder.WithPredicates(labelsOrSpec)).
		Watches(&policyv1alpha1.ClusterOverridePolicy{}, handler.EnqueueRequestsFromMapFunc(r.ofOverride),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Complete(r)
}

// owner is the request for the namespace that a Work of ours holds.
func owner(w *workv1alpha1.Work) (reconcile.Request, bool) {
	id, ok := OfWork(w)
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: id.Name}}, ok && id == OfReference(reference(id.Name))
}

// marksChanged drops updates of the status.
func marksChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld, e.ObjectNew
		return was.GetUID() != is.GetUID() || (was.GetDeletionTimestamp() == nil) != (is.GetDeletionTimestamp() == nil) ||
			!maps.Equal(was.GetLabels(), is.GetLabels()) || !maps.Equal(was.GetAnnotations(), is.GetAnnotations())
	}}
}

// all are the namespaces that there are.
func (r *namespaceReconciler) all(ctx context.Context, _ client.Object) []reconcile.Request {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	// A cache that runs answers; before and after, there is nothing to do.
	if r.client.List(ctx, &list, client.UnsafeDisableDeepCopy) != nil {
		return nil
	}
	var out []reconcile.Request
	for i := range list.Items {
		if Propagated(&list.Items[i], r.OptIn) {
			out = append(out, reconcile.Request{NamespacedName: types.NamespacedName{Name: list.Items[i].Name}})
		}
	}
	return out
}

// ofOverride are all namespaces if the policy may select one: it is compared there.
func (r *namespaceReconciler) ofOverride(ctx context.Context, o client.Object) []reconcile.Request {
	apiVersion, kind := corev1.SchemeGroupVersion.WithKind("Namespace").ToAPIVersionAndKind()
	selectors := o.(*policyv1alpha1.ClusterOverridePolicy).Spec.ResourceSelectors
	for _, s := range selectors {
		if s.APIVersion == apiVersion && s.Kind == kind {
			return r.all(ctx, o)
		}
	}
	if len(selectors) == 0 {
		return r.all(ctx, o)
	}
	return nil
}
