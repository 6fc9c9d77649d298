// Package pace says when a reconcile is repeated, in one way for the controllers of the agent. Only control/credential, which
// has days, and control/corefile, whose one object others write too, keep to times of their own.
package pace

import (
	"time"

	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/control/objectset"
)

// Pauses before a reconcile is repeated.
const (
	// CacheBehind follows a write in the member that met a newer object; the cache shows that one within milliseconds.
	CacheBehind = 20 * time.Millisecond
	// HubCacheBehind is the same where the hub, which may be far away, has a part.
	HubCacheBehind = time.Second
	// HubAway follows a write to a hub that cannot be reached. Package hub has logged that.
	HubAway = 2 * time.Second

	firstRetry = 50 * time.Millisecond
	lastRetry  = 5 * time.Second
	// limit bounds one reconcile.
	limit = 15 * time.Second
)

// Result of a reconcile that is to be repeated after wait (0: not) or failed with err. An error that only says that the
// cache was behind the server is nothing to report.
func Result(wait time.Duration, err error) (reconcile.Result, error) {
	if objectset.IsStale(err) {
		return reconcile.Result{RequeueAfter: CacheBehind}, nil
	}
	return reconcile.Result{RequeueAfter: wait}, err
}

// HubResult is the Result of a reconcile in which the hub has a part.
func HubResult(err error) (reconcile.Result, error) {
	if objectset.IsStale(err) {
		return reconcile.Result{RequeueAfter: HubCacheBehind}, nil
	}
	return reconcile.Result{}, err
}

// HubOptions are those of a controller that works with the hub: users wait for it, so it repeats what failed sooner than
// controller-runtime does by itself, and gives an answer up that does not come.
func HubOptions(workers int) controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: workers,
		ReconciliationTimeout:   limit,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry),
	}
}
