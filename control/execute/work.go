package execute

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
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

// task is one reconcile of one manifest of a Work, and of the Work itself that of its first one.
type task struct {
	*Execution
	work  *workv1alpha1.Work
	part  string // see partOf
	state *workState
	began time.Time // when its inputs were read
	// foreign is set if the object was found to be absent or not ours.
	foreign bool
}

// partOf is the name under which memory has the object of a manifest: that of the Work, with an
// ordinal from the second one on.
func partOf(work string, ordinal int) string {
	if ordinal == 0 {
		return work
	}
	return work + "/" + strconv.Itoa(ordinal)
}

// workOfPart is the Work of a part.
func workOfPart(part string) string {
	work, _, _ := strings.Cut(part, "/") // the first part has no ordinal
	return work
}

// of is the reconcile of another part of the Work.
func (t *task) of(part string) *task {
	out := *t
	if part != t.part {
		out.part, out.state, out.foreign = part, t.states.get(part, t.work.UID), false
	}
	return &out
}

// forget drops what memory has of the parts of a Work from an ordinal on.
func (e *Execution) forget(ctx context.Context, work string, from int) error {
	var errs []error
	for i := from; i == 0 || e.states.has(partOf(work, i)); i++ {
		part := partOf(work, i)
		e.states.forget(part)
		e.objects.forget(part)
		e.objectVersions.Forget(part)
		errs = append(errs, e.kinds.release(ctx, part))
	}
	return errors.Join(errs...)
}

func (e *Execution) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	work, err := e.o.Works.get(ctx, req.NamespacedName)
	switch {
	case apierrors.IsNotFound(err):
		e.statuses.forget(req.Name)
		e.retries.Forget(req.Name)
		e.statusVersions.Forget(req.Name)
		return reconcile.Result{}, e.forget(ctx, req.Name, 0)
	case err != nil:
		return reconcile.Result{}, err
	}
	t := &task{Execution: e, work: work, part: work.Name, state: e.states.get(work.Name, work.UID), began: time.Now()}
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

// execute applies the manifests to the member, in their order, and reports the status to the hub.
// What fails for one stops no other.
func (t *task) execute(ctx context.Context) (reconcile.Result, error) {
	manifests := manifestsOf(t.work)
	if len(manifests) == 0 {
		return t.report(ctx, outcome{failure: "the Work holds no manifest", kept: true}, 0)
	}
	all := make([]found, len(manifests))
	valid, readable := false, true
	for i, m := range manifests {
		readable = readable && m.err == nil
		p := t.of(partOf(t.work.Name, i))
		var err error
		if all[i], err = p.prepare(ctx, m); err != nil {
			return reconcile.Result{}, err
		}
		valid = valid || all[i].want != nil
	}
	if err := t.forget(ctx, t.work.Name, len(manifests)); err != nil {
		return reconcile.Result{}, err
	}
	if !valid { // until the manifest or the rule changes
		return t.report(ctx, merged(all), 0)
	}
	suspended := ptr.Deref(t.work.Spec.SuspendDispatching, false)
	if cause := t.member.unavailable(); cause != "" {
		return t.awaitMember(ctx, cause, suspended)
	}
	if !suspended {
		if err := t.hold(ctx); err != nil {
			return reconcile.Result{}, err
		}
		if readable { // else what cannot be read may be what the status reports
			for _, u := range removedOf(t.work, manifests) {
				all = append(all, t.discard(ctx, u))
			}
		}
	}
	var errs []error
	var due time.Duration // of the next reconcile; 0: the next event
	soon := func(d time.Duration) {
		if due == 0 || d < due {
			due = d
		}
	}
	waits, absent := false, false
	for i := range all {
		f := &all[i]
		if f.want != nil {
			f.have, f.err = f.apply(ctx, suspended)
		}
		if f.err == nil && f.want == nil {
			continue
		}
		f.dropped = f.state.dropped
		var later retryLater
		switch {
		case errors.As(f.err, &later):
			soon(later.Duration)
			waits, absent = true, absent || f.have == nil
			f.err = nil
			continue // this manifest was applied, and will be again; or its first read is awaited
		case errors.Is(f.err, errStale), ctx.Err() != nil:
			return reconcile.Result{RequeueAfter: minRetry}, nil
		case f.err != nil && maybeUnreachable(f.err):
			if cause := t.member.verify(ctx); cause != "" {
				return t.awaitMember(ctx, cause, suspended)
			}
		}
		t.o.Metrics.synced(t.began, f.err)
		errs = append(errs, f.err)
	}
	if absent {
		return reconcile.Result{RequeueAfter: due}, nil
	}
	scaling, again := t.work.Status.Scaling, time.Duration(0)
	if !waits {
		scaling, again = t.state.scaling.Answer(ctx, t.member.meter(t.o), t.work.Annotations[workv1alpha1.AnnotationScaling])
	}
	unschedulable, recount := t.work.Status.Unschedulable, time.Duration(0)
	if !waits && len(all) == 1 { // as the hub's Works have
		unschedulable, recount = t.state.unschedulable.Count(ctx, t.member.meter(t.o), all[0].have, time.Now())
	}
	if errors.Join(errs...) != nil {
		backoff := wait.Jitter(t.retries.When(t.work.Name), 0.2)
		for i := range all {
			if f := &all[i]; f.err != nil {
				soon(retryAfter(f.object, f.err, backoff))
				f.kept = f.have == nil && !f.foreign
				f.failure = explain(t.o.Cluster, f.object, f.err)
			}
		}
	} else if !waits {
		t.retries.Forget(t.work.Name)
		for _, d := range []time.Duration{again, recount} {
			if d > 0 {
				soon(d)
			}
		}
	}
	o := merged(all)
	o.suspended, o.scaling, o.unschedulable = suspended, scaling, unschedulable
	return t.report(ctx, o, due)
}

