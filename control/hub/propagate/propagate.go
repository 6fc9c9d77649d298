// Package propagate creates the ResourceBinding or ClusterResourceBinding of each template that a
// policy selects, including the scheduling decision. It runs in pelago-hub and is the only writer
// of the claim labels on templates and of spec and metadata of bindings. One reconcile belongs to
// one template and computes its whole binding, so start, crash and event take the same path.
package propagate

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/scheduler"
)

// Options are the facts that the controller works with.
type Options struct {
	Interpreter *kinds.Interpreter
	Capacity    *placement.Cache
	// Workers is how many templates are reconciled at a time; 8 if 0.
	Workers int
	// Eviction is when templates leave clusters.
	Eviction placement.EvictionOptions
	// RTTHold is scheduler.RTTTracker.Hold.
	RTTHold time.Duration
	// EmptyWorkloads: see scheduler.Request.Empty.
	EmptyWorkloads bool
	// RunsWorkloads: the hub's cluster runs workloads, so Services of templates are there, too.
	RunsWorkloads bool
	// AllEvents: successes have the Events of Karmada, one for each step.
	AllEvents bool
	// FirstReport is how long first decisions wait for a cluster that is new and has not reported;
	// 0: 30 s.
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
	// classTTL is how long a PriorityClass is cached. Its value is immutable, but the class may be
	// deleted and recreated.
	classTTL = time.Minute
	// verifyTimeout bounds the live read after a write whose result is unknown.
	verifyTimeout = 5 * time.Second
	// detachAfter is how long a dependent's binding keeps a parent binding that is gone, since that
	// may be recreated.
	detachAfter = 3 * time.Second
)

// Setup adds the controller to the manager. Informers of templates in its cache, as unstructured
// objects, are made and removed here.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := setup(mgr, o); err != nil {
		return fmt.Errorf("set up controller propagate: %w", err)
	}
	return nil
}

