// Package execute runs the Works of one cluster. Execution applies what a Work of namespace
// karmada-es-<cluster> holds to the member and writes the result into the Work's status.
//
// pelago-hub runs it for each push member, pelago-agent --roles=execution for its own cluster. It
// deletes an object only if its Work is being deleted, and changes no object without the hub's id,
// except to adopt one where the template or its policy requests it, or Karmada made it of the same
// template. It does not taint clusters (control/hub/cluster), select them (scheduler), or report
// their status (control/execute/collect).
package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/execute/meter"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// fieldOwner is the manager of our fields in members.
	fieldOwner = "pelago"
	// minRetry and maxRetry bound the exponential backoff after a failure, which has 20 % of
	// jitter.
	minRetry = 200 * time.Millisecond
	maxRetry = 30 * time.Second
)

// Options of an Execution.
type Options struct {
	Cluster     string
	HubID       string // UID of the hub's namespace kube-system
	Interpreter *kinds.Interpreter
	Workers     int           // concurrent reconciles; 0: 5
	Hub         client.Client // writes the status of Works and removes their finalizer
	Works       *Works        // of this cluster and possibly others
	// without QPS (0) requests are limited only by the member's flow control
	Member   *rest.Config
	Recorder record.EventRecorder // Events on Works
	Log      *slog.Logger
	Metrics  *Metrics      // shared by all Executions of a process; nil: not exported
	Timeout  time.Duration // of one request to the member; 0: 30 s
	// ScalingInterval is meter.Source.Interval.
	ScalingInterval time.Duration
	// Seen is how long the status of a Work waits for the member's controller to observe a change:
	// one write instead of two. 0: 500 ms.
	Seen time.Duration
	// AllEvents records successes that are no news, too: the first dispatch of a Work, and each
	// time that it is applied.
	AllEvents bool
}

// Execution executes the Works of one cluster. Make one with New; Start runs it once.
type Execution struct {
	o         Options
	namespace string
	member    *member
	kinds     *memberKinds // of the objects of Works
	scalers   *memberKinds // of autoscalers
	retries   workqueue.TypedRateLimiter[string]
	states    workStates

	// By Work: our last write of its status at the hub, and of its object in the member.
	statuses       lastWrites[*workv1alpha1.Work]
	statusVersions kube.Expectations[string]
	objects        lastWrites[*unstructured.Unstructured]
	objectVersions kube.Expectations[string]

	queued sync.RWMutex
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request] // nil before the start
}

