package execute

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// fieldOwner is the manager of our fields in members.
	fieldOwner = "pelago"
	// minRetry and maxRetry bound the pause after a failure; it doubles each time, with a fifth of jitter.
	minRetry = 200 * time.Millisecond
	maxRetry = 30 * time.Second
)

// Options says whose Works are executed and with what.
type Options struct {
	Cluster     string
	HubID       string // UID of the hub's namespace kube-system
	Interpreter *kinds.Interpreter
	Workers     int                  // Works worked on at a time; 0: 5
	Hub         client.Client        // writes the status of Works and removes their finalizer
	Works       *Works               // of this cluster, possibly those of others as well
	Member      *rest.Config         // of no QPS (0): the member's own flow control is left to say how much is too much
	Recorder    record.EventRecorder // Events on Works
	Log         *slog.Logger
	Metrics     *Metrics      // shared by all Executions of a process; nil: nobody reads them
	Timeout     time.Duration // of one request to the member; 0: 30 s
	// Seen is how long after a change the status of a Work waits for what the member's controller says of it: one write instead of
	// two. 0: 500 ms.
	Seen time.Duration
}

// Execution executes the Works of one cluster. Make one with New; Start runs it once.
type Execution struct {
	o         Options
	namespace string
	member    *member
	kinds     *memberKinds // of Works' objects
	scalers   *memberKinds // of what scales them
	memory    *memory
	retries   workqueue.TypedRateLimiter[string]
	reported  kube.Expectations[string] // of Works, that our writes of their status made
	made      kube.Expectations[string] // of Works' objects in the member, that our writes made

	queued sync.RWMutex
	queue  workqueue.TypedRateLimitingInterface[reconcile.Request] // nil before the start
}

// New prepares an execution; no connection is made.
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
		o: o, namespace: workv1alpha2.ExecutionNamespace(o.Cluster), member: m, memory: newMemory(),
		retries: workqueue.NewTypedItemExponentialFailureRateLimiter[string](minRetry, maxRetry),
	}
	e.kinds = newKinds(m.managed, e.newsOf(e.onMember))
	e.scalers = newKinds(m.scalers, each(e.onScaler))
	return e, nil
}

// Start runs the execution until ctx ends. It does not wait for the member.
func (e *Execution) Start(ctx context.Context) error {
	c, err := controller.NewTypedUnmanaged("execution", controller.TypedOptions[reconcile.Request]{
		Reconciler:              reconcile.Func(e.reconcile),
		MaxConcurrentReconciles: e.o.Workers,
		SkipNameValidation:      ptr.To(true), // there is one for each cluster
		Logger:                  logr.FromSlogHandler(e.o.Log.Handler()),
	})
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
	running.Go(func() { e.member.run(ctx, e.kickAll) })
	e.o.Interpreter.Follow(ctx, func(changed map[schema.GroupVersionKind]bool) {
		for _, work := range e.kinds.usedBy(changed) {
			e.retries.Forget(work)
			e.kick(work)
		}
	})
	err = c.Start(ctx)
	cancel()
	running.Wait()
	e.o.Metrics.forget(e.o.Cluster)
	return err
}

// each makes an event handler that hands over every object, of an update the former one as well.
func each(f func(client.Object)) toolscache.ResourceEventHandler {
	h := now(f)
	h.UpdateFunc = func(old, obj any) { h.AddFunc(old); h.AddFunc(obj) }
	return h
}

// newsOf makes an event handler like each, which leaves out the echo of our own writes: the look that wrote has seen what it made, and
// it need not be remembered any more.
func (e *Execution) newsOf(f func(client.Object)) toolscache.ResourceEventHandler {
	h := each(f)
	echo := func(obj any) bool {
		o, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return false
		}
		work := o.GetAnnotations()[workv1alpha1.AnnotationWorkName]
		if !e.made.OwnWrite(work, o.GetResourceVersion()) {
			return false
		}
		e.memory.cached(work, o)
		return true
	}
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if !echo(obj) {
				h.OnAdd(obj, false)
			}
		},
		UpdateFunc: func(old, obj any) {
			if !echo(obj) {
				h.OnUpdate(old, obj)
			}
		},
		DeleteFunc: h.OnDelete,
	}
}

// now makes an event handler that hands over every object as it is.
func now(f func(client.Object)) toolscache.ResourceEventHandlerFuncs {
	hand := func(obj any) {
		if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
			obj = gone.Obj
		}
		if o, ok := obj.(client.Object); ok {
			f(o)
		}
	}
	return toolscache.ResourceEventHandlerFuncs{AddFunc: hand, DeleteFunc: hand, UpdateFunc: func(_, obj any) { hand(obj) }}
}

// onWork leaves out the echo of our own write of a status. If it comes before the answer to the write there is one look too many.
func (e *Execution) onWork(o client.Object) {
	e.memory.shown(o.GetName(), o.GetResourceVersion())
	if !e.reported.OwnWrite(o.GetName(), o.GetResourceVersion()) {
		e.kick(o.GetName())
	}
}

// onMember: the object in the member names its Work. If it has lost the name, its former state, which is handed over too, has it.
func (e *Execution) onMember(o client.Object) {
	if a := o.GetAnnotations(); a[workv1alpha1.AnnotationWorkNamespace] == e.namespace {
		e.kick(a[workv1alpha1.AnnotationWorkName])
	}
}

func (e *Execution) kick(work string) {
	e.queued.RLock()
	defer e.queued.RUnlock()
	if e.queue != nil && work != "" {
		e.queue.Add(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: e.namespace, Name: work}})
	}
}

// kickAll looks at every Work again: the member is back.
func (e *Execution) kickAll() {
	for _, work := range e.memory.works() {
		e.retries.Forget(work)
		e.kick(work)
	}
}
