// Package work creates the Works of bindings and of the hub's namespaces: what each cluster is to
// hold of an object, with replicas, overrides and identifying labels. It runs in pelago-hub and is
// the only writer of the metadata and spec of Works and of the finalizer of bindings. It decides
// nothing about clusters or replicas (control/hub/propagate does) and never writes to a member
// (control/execute does).
package work

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// BindingOptions configure the controller.
type BindingOptions struct {
	// HubID is the UID of the hub's namespace kube-system.
	HubID       string
	Interpreter *kinds.Interpreter
	// Workers is how many bindings are worked on at a time; 0: 16.
	Workers int
	// OptIn is that of NamespaceOptions: a namespace that does not go to all clusters goes where
	// policies place it.
	OptIn bool
	// Skips gets the override rules that are skipped; nil: they are not reported.
	Skips *policy.Skips
	// Unmade gets why Works are not made; nil: only Events report it.
	Unmade *binding.Unmade
	// AllEvents: successes have the Events of Karmada, on binding and template.
	AllEvents bool
	// OrphanAfter is how long the binding that a Work names may be missing before that is reported;
	// 0: a minute.
	OrphanAfter time.Duration
}

const (
	defaultWorkers = 16
	// firstRetry and lastRetry bound the backoff after a failure.
	firstRetry, lastRetry = 20 * time.Millisecond, 15 * time.Second
	// firstPoll and lastPoll bound the requeue interval of a binding that waits for the end of
	// Works, or of their template. The end of a Work is an event, that of a template whose binding
	// is gone is not.
	firstPoll, lastPoll = 5 * time.Second, time.Minute
	// defaultOrphanAfter: a binding that is deleted and made again is away for less.
	defaultOrphanAfter = time.Minute
)

type reconciler struct {
	BindingOptions
	client    client.Client
	cache     cache.Cache
	live      client.Reader // uncached, for decisions that a stale cache must not make
	discovery discovery.ServerResourcesInterfaceWithContext
	recorder  record.EventRecorder
	writer    *Writer
	duration  durations
	orphans   *orphans
	// requeue intervals from firstPoll to lastPoll
	polls workqueue.TypedRateLimiter[reconcile.Request]
}

// SetupBindings adds the controller to the manager.
func SetupBindings(mgr ctrl.Manager, o BindingOptions) error {
	o.Workers, o.OrphanAfter = cmp.Or(o.Workers, defaultWorkers), cmp.Or(o.OrphanAfter, defaultOrphanAfter)
	if o.Skips == nil {
		o.Skips = &policy.Skips{}
	}
	r := &reconciler{
		BindingOptions: o, client: mgr.GetClient(), cache: mgr.GetCache(), live: mgr.GetAPIReader(),
		recorder: kube.EventRecorder(mgr, "pelago-hub"), writer: NewWriter(mgr.GetClient()), polls: newPolls(),
	}
	var err error
	if r.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient()); err != nil {
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

func newPolls() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](firstPoll, lastPoll)
}

// poll returns the requeue interval of a binding that waits.
func (r *reconciler) poll(b binding.Binding) time.Duration {
	return r.polls.When(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(b)})
}

// reconcile writes the Works of one binding.
func (r *reconciler) reconcile(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	wait, err := r.reconcileBinding(ctx, req)
	if wait == 0 && err == nil {
		r.polls.Forget(req)
	}
	return wait, err
}