// New prepares an execution; it does not connect.
func New(o Options) (*Execution, error) {
	if o.Cluster == "" || o.HubID == "" {
		return nil, errors.New("prepare the execution of Works: cluster and hub id must be given")
	}
	if o.Workers == 0 {
		o.Workers = 5
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Seen == 0 {
		o.Seen = 500 * time.Millisecond
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	m, err := newMember(o)
	if err != nil {
		return nil, fmt.Errorf("prepare access to cluster %s: %w", o.Cluster, err)
	}
	e := &Execution{
		o: o, namespace: workv1alpha2.ExecutionNamespace(o.Cluster), member: m,
		retries: workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
		states:  workStates{works: map[string]*workState{}, users: map[objectKey]string{}},
	}
	e.kinds = newKinds(m.managed, e.withoutOwnWrites(e.onMember))
	e.scalers = newKinds(m.scalers, forOldAndNew(e.onScaler))
	return e, nil
}

// Start runs the execution until ctx ends. It does not wait for the member.
func (e *Execution) Start(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("execution", e.controllerOptions())
	if err != nil {
		return fmt.Errorf("execute the Works of cluster %s: %w", e.o.Cluster, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err = c.Watch(source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		e.queued.Lock()
		e.queue = queue
		e.queued.Unlock()
		return e.o.Works.follow(ctx, e.namespace, e.onWork)
	}))
	if err != nil {
		return fmt.Errorf("watch the Works of cluster %s: %w", e.o.Cluster, err)
	}
	var running sync.WaitGroup
	running.Go(func() { e.member.run(ctx, e.enqueueAll) })
	e.o.Interpreter.Follow(ctx, func(changed func(schema.GroupVersionKind) bool) {
		for _, part := range e.kinds.usedBy(changed) {
			work := workOfPart(part)
			e.retries.Forget(work)
			e.enqueue(work)
		}
	})
	err = c.Start(ctx)
	cancel()
	running.Wait()
	e.o.Metrics.forget(e.o.Cluster)
	return err
}

// controllerOptions have no timeout of a reconcile: each request to the member has one.
func (e *Execution) controllerOptions() controller.Options {
	return controller.Options{
		Reconciler:              reconcile.Func(e.reconcile),
		MaxConcurrentReconciles: e.o.Workers,
		RateLimiter:             kube.HubRateLimiter(),
		SkipNameValidation:      ptr.To(true), // there is one for each cluster
		Logger:                  logr.FromSlogHandler(e.o.Log.Handler()),
	}
}

// forOldAndNew returns an event handler that calls f with each object, and with both objects of an
// update.
func forOldAndNew(f func(client.Object)) toolscache.ResourceEventHandler {
	h := forNew(f)
	h.UpdateFunc = func(old, obj any) { h.AddFunc(old); h.AddFunc(obj) }
	return h
}

// withoutOwnWrites is forOldAndNew without the events of our own writes, whose result the reconcile
// that wrote has handled.
func (e *Execution) withoutOwnWrites(f func(client.Object)) toolscache.ResourceEventHandler {
	h := forOldAndNew(f)
	own := func(obj any) bool {
		o, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		part := e.states.partOf(keyOf(o))
		if part == "" || !e.objectVersions.OwnWrite(part, o.GetResourceVersion()) {
			return false
		}
		e.objects.cached(part, o)
		return true
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if !own(obj) {
				h.OnAdd(obj, false)
			}
		},
		UpdateFunc: func(old, obj any) {
			if !own(obj) {
				h.OnUpdate(old, obj)
			}
		},
		DeleteFunc: h.OnDelete,
	}
}

// forNew returns an event handler that calls f with the present state of each object, or the last
// one of a deleted object.
func forNew(f func(client.Object)) toolscache.ResourceEventHandlerFuncs {
	call := func(obj any) {
		if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(client.Object); ok {
			f(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{AddFunc: call, DeleteFunc: call, UpdateFunc: func(_, obj any) { call(obj) }}
}

// onWork ignores the events of our own status writes. An event that arrives before the response to
// the write causes a superfluous reconcile.
func (e *Execution) onWork(o client.Object) {
	e.statuses.cached(o.GetName(), o)
	if !e.statusVersions.OwnWrite(o.GetName(), o.GetResourceVersion()) {
		e.enqueue(o.GetName())
	}
}

// onMember enqueues the Work that the annotations of a member's object name. If they were removed,
// the old state of the update, for which it is called as well, still has them.
func (e *Execution) onMember(o client.Object) {
	if a := o.GetAnnotations(); a[workv1alpha1.AnnotationWorkNamespace] == e.namespace {
		e.enqueue(a[workv1alpha1.AnnotationWorkName])
	}
}

func (e *Execution) enqueue(work string) {
	e.queued.RLock()
	defer e.queued.RUnlock()
	if e.queue != nil && work != "" {
		e.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: e.namespace, Name: work}})
	}
}

// enqueueAll enqueues every Work without backoff: the member has recovered.
func (e *Execution) enqueueAll() {
	for _, part := range e.states.names() {
		work := workOfPart(part)
		e.retries.Forget(work)
		e.enqueue(work)
	}
}

// Works are the Works in a cache, of one cluster or of all. Executions share one event handler:
// with one for each of a hundred clusters, every event of a Work would wake a hundred goroutines.
type Works struct {
	cache cache.Cache

	mu        sync.RWMutex
	watched   bool
	followers map[string]map[*follower]struct{} // by namespace
}

// follower receives the Works of a namespace.
type follower struct{ notice func(client.Object) }

// NewWorks returns the Works of a cache, which may start later.
func NewWorks(c cache.Cache) *Works {
	return &Works{cache: c, followers: map[string]map[*follower]struct{}{}}
}

// follow calls notice with each Work of the namespace in the cache, and on each event, until ctx
// ends. It does not wait for the cache.
func (w *Works) follow(ctx context.Context, namespace string, notice func(client.Object)) error {
	f := &follower{notice}
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.watched {
		informer, err := w.cache.GetInformer(ctx, &workv1alpha1.Work{}, cache.BlockUntilSynced(false))
		if err != nil {
			return err
		}
		if _, err := informer.AddEventHandler(forNew(w.dispatch)); err != nil {
			return err
		}
		w.watched = true
	}
	if w.followers[namespace] == nil {
		w.followers[namespace] = map[*follower]struct{}{}
	}
	w.followers[namespace][f] = struct{}{}
	context.AfterFunc(ctx, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if delete(w.followers[namespace], f); len(w.followers[namespace]) == 0 {
			delete(w.followers, namespace)
		}
	})
	go w.list(ctx, namespace, notice)
	return nil
}

