package execute

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/execute/meter"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// syncGrace is how long Works wait for the first list of their kind before each reads its
	// object from the server.
	syncGrace = 3 * time.Second
	// staleAfter bounds the age of the inputs of a write. It is below a leader's lease (15 s): a
	// process that was suspended while another one took over writes nothing that it had computed
	// before.
	staleAfter = 10 * time.Second
	// attempts bounds how often a conflicting object is read again within one reconcile.
	attempts = 4
)

// task is one reconcile of one Work.
type task struct {
	*Execution
	work  *workv1alpha1.Work
	state *workState
	began time.Time // when its inputs were read
	// foreign is set if the object was found to be absent or not ours.
	foreign bool
}

func (e *Execution) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	work, err := e.o.Works.get(ctx, req.NamespacedName)
	switch {
	case apierrors.IsNotFound(err):
		e.states.forget(req.Name)
		e.statuses.forget(req.Name)
		e.objects.forget(req.Name)
		e.retries.Forget(req.Name)
		e.statusVersions.Forget(req.Name)
		e.objectVersions.Forget(req.Name)
		return reconcile.Result{}, e.kinds.release(ctx, req.Name)
	case err != nil:
		return reconcile.Result{}, err
	}
	t := &task{Execution: e, work: work, state: e.states.get(work.Name, work.UID), began: time.Now()}
	if e.statusVersions.Stale(work.Name, work.ResourceVersion, t.began) {
		last, ok := e.statuses.get(work.Name)
		if !ok {
			return reconcile.Result{RequeueAfter: kube.RequeueStale}, nil
		}
		work.ResourceVersion, work.Status = last.ResourceVersion, *last.Status.DeepCopy()
	} else {
		e.statuses.cached(work.Name, work)
	}
	suppressed := work.Labels[workv1alpha1.LabelInstruction] == workv1alpha1.InstructionSuppressed
	switch {
	case !work.DeletionTimestamp.IsZero():
		if !controllerutil.ContainsFinalizer(work, workv1alpha1.FinalizerExecution) {
			return reconcile.Result{}, nil
		}
		return t.remove(ctx, suppressed)
	case suppressed:
		return reconcile.Result{}, nil
	}
	return t.execute(ctx)
}

// execute applies the manifest to the member and reports the status to the hub.
func (t *task) execute(ctx context.Context) (reconcile.Result, error) {
	manifest, err := manifestOf(t.work)
	if err != nil {
		// until the manifest changes
		return t.report(ctx, outcome{failure: err.Error(), kept: true}, 0)
	}
	// Before a rule of the kind can fail: the Work is reconciled when it is corrected.
	if err := t.kinds.record(ctx, t.work.Name, manifest.GroupVersionKind()); err != nil {
		return reconcile.Result{}, err
	}
	want, err := desiredOf(manifest, t.work, t.o.HubID, t.o.Interpreter)
	if err != nil {
		// until the manifest or the rule changes
		return t.report(ctx, outcome{failure: err.Error(), kept: true}, 0)
	}
	t.state.reset(want.hash)
	t.states.setObject(t.work.Name, keyOf(want.object))
	suspended := ptr.Deref(t.work.Spec.SuspendDispatching, false)
	if cause := t.member.unavailable(); cause != "" {
		return t.awaitMember(ctx, cause, suspended)
	}

	var have *unstructured.Unstructured
	if suspended {
		if have, err = t.observe(ctx, want.object); have != nil && ownerOf(have, t.o.HubID, t.key()) != oursOfWork {
			have = nil
		}
	} else {
		have, err = t.converge(ctx, want)
	}
	found := outcome{have: have, dropped: t.state.dropped, suspended: suspended}
	var later retryLater
	switch {
	case errors.As(err, &later) && have == nil:
		return reconcile.Result{RequeueAfter: later.Duration}, nil
	case errors.As(err, &later): // this manifest was applied, and will be again
		found.scaling = t.work.Status.Scaling
		return t.report(ctx, found, later.Duration)
	case errors.Is(err, errStale), ctx.Err() != nil:
		return reconcile.Result{RequeueAfter: minRetry}, nil
	case err != nil && maybeUnreachable(err):
		if cause := t.member.verify(ctx); cause != "" {
			return t.awaitMember(ctx, cause, suspended)
		}
	}
	t.o.Metrics.synced(t.began, err)
	var again time.Duration
	found.scaling, again = t.state.scaling.Answer(ctx, t.member.meter(t.o), t.work.Annotations[workv1alpha1.AnnotationScaling])
	if err != nil {
		due := retryAfter(want.object, err, wait.Jitter(t.retries.When(t.work.Name), 0.2))
		found.kept = have == nil && !t.foreign
		found.failure = explain(t.o.Cluster, want.object, err)
		return t.report(ctx, found, due)
	}
	t.retries.Forget(t.work.Name)
	return t.report(ctx, found, again)
}