func (r *reconciler) reconcileBinding(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	b := binding.New(req.NamespacedName)
	if err := r.client.Get(ctx, req.NamespacedName, b.Object); err != nil {
		if !apierrors.IsNotFound(err) {
			return 0, err
		}
		r.Skips.Report(binding.New(req.NamespacedName).String(), nil)
		wait, err := r.released(ctx, req)
		if err != nil {
			return 0, err
		}
		unreported, err := r.orphaned(ctx, req)
		if wait == 0 || unreported > 0 && unreported < wait {
			wait = unreported
		}
		return wait, err
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
	r.duration.observe(begin, err)
	return again, err
}

// sync writes the Works of a binding in the order that never leaves a template nowhere.
func (r *reconciler) sync(ctx context.Context, b binding.Binding) (time.Duration, error) {
	in, err := r.input(ctx, b)
	if err != nil || in == nil {
		r.failed(b, nil, err)
		return 0, err
	}
	plan, err := DesiredWorks(in)
	if err != nil {
		r.Unmade.Report(client.ObjectKeyFromObject(b), map[string]string{"": err.Error()})
		r.failed(b, in.Template, fmt.Errorf("make the Works of %s: %w", b, err))
		return 0, err
	}
	deletes := func(w *workv1alpha1.Work) bool { return w.DeletionTimestamp == nil }
	// the cached binding may be older than the decision
	if slices.ContainsFunc(plan.Purge, deletes) || slices.ContainsFunc(plan.Surplus, deletes) {
		if err := r.unchanged(ctx, b); err != nil {
			return 0, err
		}
	}
	if err := r.writer.Delete(ctx, plan.Purge); err != nil {
		return 0, r.notCleaned(b, in.Template, err)
	}
	if len(plan.Wait) > 0 {
		return r.poll(b), nil
	}
	r.Skips.Report(b.String(), plan.Skipped)
	template := OfReference(b.Spec.Resource)
	err = r.writer.Write(ctx, template, plan.Writes)
	r.Unmade.Report(client.ObjectKeyFromObject(b), unmade(plan.Writes, err))
	r.report(b, in.Template, plan, err)
	if err == nil {
		r.recordWritten(b, in, plan)
		err = r.notCleaned(b, in.Template, r.writer.Delete(ctx, plan.Surplus))
	}
	return 0, errors.Join(err, plan.Err())
}

// unchanged is a StaleCacheError if the API server has another spec of the binding than the cache.
func (r *reconciler) unchanged(ctx context.Context, b binding.Binding) error {
	now := binding.New(client.ObjectKeyFromObject(b))
	if err := r.live.Get(ctx, client.ObjectKeyFromObject(b), now.Object); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return kube.StaleCache(b.Object, b.GetResourceVersion(), "none")
		}
		return fmt.Errorf("read %s: %w", b, err)
	}
	if now.GetUID() != b.GetUID() || now.GetGeneration() != b.GetGeneration() {
		return kube.StaleCache(b.Object, b.GetResourceVersion(), now.GetResourceVersion())
	}
	return nil
}

func newID() string { return string(uuid.NewUUID()) }

// finalize releases a binding. Its Works are deleted first, unless the template still exists and
// the binding is not detached (a user deleted it, or the garbage collector of a restored hub does
// not find its owner): then they stay for the next binding. If a Job was replaced, they are deleted
// all the same, so that the new Job runs.
func (r *reconciler) finalize(ctx context.Context, b binding.Binding) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(b.Object, b.Finalizer()) {
		return 0, nil
	}
	uid, err := r.alive(ctx, b.Spec.Resource)
	if err != nil {
		return 0, fmt.Errorf("look for the template of %s: %w", b, err)
	}
	replaced := false
	if uid != "" {
		if replaced, err = binding.Replaced(ctx, r.live, b, uid); err != nil {
			return 0, err
		}
	}
	works, err := r.works(ctx, b)
	if err != nil {
		return 0, err
	}
	if uid != "" && !replaced && !detached(b) {
		if err := r.leave(ctx, b, works); err != nil {
			return 0, r.notCleaned(b, nil, err)
		}
		return 0, r.release(ctx, b)
	}
	// these have another writer
	works = slices.DeleteFunc(works, func(w *workv1alpha1.Work) bool { return !OfBinding(w) })
	if err := r.writer.Delete(ctx, works); err != nil {
		return 0, r.notCleaned(b, nil, err)
	}
	waiting, err := r.holding(ctx, works)
	if err == nil && len(works) == 0 {
		waiting, err = r.unseen(ctx, b)
	}
	switch {
	case err != nil:
		return 0, err
	case waiting:
		return r.poll(b), nil
	}
	return 0, r.release(ctx, b)
}

// detached reports whether control/hub/propagate deletes the binding because no other template
// depends on this one.
func detached(b binding.Binding) bool {
	return b.Spec.Placement == nil && !claimed(b) && len(b.Spec.Clusters) == 0 && len(b.Spec.RequiredBy) == 0
}

