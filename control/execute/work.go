package execute

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

const (
	// syncGrace is how long Works wait for the first list of their kind before they ask for their object one by one.
	syncGrace = 3 * time.Second
	// staleAfter is how old a decision may be when it is written. It is below a leader's lease (15 s), so that a process that was
	// stopped and goes on after another one has taken over writes nothing that it had decided before.
	staleAfter = 10 * time.Second
	// attempts is how often an object is read again at once because somebody has changed it meanwhile.
	attempts = 4
)

// task is one look at one Work.
type task struct {
	*Execution
	work  *workv1alpha1.Work
	m     *remembered
	began time.Time // when what the task goes by was read
	// foreign says that the object was seen to be absent or not ours.
	foreign bool
}

func (e *Execution) reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	work, err := e.o.Works.get(ctx, req.NamespacedName)
	switch {
	case apierrors.IsNotFound(err):
		e.memory.forget(req.Name)
		e.retries.Forget(req.Name)
		e.reported.Forget(req.Name)
		e.made.Forget(req.Name)
		return reconcile.Result{}, e.kinds.leave(ctx, req.Name)
	case err != nil:
		return reconcile.Result{}, err
	}
	t := &task{Execution: e, work: work, m: e.memory.recall(work.Name, work.UID), began: time.Now()}
	if !e.reported.Stale(work.Name, work.ResourceVersion, t.began) {
		e.memory.shown(work.Name, work.ResourceVersion)
	} else if !e.memory.catchUp(work) {
		return reconcile.Result{RequeueAfter: kube.RequeueStale}, nil
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

// execute brings the object into the member and its status to the hub.
func (t *task) execute(ctx context.Context) (reconcile.Result, error) {
	want, err := wanted(t.work, t.o.HubID, t.o.Interpreter)
	if err != nil {
		// Nothing but another manifest helps.
		return t.report(ctx, outcome{failure: err.Error(), kept: true}, 0)
	}
	t.m.about(want.hash)
	t.memory.holds(t.work.Name, keyOf(want.object))
	suspended := t.work.Spec.SuspendDispatching != nil && *t.work.Spec.SuspendDispatching
	if cause := t.member.absence(); cause != "" {
		return t.waitFor(ctx, want, cause, suspended)
	}

	var have *unstructured.Unstructured
	if suspended {
		if have, err = t.observe(ctx, want.object); have != nil && ownerOf(have, t.o.HubID, t.key()) != oursOfWork {
			have = nil
		}
	} else {
		have, err = t.converge(ctx, want)
	}
	var pause waiting
	switch {
	case errors.As(err, &pause) && have == nil:
		return reconcile.Result{RequeueAfter: pause.Duration}, nil
	case errors.As(err, &pause): // this manifest was applied, and will be again
		return t.report(ctx, outcome{want: want, have: have, dropped: t.m.dropped, suspended: suspended}, pause.Duration)
	case errors.Is(err, errStale), ctx.Err() != nil:
		return reconcile.Result{RequeueAfter: minRetry}, nil
	case err != nil && onTheWay(err):
		if cause := t.member.confirm(ctx); cause != "" {
			return t.waitFor(ctx, want, cause, suspended)
		}
	}
	t.o.Metrics.synced(t.began, err)
	if err != nil {
		due := retryAfter(want.object, err, wait.Jitter(t.retries.When(t.work.Name), 0.2))
		return t.report(ctx, outcome{
			want: want, have: have, kept: have == nil && !t.foreign, failure: explain(t.o.Cluster, want.object, err),
			dropped: t.m.dropped, suspended: suspended,
		}, due)
	}
	t.retries.Forget(t.work.Name)
	return t.report(ctx, outcome{want: want, have: have, dropped: t.m.dropped, suspended: suspended}, 0)
}

// waitFor leaves a Work alone until the member is back, which looks at all of them again. One that is executed already does not
// change.
func (t *task) waitFor(ctx context.Context, want *desired, cause string, suspended bool) (reconcile.Result, error) {
	switch {
	case suspended:
		return t.report(ctx, outcome{want: want, kept: true, suspended: true}, 0)
	case caughtUp(t.work):
		return reconcile.Result{}, nil
	}
	return t.report(ctx, outcome{want: want, kept: true, failure: unreachable(t.o.Cluster, cause)}, 0)
}

func (t *task) key() types.NamespacedName { return client.ObjectKeyFromObject(t.work) }

// fresh refuses to write what was decided too long ago.
func (t *task) fresh() error {
	if time.Since(t.began) > staleAfter {
		return errStale
	}
	return nil
}

// observe returns the object as the member has it, nil if there is none.
func (t *task) observe(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	w, err := t.kinds.use(ctx, t.work.Name, want.GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if !w.synced() {
		if left := syncGrace - time.Since(w.since); left > 0 {
			return nil, waiting{min(left, 100*time.Millisecond), "waits for the first list of its kind"}
		}
		return t.live(ctx, want)
	}
	have := ofKind(want.GroupVersionKind())
	err = t.member.managed.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err):
		// It may be there without our label, or too new for the cache.
		t.memory.wrote(t.work.Name, nil)
		return t.live(ctx, want)
	case err != nil:
		return nil, fmt.Errorf("read from the cache: %w", err)
	}
	if w := t.memory.newer(t.work.Name, have); w != nil {
		return w, nil
	}
	return unpack(have)
}

