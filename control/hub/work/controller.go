package work

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// Options of the controller.
type BindingOptions struct {
	// HubID is the UID of the hub's namespace kube-system.
	HubID       string
	Interpreter *kinds.Interpreter
	// Workers is how many bindings are worked on at a time; 0: 16.
	Workers int
	// Skips gets the override rules that are skipped; nil: they are not reported.
	Skips *policy.Skips
	// OrphanAfter is how long the binding that a Work names may be missing before this is told; 0: a minute.
	OrphanAfter time.Duration
}

const (
	defaultWorkers = 16
	// firstRetry and lastRetry bound the backoff after a failure.
	firstRetry, lastRetry = 20 * time.Millisecond, 15 * time.Second
	// goneAgain is when Works that are being deleted are looked at again if no event comes.
	goneAgain = 5 * time.Second
	// defaultOrphanAfter: a binding that is deleted and made again is away for less.
	defaultOrphanAfter = time.Minute
)

type reconciler struct {
	BindingOptions
	client   client.Client
	cache    cache.Cache
	live     client.Reader // past the cache, for what must not be decided from an old picture
	recorder record.EventRecorder
	writer   *Writer
	stale    *kube.StaleCaches[reconcile.Request]
	duration durations
	orphans  *orphans
}

// Setup adds the controller to the manager.
func SetupBindings(mgr ctrl.Manager, o BindingOptions) error {
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.OrphanAfter == 0 {
		o.OrphanAfter = defaultOrphanAfter
	}
	if o.Skips == nil {
		o.Skips = &policy.Skips{}
	}
	r := &reconciler{
		BindingOptions: o, client: mgr.GetClient(), cache: mgr.GetCache(), live: mgr.GetAPIReader(),
		recorder: mgr.GetEventRecorderFor("pelago-hub"), writer: NewWriter(mgr.GetClient()),
	}
	var err error
	if r.stale, err = kube.NewStaleCaches[reconcile.Request]("works", slog.Default(), r.recorder); err != nil {
		return fmt.Errorf("set up the controller of Works: %w", err)
	}
	if r.duration, err = newDurations(); err != nil {
		return fmt.Errorf("set up the controller of Works: %w", err)
	}
	if r.orphans, err = newOrphans(); err != nil {
		return fmt.Errorf("set up the controller of Works: %w", err)
	}
	if err := r.watch(mgr, controller.Options{MaxConcurrentReconciles: o.Workers, RateLimiter: limiter()}); err != nil {
		return fmt.Errorf("set up the controller of Works: %w", err)
	}
	return nil
}

func limiter() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstRetry, lastRetry)
}

// Reconcile writes the Works of one binding.
func (r *reconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	wait, err := r.reconcile(ctx, req)
	return r.stale.Result(req, wait, err)
}

func (r *reconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	b := newBinding(req.NamespacedName)
	if err := r.client.Get(ctx, req.NamespacedName, b.Object); err != nil {
		if !apierrors.IsNotFound(err) {
			return 0, err
		}
		r.Skips.Report(title(req.NamespacedName), nil)
		if wait, err := r.released(ctx, req); wait > 0 || err != nil {
			return wait, err
		}
		return r.orphaned(ctx, req)
	}
	r.orphans.note(req, nil)
	begin := time.Now()
	var again time.Duration
	var err error
	if b.GetDeletionTimestamp() != nil {
		again, err = r.finalize(ctx, b)
	} else {
		again, err = r.sync(ctx, b)
	}
	if !errors.As(err, new(*kube.StaleCacheError)) {
		r.duration.observe(begin, err)
	}
	return again, err
}

// sync writes the Works of a binding in the order that never leaves a template nowhere.
func (r *reconciler) sync(ctx context.Context, b Binding) (time.Duration, error) {
	in, err := r.input(ctx, b)
	if err != nil || in == nil {
		r.failed(b, nil, err)
		return 0, err
	}
	plan, err := DesiredWorks(in)
	if err != nil {
		r.failed(b, in.Template, fmt.Errorf("make the Works of %s: %w", b.title(), err))
		return 0, err
	}
	if len(plan.Purge)+len(plan.Surplus) > 0 { // the cached binding may be older than the decision
		if err := r.unchanged(ctx, b); err != nil {
			return 0, err
		}
	}
	if err := r.writer.Delete(ctx, plan.Purge); err != nil {
		return 0, r.notCleaned(b, in.Template, err)
	}
	if len(plan.Wait) > 0 {
		return goneAgain, nil
	}
	r.Skips.Report(b.title(), plan.Skipped)
	template := OfReference(b.Spec.Resource)
	err = errors.Join(r.writer.Create(ctx, template, plan.Create), r.writer.Update(ctx, template, plan.Update))
	r.report(b, in.Template, plan, err)
	if err == nil {
		r.tellOverrides(b, in.Works, plan)
		err = r.notCleaned(b, in.Template, r.writer.Delete(ctx, plan.Surplus))
	}
	for _, f := range plan.Failed {
		err = errors.Join(err, fmt.Errorf("make the Work of %s for cluster %s: %w", b.title(), f.Cluster, f.Err))
	}
	return 0, err
}

// unchanged is a StaleCacheError if the API server has another spec of the binding than the cache.
func (r *reconciler) unchanged(ctx context.Context, b Binding) error {
	now := newBinding(client.ObjectKeyFromObject(b))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(b), now.Object); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return kube.StaleCache(b.Object, b.GetResourceVersion(), "none")
		}
		return fmt.Errorf("read %s: %w", b.title(), err)
	}
	if now.GetUID() != b.GetUID() || now.GetGeneration() != b.GetGeneration() {
		return kube.StaleCache(b.Object, b.GetResourceVersion(), now.GetResourceVersion())
	}
	return nil
}

func newID() string { return string(uuid.NewUUID()) }
