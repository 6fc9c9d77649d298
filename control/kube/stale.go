package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// EventStaleCache is the reason of the Event of a reconcile that has waited staleReportAfter
	// for its cache.
	EventStaleCache = "StaleCache"

	// staleReportAfter is how long a reconcile waits for its cache before that is reported. A watch
	// of a server under load may be ten seconds late.
	staleReportAfter = time.Minute
	// firstStaleRetry and lastStaleRetry bound the requeue interval of a reconcile that waits for
	// its cache.
	firstStaleRetry, lastStaleRetry = RequeueStale, 10 * time.Second
)

// StaleCacheError reports that the cache does not show an object as the API server has it. The
// reconcile is to be repeated.
type StaleCacheError struct {
	Object client.Object // has at least a name
	// Cached and Expected are versions of the object, or words for them: "none", "a later one".
	Cached, Expected string
}

// StaleCache is the error of a cache that shows one version of an object where another one is
// expected.
func StaleCache(o client.Object, cached, expected string) error {
	return &StaleCacheError{Object: o, Cached: cached, Expected: expected}
}

func (e *StaleCacheError) Error() string {
	return fmt.Sprintf("the cache shows %s in version %s, expected is %s", e.name(), e.Cached, e.Expected)
}

func (e *StaleCacheError) name() string {
	kind := e.Object.GetObjectKind().GroupVersionKind().Kind
	if kind == "" {
		kind = reflect.TypeOf(e.Object).Elem().Name()
	}
	if e.Object.GetNamespace() == "" {
		return kind + " " + e.Object.GetName()
	}
	return kind + " " + client.ObjectKeyFromObject(e.Object).String()
}

// StaleCaches requeues the reconciles of one controller that read from a stale cache, and reports
// those that do so for longer than staleReportAfter: a warning in the log, an Event on the object,
// and the metric pelago_hub_stale_cache_waiting.
type StaleCaches[K comparable] struct {
	controller string
	log        *slog.Logger
	events     record.EventRecorder
	backoff    workqueue.TypedRateLimiter[K]
	waiting    prometheus.Gauge

	mu    sync.Mutex
	waits map[K]staleWait
}

type staleWait struct {
	since    time.Time
	reported bool
}

// NewStaleCaches is for the controller of a name, which is the metric's label.
func NewStaleCaches[K comparable](controller string, log *slog.Logger, events record.EventRecorder) (*StaleCaches[K], error) {
	waiting, err := Registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "pelago_hub_stale_cache_waiting",
		Help: "Objects whose reconcile has waited for a stale cache for more than a minute."}, []string{"controller"}))
	if err != nil {
		return nil, fmt.Errorf("register the metric of stale caches: %w", err)
	}
	return &StaleCaches[K]{
		controller: controller, log: log, events: events, waiting: waiting.WithLabelValues(controller), waits: map[K]staleWait{},
		backoff: workqueue.NewTypedItemExponentialFailureRateLimiter[K](firstStaleRetry, lastStaleRetry),
	}, nil
}

// Result is the result of a reconcile of key that is to be requeued after wait (0: not) or has
// failed with err. If err is due to a stale cache only (IsStale), the reconcile is requeued with
// backoff.
func (s *StaleCaches[K]) Result(key K, wait time.Duration, err error) (reconcile.Result, error) {
	if !IsStale(err) {
		s.forget(key)
		return reconcile.Result{RequeueAfter: wait}, err
	}
	if since, due := s.note(key); due {
		s.report(key, since, err)
	}
	return reconcile.Result{RequeueAfter: s.backoff.When(key)}, nil
}

// Reconciler is the reconciler of a controller of the hub: do reconciles the object of a key, which
// is reconciled again after wait (0: not), and with a growing interval while the cache is stale
// (StaleCaches).
func Reconciler[K comparable](
	controller string, events record.EventRecorder, do func(ctx context.Context, key K) (wait time.Duration, err error),
) (reconcile.TypedReconciler[K], error) {
	stale, err := NewStaleCaches[K](controller, slog.Default(), events)
	if err != nil {
		return nil, fmt.Errorf("set up controller %s: %w", controller, err)
	}
	return reconcile.TypedFunc[K](func(ctx context.Context, key K) (reconcile.Result, error) {
		wait, err := do(ctx, key)
		return stale.Result(key, wait, err)
	}), nil
}

