package status

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// Index fields of the cache.
const (
	// Work by the key of its binding, `namespace/name` or `/name`
	workIndex    = "aggregate.binding"
	waitingIndex = "aggregate.waiting" // binding that is not fully applied, by its clusters
)

type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]

func watch(mgr ctrl.Manager, r *reconciler, o Options) error {
	if err := kube.AddIndex(mgr, &workv1alpha1.Work{}, workIndex, func(w *workv1alpha1.Work) []string {
		if key, ok := binding.OfWork(w); ok {
			return []string{key.String()}
		}
		return nil
	}); err != nil {
		return err
	}
	if err := binding.AddIndex(mgr, waitingIndex, awaited); err != nil {
		return err
	}
	aggregate, err := kube.Reconciler("aggregate", r.recorder, r.reconcile)
	if err != nil {
		return err
	}
	self := func(_ context.Context, b client.Object) []client.ObjectKey {
		return []client.ObjectKey{client.ObjectKeyFromObject(b)}
	}
	ofWork := func(_ context.Context, w client.Object) []client.ObjectKey {
		if key, ok := binding.OfWork(w); ok {
			return []client.ObjectKey{key}
		}
		return nil
	}
	return ctrl.NewControllerManagedBy(mgr).Named("aggregate").
		Watches(&workv1alpha2.ResourceBinding{}, later(o.Delay, self), builder.WithPredicates(changed(asksForMore))).
		Watches(&workv1alpha2.ClusterResourceBinding{}, later(o.Delay, self), builder.WithPredicates(changed(asksForMore))).
		Watches(&workv1alpha1.Work{}, later(o.Delay, ofWork)).
		Watches(&clusterv1alpha1.Cluster{}, later(o.Delay, r.waitingFor), builder.WithPredicates(changed(otherReadiness))).
		WatchesRawSource(source.Func(r.followRules)).
		WatchesRawSource(source.Func(func(_ context.Context, q queue) error {
			r.unmade.Follow(func(key client.ObjectKey) { q.AddAfter(reconcile.Request{NamespacedName: key}, o.Delay) })
			return nil
		})).
		WithOptions(kube.HubControllerOptions(o.Workers)).
		Complete(aggregate)
}

// later enqueues bindings after the delay. The queue keeps the earliest time of a key, so a steady
// stream of events does not postpone a reconcile.
func later(delay time.Duration, keys func(context.Context, client.Object) []client.ObjectKey) handler.EventHandler {
	add := func(ctx context.Context, q queue, objects ...client.Object) {
		for _, o := range objects {
			for _, key := range keys(ctx, o) {
				q.AddAfter(reconcile.Request{NamespacedName: key}, delay)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) { add(ctx, q, e.Object) },
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) { add(ctx, q, e.ObjectOld, e.ObjectNew) },
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { add(ctx, q, e.Object) },
	}
}

// awaited are the clusters of a binding that is not fully applied.
func awaited(b binding.Binding) []string {
	if meta.IsStatusConditionTrue(b.Status.Conditions, workv1alpha2.ConditionFullyApplied) {
		return nil
	}
	return wanted(b.Spec)
}

// followRules enqueues the bindings of kinds whose statuses are aggregated by other rules now.
func (r *reconciler) followRules(ctx context.Context, q queue) error {
	r.interpreter.Follow(ctx, func(changed func(schema.GroupVersionKind) bool) {
		for _, key := range r.bindingsOf(ctx, func(s *workv1alpha2.ResourceBindingSpec) bool {
			return changed(schema.FromAPIVersionAndKind(s.Resource.APIVersion, s.Resource.Kind))
		}) {
			q.Add(reconcile.Request{NamespacedName: key})
		}
	})
	return nil
}

// waitingFor are the bindings that wait for a cluster and report it.
func (r *reconciler) waitingFor(ctx context.Context, cluster client.Object) []client.ObjectKey {
	every := func(*workv1alpha2.ResourceBindingSpec) bool { return true }
	return r.bindingsOf(ctx, every, client.MatchingFields{waitingIndex: cluster.GetName()})
}

// bindingsOf are the bindings that a list finds and for which holds is true.
func (r *reconciler) bindingsOf(
	ctx context.Context, holds func(*workv1alpha2.ResourceBindingSpec) bool, o ...client.ListOption,
) []client.ObjectKey {
	var keys []client.ObjectKey
	err := binding.Each(ctx, r.client, func(b binding.Binding) {
		if holds(b.Spec) {
			keys = append(keys, client.ObjectKeyFromObject(b))
		}
	}, o...)
	if err != nil { // only the messages of their conditions are older than they could be
		ctrl.LoggerFrom(ctx).Error(err, "list bindings")
	}
	return keys
}

// changed is the predicate of updates that change a property; creations and deletions pass.
func changed(how func(before, now client.Object) bool) predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool { return how(e.ObjectOld, e.ObjectNew) }}
}

// asksForMore is false for a change of a binding's status, which is our own.
func asksForMore(before, now client.Object) bool {
	return before.GetGeneration() != now.GetGeneration() || before.GetUID() != now.GetUID() ||
		!maps.Equal(before.GetAnnotations(), now.GetAnnotations()) || !maps.Equal(before.GetLabels(), now.GetLabels())
}

func otherReadiness(before, now client.Object) bool {
	a, _ := before.(*clusterv1alpha1.Cluster) // what is watched
	b, _ := now.(*clusterv1alpha1.Cluster)    // likewise
	return readiness(a) != readiness(b)
}

// remembered is how long the result of discovery for a kind is cached: its CustomResourceDefinition
// may change.
const remembered = time.Minute

// statusKinds knows which kinds of templates have a status subresource. Writing the status of
// another kind would make a new generation of the template, which would be propagated, and so on
// without end.
type statusKinds struct {
	discovery discovery.ServerResourcesInterface

	mu    sync.Mutex
	known map[schema.GroupVersionKind]known
}

type known struct {
	status bool
	until  time.Time
}

// haveStatus reports whether objects of the kind have a status subresource; those of a kind that is
// not served have none.
func (k *statusKinds) haveStatus(gvk schema.GroupVersionKind, now time.Time) (bool, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if last, ok := k.known[gvk]; ok && now.Before(last.until) {
		return last.status, nil
	}
	list, err := k.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return false, fmt.Errorf("ask the hub for the resources of %s: %w", gvk.GroupVersion(), err)
	}
	status := false
	if err == nil {
		for _, r := range list.APIResources {
			status = status || r.Kind == gvk.Kind && strings.HasSuffix(r.Name, "/status")
		}
	}
	k.known[gvk] = known{status, now.Add(remembered)}
	return status, nil
}

// forget removes the cached result of a kind.
func (k *statusKinds) forget(gvk schema.GroupVersionKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.known, gvk)
}