// live asks the member itself.
func (t *task) live(ctx context.Context, want *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	have := ofKind(want.GroupVersionKind())
	err := t.member.client.Get(ctx, client.ObjectKeyFromObject(want), have)
	switch {
	case apierrors.IsNotFound(err) && !notServed(err):
		t.memory.wrote(t.work.Name, nil)
		return nil, nil
	case err != nil:
		return nil, err
	}
	t.memory.wrote(t.work.Name, have)
	return have, nil
}

// converge makes the object as it is wanted and returns it as it is then.
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
				return nil, err // its status is no concern of ours
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

// step is one attempt, from one reading of the object.
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
		if !overwrites(want.object) {
			return nil, refusal("it is there already and not managed by the hub; set conflictResolution: Overwrite in the policy, or " +
				"annotation " + workv1alpha1.AnnotationConflictResolution + "=overwrite on the template, to take it over")
		}
		var err error
		if have, err = t.adopt(ctx, have); err != nil {
			return nil, err
		}
	}
	return t.update(ctx, want, have)
}

// holder returns the other Work that has the object, "" if there is none (any more).
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
	theirs, err := wanted(other, t.o.HubID, t.o.Interpreter)
	if err != nil || keyOf(theirs.object) != keyOf(have) {
		return "", nil // it holds something else now, or nothing that can be read
	}
	return key.Name, nil
}

func caughtUp(work *workv1alpha1.Work) bool {
	for _, c := range work.Status.Conditions {
		if c.Type == workv1alpha1.ConditionApplied {
			return c.Status == "True" && c.ObservedGeneration == work.Generation
		}
	}
	return false
}

// objectKey names an object of the member, whatever the version.
type objectKey struct {
	kind            schema.GroupKind
	namespace, name string
}

func keyOf(u *unstructured.Unstructured) objectKey {
	return objectKey{u.GroupVersionKind().GroupKind(), u.GetNamespace(), u.GetName()}
}

// remembered is what is known of one Work beside what can be read. Without it (after a start) nothing goes wrong, some requests
// more are made. Only the worker that has the Work uses it.
type remembered struct {
	uid  types.UID // of the Work
	hash string    // of the manifest that the following is about
	// dropped are the fields that the member does not know; put says that the manifest has duplicate list keys.
	dropped []string
	put     bool
	// settled is the digest of the member's object that was found, or left, as it should be, and whether an autoscaler scaled it.
	settled string
	scaled  bool
	// changedAt is when the object was last created or changed by us.
	changedAt time.Time
	// reverts counts changes in the member that were undone, the last one at revertedAt.
	reverts    int
	revertedAt time.Time
}