// awaitMember reports that the member is unreachable, unless the manifest was applied. All Works
// are reconciled when it recovers.
func (t *task) awaitMember(ctx context.Context, cause string, suspended bool) (reconcile.Result, error) {
	applied := meta.FindStatusCondition(t.work.Status.Conditions, workv1alpha1.ConditionApplied)
	switch {
	case suspended:
		return t.report(ctx, outcome{kept: true, suspended: true}, 0)
	case applied != nil && applied.Status == metav1.ConditionTrue && applied.ObservedGeneration == t.work.Generation:
		return reconcile.Result{}, nil
	}
	return t.report(ctx, outcome{kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
}

func (t *task) key() types.NamespacedName { return client.ObjectKeyFromObject(t.work) }

// fresh returns errStale if the inputs are too old for a write.
func (t *task) fresh() error {
	if time.Since(t.began) > staleAfter {
		return errStale
	}
	return nil
}

// observe returns the object as the member has it, nil if the member has no such object.
func (t *task) observe(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	w, err := t.kinds.use(ctx, t.work.Name, want.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if !w.synced() {
		if left := syncGrace - time.Since(w.since); left > 0 {
			return nil, retryLater{min(left, 100*time.Millisecond), "waits for the first list of its kind"}
		}
		return t.live(ctx, want)
	}
	have := ofKind(want.GroupVersionKind())
	err = t.member.managed.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		// It may exist without our label, or be newer than the cache.
		t.objects.forget(t.work.Name)
		return t.live(ctx, want)
	case err != nil:
		return nil, fmt.Errorf("read from the cache: %w", err)
	}
	t.objects.cached(t.work.Name, have)
	if last, ok := t.objects.get(t.work.Name); ok {
		return last, nil
	}
	return unpack(have)
}

// live reads the object from the member's API server.
func (t *task) live(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	have := ofKind(want.GroupVersionKind())
	err := t.member.client.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err) && !kube.NotServed(err):
		t.objects.forget(t.work.Name)
		return nil, nil
	case err != nil:
		return nil, err
	}
	t.objects.put(t.work.Name, have)
	return have, nil
}

// converge brings the object to its desired state and returns it.
func (t *task) converge(ctx context.Context, want *desired) (*unstructured.Unstructured, error) {
	have, err := t.observe(ctx, want.object)
	for range attempts {
		if err != nil {
			return nil, err
		}
		var made *unstructured.Unstructured
		made, err = t.step(ctx, want, have)
		if err == nil {
			return made, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			if t.foreign = have == nil || ownerOf(have, t.o.HubID, t.key()) != oursOfWork; t.foreign {
				return nil, err // its status is not reported
			}
			return have, err
		}
		have, err = t.live(ctx, want.object)
	}
	if err == nil {
		err = errBusy
	}
	return nil, err
}

// step is one attempt, based on one read of the object.
func (t *task) step(ctx context.Context, want *desired, have *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	if have == nil {
		return t.create(ctx, want)
	}
	switch ownerOf(have, t.o.HubID, t.key()) {
	case otherHub:
		id := have.GetAnnotations()[pelagov1alpha1.AnnotationHubID]
		return nil, refusal("it belongs to another hub, " + id + ", and is left alone; if this hub has taken the place of that one, " +
			"annotate its namespace kube-system with " + pelagov1alpha1.AnnotationHubID + "=" + id + " and start pelago-hub again; " +
			"else delete the object there, or in the cluster")
	case oursOfOther:
		if other, err := t.holder(ctx, have); err != nil || other != "" {
			return nil, errors.Join(err, refusal("it belongs to Work "+other+" as well; remove one of the two templates"))
		}
	case unmanaged:
		var err error
		from := anyManager
		switch {
		case propagated(want.object, have):
			// the cache, which has what carries the label, leaves managedFields out
			if have, err = t.live(ctx, want.object); err != nil || have == nil || !propagated(want.object, have) {
				return nil, orRetry(err)
			}
			from = karmada
		case !overwrites(want.object):
			return nil, refusal("it is there already and not managed by the hub; set conflictResolution: Overwrite in the policy, or " +
				"annotation " + workv1alpha1.AnnotationConflictResolution + "=overwrite on the template, to take it over")
		}
		if have, err = t.adopt(ctx, have, from); err != nil {
			return nil, err
		}
	}
	return t.update(ctx, want, have)
}

