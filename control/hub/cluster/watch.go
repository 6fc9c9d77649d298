package cluster

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
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
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// setup adds the controller with its watches. What a cluster reports of itself is no reason to look at its membership.
func (r *reconciler) setup(mgr ctrl.Manager) error {
	changes := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, finalizersChanged()))
	return ctrl.NewControllerManagedBy(mgr).Named("membership").
		For(&clusterv1alpha1.Cluster{}, changes).
		Watches(&clusterv1alpha1.Cluster{}, handler.EnqueueRequestsFromMapFunc(r.twins), changes).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(ofNamespace)).
		Watches(&workv1alpha1.Work{}, handler.EnqueueRequestsFromMapFunc(r.leaving), builder.WithPredicates(deletions())).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(r)
}

// twins are the other Clusters with the spec.id of one that came, changed or went.
func (r *reconciler) twins(ctx context.Context, o client.Object) []reconcile.Request {
	c := o.(*clusterv1alpha1.Cluster)
	var all clusterv1alpha1.ClusterList
	if c.Spec.ID == "" || r.client.List(ctx, &all) != nil { // the cache fails only when the manager ends
		return nil
	}
	var requests []reconcile.Request
	for _, other := range all.Items {
		if other.Name != c.Name && other.Spec.ID == c.Spec.ID {
			requests = append(requests, request(other.Name))
		}
	}
	return requests
}

// leaving is the cluster of a Work, if it is being removed.
func (r *reconciler) leaving(ctx context.Context, o client.Object) []reconcile.Request {
	name, ok := workv1alpha2.ClusterOfNamespace(o.GetNamespace())
	c := &clusterv1alpha1.Cluster{}
	if !ok || r.client.Get(ctx, client.ObjectKey{Name: name}, c) != nil || c.DeletionTimestamp == nil { // nobody waits for this Work
		return nil
	}
	return []reconcile.Request{request(name)}
}

// ofNamespace is the cluster of an execution namespace.
func ofNamespace(_ context.Context, o client.Object) []reconcile.Request {
	name, ok := workv1alpha2.ClusterOfNamespace(o.GetName())
	if !ok {
		return nil
	}
	return []reconcile.Request{request(name)}
}

func request(cluster string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: cluster}}
}

func finalizersChanged() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return !slices.Equal(e.ObjectOld.GetFinalizers(), e.ObjectNew.GetFinalizers())
	}}
}

func deletions() predicate.Predicate {
	return predicate.Funcs{
		CreateFunc:  func(event.CreateEvent) bool { return false },
		UpdateFunc:  func(event.UpdateEvent) bool { return false },
		GenericFunc: func(event.GenericEvent) bool { return false },
	}
}
