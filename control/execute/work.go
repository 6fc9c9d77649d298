package execute

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