// holder returns the other Work that has the object, "" if no other has it or that one is being
// deleted.
func (t *task) holder(ctx context.Context, have *unstructured.Unstructured) (string, error) {
	a := have.GetAnnotations()
	if a[workv1alpha1.AnnotationWorkNamespace] != t.namespace {
		return "", nil // the cluster had another name
	}
	key := types.NamespacedName{Namespace: t.namespace, Name: a[workv1alpha1.AnnotationWorkName]}
	other, err := t.o.Works.get(ctx, key)
	switch {
	case apierrors.IsNotFound(err), err == nil && !other.DeletionTimestamp.IsZero():
		return "", nil
	case err != nil:
		return "", err
	}
	theirs, err := manifestOf(other)
	if err != nil || keyOf(theirs) != keyOf(have) {
		return "", nil // its manifest is another object, or none
	}
	return key.Name, nil
}

// objectKey identifies an object of the member in all versions.
type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// workState is what the reconciles of one Work keep in memory. It saves requests: losing it at a
// restart is harmless. Only the worker that reconciles the Work uses it, except object.
type workState struct {
	uid    types.UID // of the Work
	object objectKey // guarded by workStates.mu
	hash   string    // of the manifest that the following fields are about
	// dropped are the fields that the member does not know; put is set if the manifest has
	// duplicate list keys.
	dropped []string
	put     bool
	// settled is the digest of the member's object when it was found, or left, in its desired
	// state; scaled is set if an autoscaler scaled it then.
	settled string
	scaled  bool
	scaling meter.Last
	// changedAt is when we last created or changed the object.
	changedAt time.Time
	// reverts counts changes by others that were reverted, the last one at revertedAt.
	reverts    int
	revertedAt time.Time
}

// reset clears the fields that are about another manifest.
func (s *workState) reset(hash string) {
	if s.hash != hash {
		s.hash, s.dropped, s.put, s.settled, s.reverts = hash, nil, false, "", 0
	}
}

// workStates are the states of all Works.
type workStates struct {
	mu    sync.Mutex
	works map[string]*workState
	users map[objectKey]string // the Work of each object
}

// get returns the state of a Work, an empty one if the Work had another UID.
func (s *workStates) get(work string, uid types.UID) *workState {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.works[work]
	if state == nil {
		state = &workState{uid: uid}
	} else if state.uid != uid {
		state = &workState{uid: uid, object: state.object}
	}
	s.works[work] = state
	return state
}

// setObject records the object of a Work.
func (s *workStates) setObject(work string, object objectKey) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.works[work]
	if state.object != object && s.users[state.object] == work {
		delete(s.users, state.object)
	}
	state.object, s.users[object] = object, work
}

// workOf returns the Work of an object, "" if the object was not made from a Work.
func (s *workStates) workOf(object objectKey) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users[object]
}

func (s *workStates) forget(work string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if state := s.works[work]; state != nil && s.users[state.object] == work {
		delete(s.users, state.object)
	}
	delete(s.works, work)
}

func (s *workStates) names() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.works))
}

// lastWrites keeps an object for each Work as the server last returned it to us, until the cache
// shows that version or a later one.
type lastWrites[T metav1.Object] struct {
	mu sync.Mutex
	of map[string]T
}

func (l *lastWrites[T]) put(work string, object T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]T{}
	}
	l.of[work] = object
}

// get returns the object if the cache does not show it yet.
func (l *lastWrites[T]) get(work string) (T, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	object, ok := l.of[work]
	return object, ok
}

// cached removes the object unless it is newer than the cached one.
func (l *lastWrites[T]) cached(work string, object metav1.Object) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, ok := l.of[work]
	if ok && (last.GetUID() != object.GetUID() || !kube.OlderVersion(object.GetResourceVersion(), last.GetResourceVersion())) {
		delete(l.of, work)
	}
}

func (l *lastWrites[T]) forget(work string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, work)
}