func (s *StaleCaches[K]) forget(key K) {
	s.backoff.Forget(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits[key].reported {
		s.waiting.Dec()
	}
	delete(s.waits, key)
}

// note returns when a key began to wait, and whether that is to be reported now: once for each
// wait.
func (s *StaleCaches[K]) note(key K) (since time.Time, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w, ok := s.waits[key]
	if !ok {
		w.since = time.Now()
	}
	if due = !w.reported && time.Since(w.since) >= staleReportAfter; due {
		w.reported = true
		s.waiting.Inc()
	}
	s.waits[key] = w
	return w.since, due
}

func (s *StaleCaches[K]) report(key K, since time.Time, err error) {
	args := []any{"controller", s.controller, "key", fmt.Sprint(key), "since", since, "error", err}
	if stale := new(StaleCacheError); errors.As(err, &stale) {
		args = append(args, "object", stale.name(), "cached", stale.Cached, "expected", stale.Expected)
		s.events.Eventf(stale.Object, corev1.EventTypeWarning, EventStaleCache,
			"Controller %s has waited since %s: %v. If this lasts, check the watch of this kind and restart pelago-hub",
			s.controller, since.UTC().Format(time.RFC3339), err)
	}
	s.log.Warn("reconcile waits for a stale cache", args...)
}

// Registered is the collector, or the equal one that another controller or manager of this process
// has registered.
func Registered[C prometheus.Collector](c C) (C, error) {
	err := metrics.Registry.Register(c)
	if already := (prometheus.AlreadyRegisteredError{}); errors.As(err, &already) {
		if same, ok := already.ExistingCollector.(C); ok {
			return same, nil
		}
	}
	return c, err
}

// expectationTTL bounds how long a version is expected. A watch of a server under load may be ten
// seconds late. If the version does not come at all, the server has been restored from a backup and
// continues from there.
const expectationTTL = 30 * time.Second

// Expectations are the versions that our own writes made of objects of one kind, for caches that do
// not show them yet. The zero value is ready.
type Expectations[K comparable] struct {
	mu sync.Mutex
	of map[K]expectation
	// writing has the versions that a watch has shown since the writes that are under way began.
	writing map[K][]string
}

type expectation struct {
	version string
	object  client.Object // nil: only the version is kept (Expect)
	at      time.Time
}

// Expect records the resourceVersion with which the server answered a write.
func (e *Expectations[K]) Expect(key K, version string, now time.Time) {
	e.put(key, expectation{version: version, at: now})
}

// gone stands for the end of an object among the versions that a watch has shown.
const gone = ""

// Write performs a write, whose version a watch may show before the server has responded, and
// records the object in the response, for Latest. others: meanwhile the watch has shown versions
// that are not from this write. For each key, there may be only one write at a time.
func (e *Expectations[K]) Write(key K, o client.Object, do func() error) (others bool, err error) {
	e.mu.Lock()
	if e.writing == nil {
		e.writing = map[K][]string{}
	}
	e.writing[key] = []string{}
	e.mu.Unlock()
	err = do()
	e.mu.Lock()
	defer e.mu.Unlock()
	seen := e.writing[key]
	delete(e.writing, key)
	delete(e.of, key)
	own := o.GetResourceVersion()
	if err != nil {
		return len(seen) > 0, err
	}
	if !slices.Contains(seen, own) && !slices.Contains(seen, gone) {
		e.set(key, expectation{own, o, time.Now()})
	}
	return slices.ContainsFunc(seen, func(v string) bool { return v != own }), nil
}

func (e *Expectations[K]) put(key K, x expectation) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.set(key, x)
}

func (e *Expectations[K]) set(key K, x expectation) {
	if e.of == nil {
		e.of = map[K]expectation{}
	}
	e.of[key] = x
}

// Stale reports whether a cache that shows this version has yet to show a later one of ours.
func (e *Expectations[K]) Stale(key K, cached string, now time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, ok := e.of[key]
	return ok && OlderVersion(cached, x.version) && now.Sub(x.at) < expectationTTL
}

// Latest is the newer one of the cached object (nil: the cache has none) and the expected one. Once
// the cache shows it, or after expectationTTL, the expectation ends. The result must not be
// changed.
func (e *Expectations[K]) Latest(key K, cached client.Object, now time.Time) client.Object {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, ok := e.of[key]
	if !ok {
		return cached
	}
	shown := cached != nil && !OlderVersion(cached.GetResourceVersion(), x.version)
	if shown || x.object == nil || now.Sub(x.at) >= expectationTTL {
		delete(e.of, key)
		return cached
	}
	return x.object
}

// OwnWrite reports whether a version that a watch shows is that of our own write.
func (e *Expectations[K]) OwnWrite(key K, version string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, ok := e.of[key]
	return ok && version == x.version
}

// Observed is OwnWrite, and also ends the expectation of that version, so that a later event with
// it is not taken for the own write. While a write is under way, it returns true for every version,
// and Write reports whether there were others.
func (e *Expectations[K]) Observed(key K, version string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seen, ok := e.writing[key]; ok {
		e.writing[key] = append(seen, version)
		return true
	}
	x, ok := e.of[key]
	if !ok || version != x.version {
		return false
	}
	delete(e.of, key)
	return true
}

// LastWrite is the time of the last write of an object; zero if it is not known.
func (e *Expectations[K]) LastWrite(key K) time.Time {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.of[key].at
}

// Forget ends the expectation of an object that is gone, or whose write failed.
func (e *Expectations[K]) Forget(key K) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if seen, ok := e.writing[key]; ok {
		e.writing[key] = append(seen, gone)
	}
	delete(e.of, key)
}

// OlderVersion compares two resourceVersions of one object: increasing numbers (KEP-5504). If one
// of them is not a number, a is not older.
func OlderVersion(a, b string) bool {
	x, errA := strconv.ParseUint(a, 10, 64)
	y, errB := strconv.ParseUint(b, 10, 64)
	return errA == nil && errB == nil && x < y
}
