package propagate

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// Options are the facts that the controller works with.
type Options struct {
	Interpreter *kinds.Interpreter
	Room        *Capacity
	// Workers is how many templates are reconciled at a time; 8 if 0.
	Workers int
	// FirstReport is how long first decisions wait for a cluster that is new and has not reported; 0: 30 s.
	FirstReport time.Duration
}

const (
	defaultWorkers     = 8
	defaultFirstReport = 30 * time.Second
	// firstRetry and lastRetry bound the pauses after what failed or could not be decided.
	firstRetry = time.Second
	lastRetry  = 10 * time.Second
	// limit bounds one reconcile.
	limit = 30 * time.Second
	// askAgain bounds the look whether a write was made after all.
	askAgain = 5 * time.Second
	// detachAfter is how long a binding that others need waits for one of these that is gone: it may be made again.
	detachAfter = 3 * time.Second
)

// Setup adds the controller to the manager. Informers of templates in its cache, as unstructured objects, are made and removed
// here.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := setup(mgr, o); err != nil {
		return fmt.Errorf("set up controller propagate: %w", err)
	}
	return nil
}

func setup(mgr ctrl.Manager, o Options) error {
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.FirstReport == 0 {
		o.FirstReport = defaultFirstReport
	}
	for _, b := range []client.Object{&workv1alpha2.ResourceBinding{}, &workv1alpha2.ClusterResourceBinding{}} {
		for field, values := range map[string]func(client.Object) []string{
			indexTemplate: byTemplate, indexDependency: byDependency, indexPolicy: byPolicy} {
			if err := kube.AddIndex(mgr, b, field, values); err != nil {
				return err
			}
		}
		if err := kube.AddFlagIndex(mgr, b, indexUndecided, func(o client.Object) bool { return undecided(bindingOf(o)) }); err != nil {
			return err
		}
	}
	for _, p := range []client.Object{&policyv1alpha1.PropagationPolicy{}, &policyv1alpha1.ClusterPropagationPolicy{}} {
		if err := kube.AddIndex(mgr, p, indexSelects, bySelection); err != nil {
			return err
		}
	}
	asking, err := discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return err
	}
	r := &reconciler{Options: o, order: newOrder(), client: mgr.GetClient(), cache: mgr.GetCache(), live: mgr.GetAPIReader(),
		events: mgr.GetEventRecorderFor("pelago-hub"), wake: make(chan struct{}, 1), clusters: make(chan bool, 1),
		retry: workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry), missing: map[Key]time.Time{}}
	if r.stale, err = kube.NewStaleCaches[Key]("propagate", slog.Default(), r.events); err != nil {
		return err
	}
	if r.counts, err = newCounts(); err != nil {
		return err
	}
	r.kinds = newKinds(mgr.GetCache(), mgr.GetAPIReader(), asking, r.onTemplate())
	c, err := controller.NewTyped("propagate", mgr, controller.TypedOptions[Key]{
		Reconciler: r, MaxConcurrentReconciles: o.Workers, ReconciliationTimeout: limit, NewQueue: r.order.queue,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry),
	})
	if err != nil {
		return err
	}
	return c.Watch(source.TypedFunc[Key](r.start))
}

type reconciler struct {
	Options
	client  client.Client
	cache   cache.Cache
	live    client.Reader
	events  record.EventRecorder
	kinds   *templateKinds
	classes classes
	counts  *counts
	queue   workqueue.TypedRateLimitingInterface[Key]
	order   *order                          // of the queue
	retry   workqueue.TypedRateLimiter[Key] // requeue intervals of what waits for a condition outside the template
	stale   *kube.StaleCaches[Key]
	// wake asks for the kinds to be set anew; clusters says that clusters changed, true if it was not only their load.
	wake     chan struct{}
	clusters chan bool

	templates recent[*unstructured.Unstructured]
	bindings  recent[client.Object]

	mu      sync.Mutex
	missing map[Key]time.Time // templates that a binding which is gone needed, since when
}
