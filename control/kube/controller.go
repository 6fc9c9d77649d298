package kube

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Requeue intervals.
const (
	// RequeueStale follows a write that met a newer object, which the cache shows within
	// milliseconds.
	RequeueStale = 20 * time.Millisecond

	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	// reconcileTimeout bounds one reconcile.
	reconcileTimeout = 15 * time.Second
)

// Result is the result of a reconcile in a member that is to be requeued after wait (0: not) or has
// failed with err. If err is due to a stale cache only (IsStale), the reconcile is requeued without
// an error. Controllers of the hub use StaleCaches.
func Result(wait time.Duration, err error) (reconcile.Result, error) {
	if IsStale(err) {
		return reconcile.Result{RequeueAfter: RequeueStale}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// HubControllerOptions are those of a controller that works with the hub. It retries sooner than
// controller-runtime's default, since users wait for the result, and a request that gets no answer
// ends with its reconcile.
func HubControllerOptions(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		ReconciliationTimeout:   reconcileTimeout,
		RateLimiter:             HubRateLimiter(),
	}
}

// HubRateLimiter is the rate limiter of a controller that works with the hub: an object waits for
// at most lastRetry after an outage. With controller-runtime's default it would wait up to as long
// again as the outage lasted, at most 1000 s, and all objects would share 10 retries a second.
func HubRateLimiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// EnqueueAll requests, at each event of an object, all objects of the kind of list that a cache has
// in the namespace of the object, or in all namespaces if the object has none. A running cache
// answers; before and after there is nothing to reconcile.
func EnqueueAll(cache client.Reader, list client.ObjectList) handler.EventHandler {
	return handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) (out []reconcile.Request) {
		found, _ := list.DeepCopyObject().(client.ObjectList) // the copy has the type of the list
		if cache.List(ctx, found, client.InNamespace(o.GetNamespace()), client.UnsafeDisableDeepCopy) != nil {
			return nil
		}
		// fails only for what is no list
		_ = meta.EachListItem(found, func(item runtime.Object) error {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(item.(client.Object))})
			return nil
		})
		return out
	})
}

// AddIndex indexes objects of one kind under field by the values of each. A cache refuses a field
// of a kind twice, and all controllers share one cache: field begins with the name of the
// controller.
func AddIndex[T client.Object](mgr ctrl.Manager, kind T, field string, values func(T) []string) error {
	err := mgr.GetFieldIndexer().IndexField(context.Background(), kind, field, func(o client.Object) []string {
		return values(o.(T))
	})
	if err != nil {
		return fmt.Errorf("index %T by %s: %w", kind, field, err)
	}
	return nil
}

// IndexFlag is the index value of the objects for which a condition holds; all others are not in
// the index.
const IndexFlag = "true"

// AddFlagIndex indexes those objects of one kind for which holds is true, under IndexFlag.
func AddFlagIndex[T client.Object](mgr ctrl.Manager, kind T, field string, holds func(T) bool) error {
	return AddIndex(mgr, kind, field, func(o T) []string {
		if holds(o) {
			return []string{IndexFlag}
		}
		return nil
	})
}