// alive returns the UID of the template of this kind and name, "" if the API server has none or it
// is being deleted. If the version in the reference is no longer served the template is read in
// another one; a kind that is served in none has no objects.
func (r *reconciler) alive(ctx context.Context, ref workv1alpha2.ObjectReference) (types.UID, error) {
	key, kind := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, kindOf(ref)
	u := &metav1.PartialObjectMetadata{}
	u.SetGroupVersionKind(kind)
	err := r.live.Get(ctx, key, u)
	if kube.NotServed(err) {
		version, unknown := kube.ServedVersion(ctx, r.discovery, kind.GroupKind())
		if unknown != nil || version == "" {
			return "", unknown
		}
		u.SetGroupVersionKind(kind.GroupKind().WithVersion(version))
		err = r.live.Get(ctx, key, u)
	}
	switch {
	case apierrors.IsNotFound(err) && !kube.NotServed(err):
		return "", nil
	case err != nil, u.DeletionTimestamp != nil:
		return "", err
	}
	return u.UID, nil
}

// holding reports whether a Work delays the end of its binding. One of a cluster that is leaving or
// gone does not: it may have no executor any more, and its namespace is deleted with the cluster.
func (r *reconciler) holding(ctx context.Context, works []*workv1alpha1.Work) (bool, error) {
	for _, w := range works {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		if !ok {
			continue
		}
		if c, err := r.cluster(ctx, cluster); c != nil || err != nil {
			return true, err
		}
	}
	return false, nil
}

// unseen reports whether the API server has Works of the binding that the cache does not show.
// After the binding is gone no reconcile would delete them.
func (r *reconciler) unseen(ctx context.Context, b binding.Binding) (bool, error) {
	id := b.GetLabels()[b.IDLabel()]
	if id == "" {
		return false, nil
	}
	var list workv1alpha1.WorkList
	if err := r.live.List(ctx, &list, client.MatchingLabels{b.IDLabel(): id}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the Works of %s: %w", b, err)
	}
	return len(list.Items) > 0, nil
}

// release removes the finalizer.
func (r *reconciler) release(ctx context.Context, b binding.Binding) error {
	controllerutil.RemoveFinalizer(b.Object, b.Finalizer())
	if err := r.client.Update(ctx, b.Object); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("remove the finalizer of %s: %w", b, err))
	}
	return nil
}

// leave annotates the Works of a deleted binding whose template exists: the next binding takes them
// over. If the template is deleted before there is one, nothing else records that they are to be
// deleted.
func (r *reconciler) leave(ctx context.Context, b binding.Binding, works []*workv1alpha1.Work) error {
	var left []*workv1alpha1.Work
	for _, w := range works {
		key, ok := binding.OfWork(w)
		ours := ok && key == client.ObjectKeyFromObject(b)
		if ours && w.DeletionTimestamp == nil && !isReleased(w) {
			w.Annotations[workv1alpha1.AnnotationReleased] = "true"
			left = append(left, w)
		}
	}
	return r.writer.Update(ctx, OfReference(b.Spec.Resource), left)
}

func isReleased(w *workv1alpha1.Work) bool {
	return w.Annotations[workv1alpha1.AnnotationReleased] != ""
}

// released deletes the Works that a deleted binding has left, once their template is deleted, too.
// Until then it returns the requeue interval. Other Works without a binding stay: their origin is
// not known.
func (r *reconciler) released(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	var list workv1alpha1.WorkList
	if err := r.client.List(ctx, &list, client.MatchingFields{bindingIndex: req.String()}); err != nil {
		return 0, fmt.Errorf("list the Works that the binding %s has left: %w", req, err)
	}
	var works []*workv1alpha1.Work
	for i := range list.Items {
		if w := &list.Items[i]; w.DeletionTimestamp == nil && isReleased(w) {
			works = append(works, w)
		}
	}
	if len(works) == 0 {
		return 0, nil
	}
	ref, err := templateOf(works[0])
	if err != nil {
		return 0, err
	}
	uid, err := r.alive(ctx, ref)
	if err != nil {
		return 0, fmt.Errorf("look for the template of the binding %s: %w", req, err)
	}
	b := binding.New(req.NamespacedName)
	if uid != "" {
		return r.poll(b), nil
	}
	if err := r.live.Get(ctx, req.NamespacedName, b.Object); !apierrors.IsNotFound(err) {
		return 0, err // the cache is stale
	}
	return 0, r.writer.Delete(ctx, works)
}

// templateOf is what a Work was made of; all Works of one binding are of one template.
func templateOf(w *workv1alpha1.Work) (workv1alpha2.ObjectReference, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(w.Spec.Workload.Manifests[0].Raw); err != nil {
		return workv1alpha2.ObjectReference{}, fmt.Errorf("read the manifest of Work %s/%s: %w", w.Namespace, w.Name, err)
	}
	return workv1alpha2.ObjectReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(),
		Name: u.GetName()}, nil
}