// about resets what a new manifest makes obsolete.
func (r *remembered) about(hash string) {
	if r.hash != hash {
		r.hash, r.dropped, r.put, r.settled, r.reverts = hash, nil, false, "", 0
	}
}

// memory is what is remembered of all Works.
type memory struct {
	mu      sync.Mutex
	of      map[string]*remembered
	objects map[objectKey]string // which Work an object has
	keys    map[string]objectKey // and the other way
	// reports are the statuses of Works as our last writes left them, until the cache shows them.
	reports map[string]report
	// writes are the objects of Works in the member as our last writes left them, or as they were read there, until the cache shows them.
	writes map[string]*unstructured.Unstructured
}

// report is a status as it was written, with the resourceVersion of the Work then.
type report struct {
	version string
	status  workv1alpha1.WorkStatus
}

func newMemory() *memory {
	return &memory{of: map[string]*remembered{}, objects: map[objectKey]string{}, keys: map[string]objectKey{},
		reports: map[string]report{}, writes: map[string]*unstructured.Unstructured{}}
}

// reported notes a write of a Work's status.
func (m *memory) reported(work *workv1alpha1.Work) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.reports[work.Name] = report{work.ResourceVersion, work.Status}
}

// catchUp gives a Work from the cache the status that we have written since; false if that is not known.
func (m *memory) catchUp(work *workv1alpha1.Work) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.reports[work.Name]
	if ok {
		work.ResourceVersion, work.Status = r.version, *r.status.DeepCopy()
	}
	return ok
}

// shown says that the cache has a Work in a version, or what became of it since.
func (m *memory) shown(work, version string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.reports[work]; ok && !kube.OlderVersion(version, r.version) {
		delete(m.reports, work)
	}
}

// wrote notes the object of a Work as the member has it, whatever the cache shows; nil: it is not there.
func (m *memory) wrote(work string, object *unstructured.Unstructured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object == nil {
		delete(m.writes, work)
		return
	}
	m.writes[work] = object
}

// newer is a later state of a Work's object than the one that the cache shows; nil if none is known.
func (m *memory) newer(work string, cached *unstructured.Unstructured) *unstructured.Unstructured {
	m.cached(work, cached)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.writes[work]
}

// cached says that the cache shows a Work's object like this: what is remembered of it stays only if it is later.
func (m *memory) cached(work string, object *unstructured.Unstructured) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, ok := m.writes[work]
	if ok && (w.GetUID() != object.GetUID() || !kube.OlderVersion(object.GetResourceVersion(), w.GetResourceVersion())) {
		delete(m.writes, work)
	}
}

// recall returns what is remembered of a Work; nothing, if it has another UID than before.
func (m *memory) recall(work string, uid types.UID) *remembered {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of[work]
	if r == nil || r.uid != uid {
		r = &remembered{uid: uid}
		m.of[work] = r
	}
	return r
}

// holds notes which object a Work has.
func (m *memory) holds(work string, object objectKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old, ok := m.keys[work]; ok && old != object && m.objects[old] == work {
		delete(m.objects, old)
	}
	m.keys[work], m.objects[object] = object, work
}

// workOf returns the Work of an object, "" if there is none.
func (m *memory) workOf(object objectKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.objects[object]
}

func (m *memory) forget(work string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if object, ok := m.keys[work]; ok && m.objects[object] == work {
		delete(m.objects, object)
	}
	delete(m.keys, work)
	delete(m.of, work)
	delete(m.reports, work)
	delete(m.writes, work)
}

func (m *memory) works() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]string, 0, len(m.of))
	for work := range m.of {
		all = append(all, work)
	}
	return all
}
