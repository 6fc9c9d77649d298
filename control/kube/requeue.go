package kube

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// Pauses before a reconcile is repeated.
const (
	// CacheBehind follows a write in the member that met a newer object; the cache shows that one within milliseconds.
	RequeueStale = 20 * time.Millisecond
	// HubCacheBehind is the same where the hub, which may be far away, has a part.
	RequeueHubStale = time.Second
	// HubAway follows a write to a hub that cannot be reached. Package hub has logged that.
	RequeueHubAway = 2 * time.Second

	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	// limit bounds one reconcile.
	reconcileTimeout = 15 * time.Second
)

// Result of a reconcile that is to be repeated after wait (0: not) or failed with err. An error that only says that the
// cache was behind the server is nothing to report.
func Result(wait time.Duration, err error) (reconcile.Result, error) {
	if IsStale(err) {
		return reconcile.Result{RequeueAfter: RequeueStale}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// HubResult is the Result of a reconcile in which the hub has a part.
func HubResult(err error) (reconcile.Result, error) {
	if IsStale(err) {
		return reconcile.Result{RequeueAfter: RequeueHubStale}, nil
	}
	return reconcile.Result{}, err
}

// HubOptions are those of a controller that works with the hub: users wait for it, so it repeats what failed sooner than
// controller-runtime does by itself, and gives an answer up that does not come.
func HubControllerOptions(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		ReconciliationTimeout:   reconcileTimeout,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}