// hold gives the Work of a user our finalizer, with which its objects are deleted before it.
func (t *task) hold(ctx context.Context) error {
	before := t.work.DeepCopy()
	if !controllerutil.AddFinalizer(t.work, workv1alpha1.FinalizerExecution) {
		return nil
	}
	if err := t.o.Hub.Patch(ctx, t.work, kube.MergeFrom(before)); err != nil {
		return fmt.Errorf("add the finalizer to Work %s: %w", t.key(), client.IgnoreNotFound(err))
	}
	return nil
}

// prepare reads one manifest.
func (t *task) prepare(ctx context.Context, m manifest) (found, error) {
	f := found{task: t, object: m.object, kept: true}
	if m.err != nil {
		f.failure = m.err.Error()
		return f, nil
	}
	// Before a rule of the kind can fail: the Work is reconciled when it is corrected.
	if err := t.kinds.record(ctx, t.part, m.object.GroupVersionKind()); err != nil {
		return f, err
	}
	want, err := desiredOf(m.object, t.work, t.o.HubID, t.o.Interpreter)
	if err != nil {
		f.failure = err.Error()
		return f, nil
	}
	t.state.reset(want.hash)
	t.states.setObject(t.part, keyOf(want.object))
	f.want, f.kept = want, false
	return f, nil
}

// apply brings the object of a manifest to its desired state, unless dispatching is suspended.
func (f *found) apply(ctx context.Context, suspended bool) (*unstructured.Unstructured, error) {
	if !suspended {
		return f.converge(ctx, f.want)
	}
	have, err := f.observe(ctx, f.want.object)
	if have != nil && ownerOf(have, f.o.HubID, f.key()) != oursOfWork {
		have = nil
	}
	return have, err
}

// discard deletes an object that the Work no longer holds. A Namespace stays, with what is in it.
func (t *task) discard(ctx context.Context, u *unstructured.Unstructured) found {
	p := t.of(t.work.Name + "/removed")
	defer p.objects.forget(p.part)
	defer p.states.forget(p.part)
	var err error
	if isNamespace(u) {
		var have *unstructured.Unstructured
		if have, err = p.live(ctx, u); have != nil && ownerOf(have, t.o.HubID, t.key()) == oursOfWork {
			err = p.unmanage(ctx, have)
		}
	} else {
		err = p.deleteObject(ctx, u)
	}
	if kube.NotServed(err) {
		err = nil
	}
	f := found{task: p, object: u, removed: true}
	var later retryLater
	if errors.As(err, &later) {
		err = refusal(later.Error())
	}
	f.err = err
	return f
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
	w, err := t.kinds.use(ctx, t.part, want.GroupVersionKind())
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
		t.objects.forget(t.part)
		return t.live(ctx, want)
	case err != nil:
		return nil, fmt.Errorf("read from the cache: %w", err)
	}
	t.objects.cached(t.part, have)
	if last, ok := t.objects.get(t.part); ok {
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
		t.objects.forget(t.part)
		return nil, nil
	case err != nil:
		return nil, err
	}
	t.objects.put(t.part, have)
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
	for _, theirs := range manifestsOf(other) {
		if theirs.err == nil && keyOf(theirs.object) == keyOf(have) {
			return key.Name, nil
		}
	}
	return "", nil // its manifest is another object, or none
}

// objectKey identifies an object of the member in all versions.
type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// workState is what the reconciles of one manifest keep in memory. It saves requests: losing it at a
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
	settled       string
	scaled        bool
	scaling       meter.Last
	unschedulable meter.Unschedulable
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

// workStates are the states of all Works, by part.
type workStates struct {
	mu    sync.Mutex
	works map[string]*workState
	users map[objectKey]string // the part of each object
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

func (s *workStates) has(part string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.works[part] != nil
}

// partOf returns the part of a Work that an object was made from, "" if it was not made from one.
func (s *workStates) partOf(object objectKey) string {
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