// list calls notice with the Works in the cache once it is synced. Later ones arrive as events.
func (w *Works) list(ctx context.Context, namespace string, notice func(client.Object)) {
	var list workv1alpha1.WorkList
	if w.cache.List(ctx, &list, client.InNamespace(namespace), client.UnsafeDisableDeepCopy) != nil {
		return // ctx has ended: a running cache returns no error
	}
	for i := range list.Items {
		notice(&list.Items[i])
	}
}

func (w *Works) dispatch(o client.Object) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	for f := range w.followers[o.GetNamespace()] {
		f.notice(o)
	}
}

// get reads a Work from the cache.
func (w *Works) get(ctx context.Context, key client.ObjectKey) (*workv1alpha1.Work, error) {
	work := &workv1alpha1.Work{}
	if err := w.cache.Get(ctx, key, work); err != nil {
		return nil, fmt.Errorf("read Work %s: %w", key, err)
	}
	return work, nil
}

// Metrics have Karmada's names. Their labels are bounded by the number of clusters and kinds.
// Register them once in a process.
type Metrics struct {
	*prometheus.Registry     // collects the others
	sync, pull               *prometheus.HistogramVec
	created, updated, delete *prometheus.CounterVec
}

// NewMetrics returns the metrics, not registered.
func NewMetrics() *Metrics {
	count := func(name, help string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			[]string{"result", "apiversion", "kind", "cluster"})
	}
	m := &Metrics{
		Registry: prometheus.NewRegistry(),
		sync: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "work_sync_workload_duration_seconds", Help: "How long it takes to bring a Work's object into its cluster.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}, []string{"result"}),
		pull:    meter.NewPulled(),
		created: count("create_resource_to_cluster", "Objects created in a cluster."),
		updated: count("update_resource_to_cluster", "Objects changed in a cluster."),
		delete:  count("delete_resource_from_cluster", "Objects deleted in a cluster."),
	}
	m.MustRegister(m.sync, m.pull, m.created, m.updated, m.delete)
	return m
}

func (m *Metrics) synced(began time.Time, err error) {
	m.sync.WithLabelValues(result(err)).Observe(time.Since(began).Seconds())
}

func count(of *prometheus.CounterVec, cluster string, u *unstructured.Unstructured, err error) {
	of.WithLabelValues(result(err), u.GetAPIVersion(), u.GetKind(), cluster).Inc()
}

func result(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// forget removes the counters of a cluster.
func (m *Metrics) forget(cluster string) {
	for _, c := range []*prometheus.CounterVec{m.created, m.updated, m.delete} {
		c.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	}
}