func setup(mgr ctrl.Manager, o Options) error {
	o.Workers, o.FirstReport = cmp.Or(o.Workers, defaultWorkers), cmp.Or(o.FirstReport, defaultFirstReport)
	o.Eviction = o.Eviction.Defaulted()
	for field, values := range map[string]func(binding.Binding) []string{
		indexTemplate: byTemplate, indexDependency: byDependency, indexPolicy: byPolicy, indexUndecided: byUndecided,
		indexRollout: byRollout} {
		if err := binding.AddIndex(mgr, field, values); err != nil {
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
	r := &reconciler{Options: o, order: newOrder(), client: mgr.GetClient(), cache: mgr.GetCache(), informers: mgr.GetCache(), live: mgr.GetAPIReader(),
		events: kube.EventRecorder(mgr, "pelago-hub"), wake: make(chan struct{}, 1), clusters: make(chan bool, 1),
		retry: workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry), missing: map[Key]time.Time{}, ended: map[Key]bool{}, conflicts: map[Key]string{},
		evictions: placement.EvictionRates{QPS: o.Eviction.Rate}, tracker: scheduler.RTTTracker{Hold: o.RTTHold}}
	templates, err := kube.Reconciler("propagate", r.events, r.reconcile)
	if err != nil {
		return err
	}
	if r.counts, err = newCounts(); err != nil {
		return err
	}
	r.kinds = newKinds(mgr.GetCache(), mgr.GetAPIReader(), asking, r.onTemplate())
	c, err := controller.NewTyped("propagate", mgr, controller.TypedOptions[Key]{
		Reconciler: templates, MaxConcurrentReconciles: o.Workers, ReconciliationTimeout: limit, NewQueue: r.order.queue,
		RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[Key](firstRetry, lastRetry),
	})
	if err != nil {
		return err
	}
	return c.Watch(source.TypedFunc[Key](r.start))
}

type reconciler struct {
	Options
	client    client.Client
	cache     client.Reader
	live      client.Reader
	informers cache.Informers
	events    record.EventRecorder
	kinds     *templateKinds
	classes   classes
	counts    *counts
	queue     workqueue.TypedRateLimitingInterface[Key]
	order     *order // of the queue
	// requeue intervals of what waits for a condition outside the template
	retry workqueue.TypedRateLimiter[Key]
	// wake wakes followKinds, clusters followClusters: true if not only the load of clusters
	// changed.
	wake     chan struct{}
	clusters chan bool
	// generation counts how often clusters, quotas or those of a namespace were set. A decision that is written in
	// another one than it was made in may have been overlooked by addIfDue.
	generation atomic.Uint64
	// leaving are the clusters that templates may have to leave, evictions the rates at which they
	// do.
	leaving   atomic.Pointer[placement.Clusters]
	evictions placement.EvictionRates

	// tracker makes rtts of what clusters report; exports: services were exported or withdrawn.
	tracker scheduler.RTTTracker
	rtts    atomic.Pointer[scheduler.RTTs]
	exports atomic.Bool

	// templates and bindings hold the results of our own writes until the cache shows them. Without
	// them the reconcile that the first of two writes triggers would not see the second one, and
	// repeat it.
	templates kube.Expectations[Key]
	bindings  kube.Expectations[Key]

	mu      sync.Mutex
	missing map[Key]time.Time // templates that a binding which is gone needed, since when
	ended   map[Key]bool      // templates whose own binding is gone
	// conflicts are the last events about policies that disagree on what they need.
	conflicts map[Key]string
}

// counts are metrics under Karmada's names; no label has a value that users choose.
type counts struct {
	match               *prometheus.HistogramVec // no labels
	apply               *prometheus.HistogramVec // result
	attempts, preempted *prometheus.CounterVec   // result
	decisions           *prometheus.CounterVec   // result, schedule_type
	evictions           *prometheus.CounterVec   // reason
	decided             *prometheus.HistogramVec // result, schedule_type
}

func newCounts() (*counts, error) {
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.0001, 2, 18),
		}, labels)
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	c := &counts{
		match: histogram("resource_match_policy_duration_seconds", "How long it takes to find the policy of a template."),
		apply: histogram("resource_apply_policy_duration_seconds",
			"How long it takes to write a template's claim and binding.", "result"),
		attempts: counter("policy_apply_attempts_total",
			"Attempts to write the binding of a template that follows a policy.", "result"),
		preempted: counter("policy_preemption_total", "Templates that a policy has taken over from another one.", "result"),
		decisions: counter("karmada_scheduler_schedule_attempts_total",
			"Attempts to decide where a template runs.", "result", "schedule_type"),
		evictions: counter("pelago_hub_evictions_total", "Clusters that templates have left, by the reason of the eviction task.", "reason"),
		decided: histogram("karmada_scheduler_e2e_scheduling_duration_seconds",
			"How long it takes to decide where a template runs and to write it.", "result", "schedule_type"),
	}
	var errs []error
	for _, v := range []**prometheus.HistogramVec{&c.match, &c.apply, &c.decided} {
		var err error
		*v, err = kube.Registered(*v)
		errs = append(errs, err)
	}
	for _, v := range []**prometheus.CounterVec{&c.attempts, &c.preempted, &c.decisions, &c.evictions} {
		var err error
		*v, err = kube.Registered(*v)
		errs = append(errs, err)
	}
	return c, errors.Join(errs...)
}

// since is a time in seconds.
func since(began time.Time) float64 { return time.Since(began).Seconds() }

func resultOf(err error) string {
	if err != nil {
		return "error"
	}
	return "success"
}

// applied counts an attempt to make a template follow its policy. One that only met a newer object
// is made again at once.
func (c *counts) applied(began time.Time, err error) {
	if kube.IsStale(err) {
		return
	}
	c.apply.WithLabelValues(resultOf(err)).Observe(since(began))
	c.attempts.WithLabelValues(resultOf(err)).Inc()
}

// decision counts an attempt to decide, if one was made; failure is that of the write.
func (c *counts) decision(d decision, failure error) {
	if d.began.IsZero() || kube.IsStale(failure) {
		return
	}
	kind, result := "again", "scheduled"
	if d.first {
		kind = "first"
	}
	var fit *scheduler.FitError
	var room *scheduler.UnschedulableError
	var spread *scheduler.SpreadError
	var quota *placement.QuotaError
	switch {
	case errors.As(d.failure, &quota), errors.As(d.failure, &fit), errors.As(d.failure, &room), errors.As(d.failure, &spread):
		result = "unschedulable"
	case d.failure != nil, failure != nil:
		result = "error"
	}
	c.decisions.WithLabelValues(result, kind).Inc()
	c.decided.WithLabelValues(result, kind).Observe(since(d.began))
}
