package propagate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
)

// reconcile writes the claim of a template and its binding.
func (r *reconciler) reconcile(ctx context.Context, key Key) (time.Duration, error) {
	key.GVK = r.kinds.current(key.GVK)
	wait, err := r.propagate(ctx, key)
	if errors.Is(err, errNotSynced) {
		err = stale(key, nil, "the first list of its kind")
	}
	if apierrors.IsNotFound(err) { // the object to be written is deleted
		err = stale(key, nil, err.Error())
	}
	if wait == again {
		wait = r.retry.When(key)
	} else if err == nil {
		r.retry.Forget(key)
	}
	return wait, err
}

// again stands for a requeue interval that grows each time.
const again time.Duration = -1

// propagate returns when to look again: 0 never, again after a growing pause.
func (r *reconciler) propagate(ctx context.Context, key Key) (time.Duration, error) {
	t, err := r.template(ctx, key)
	if t == nil {
		r.mu.Lock()
		delete(r.missing, key)
		delete(r.ended, key)
		r.mu.Unlock()
	}
	if err == nil && t == nil {
		return 0, r.end(ctx, key)
	}
	if err != nil || t.GetDeletionTimestamp() != nil {
		return 0, err
	}
	have, err := r.binding(ctx, key)
	if ignore := ignored(t, key.GVK.GroupKind()); err != nil || ignore && !have.Exists() {
		return 0, err
	} else if ignore {
		return 0, r.disown(ctx, key, have)
	}
	if have.Exists() && have.GetDeletionTimestamp() != nil { // its end comes back here
		held, err := r.holder(ctx, claimOf(t))
		if err == nil && gone(held) { // it ends when nothing carries its claim
			_, err = r.claim(ctx, key, t, choice{})
		}
		return 0, err
	}
	if replaced, err := r.replaced(ctx, t, have); err != nil {
		return 0, err
	} else if replaced {
		return 0, r.remove(ctx, key, have, "that of a former object of its name")
	}
	if err := r.confirmVersion(ctx, t, have); err != nil {
		return 0, err
	}
	began := time.Now()
	held, err := r.holder(ctx, claimOf(t))
	if err != nil {
		return 0, err
	}
	all, err := r.selecting(ctx, t)
	if err != nil {
		return 0, err
	}
	c, err := match(t, held, all)
	if err != nil || c.inert && !have.Exists() {
		return 0, err
	}
	r.counts.match.WithLabelValues().Observe(since(began))
	w := inputs{template: t, policy: c.policy, kept: c.inert, have: have}
	if w.parents, err = r.parents(ctx, t); err != nil {
		return 0, err
	}
	if wait, err := r.detaching(ctx, key, w); wait > 0 || err != nil {
		return wait, err
	}
	if w.kept {
		return r.bind(ctx, key, w)
	}
	problem, err := r.prepare(ctx, &w)
	if err != nil {
		return again, err
	}
	if problem != "" {
		r.events.Event(t, corev1.EventTypeWarning, workv1alpha2.EventApplyPolicyFailed, problem)
		if gone(held) { // it ends when nothing carries its claim
			if w.template, err = r.claim(ctx, key, t, choice{}); err != nil {
				return 0, err
			}
		}
		if !have.Exists() {
			return again, nil
		}
		w.kept = true
		_, err = r.bind(ctx, key, w)
		return again, err
	}
	began = time.Now()
	wait, err := r.apply(ctx, key, w, c)
	if w.policy != nil {
		r.counts.applied(began, err)
	}
	return wait, err
}

// apply writes the claim, then the binding.
func (r *reconciler) apply(ctx context.Context, key Key, w inputs, c choice) (wait time.Duration, err error) {
	if w.template, err = r.claim(ctx, key, w.template, c); err != nil {
		return 0, err
	}
	return r.bind(ctx, key, w)
}

// prepare resolves the other objects that a policy refers to. problem says which one is missing and awaited.
func (r *reconciler) prepare(ctx context.Context, w *inputs) (problem string, err error) {
	if w.policy == nil {
		return "", nil
	}
	name, err := r.missingOverride(ctx, w.policy)
	if err != nil {
		return "", err
	}
	if name != "" {
		return fmt.Sprintf("%s waits for the override policy %s, which its dependentOverrides name: create it", w.policy, name), nil
	}
	var found bool
	if w.priority, found, err = r.priority(ctx, w.policy); err != nil {
		return "", err
	}
	if !found {
		class := w.policy.Spec.SchedulePriority.PriorityClassName
		return fmt.Sprintf("%s names the PriorityClass %s, which the hub does not have: create it", w.policy, class), nil
	}
	return "", nil
}

// detaching returns how long to wait for parent bindings that are gone, since they may be recreated.
func (r *reconciler) detaching(ctx context.Context, key Key, w inputs) (time.Duration, error) {
	gone := false
	if w.have.Exists() {
		for _, by := range w.have.Spec.RequiredBy {
			other := kube.NewBinding(client.ObjectKey{Namespace: by.Namespace, Name: by.Name})
			err := r.cache.Get(ctx, client.ObjectKeyFromObject(other), other.Object)
			if err != nil && !apierrors.IsNotFound(err) {
				return 0, fmt.Errorf("read binding %s, which requires %s: %w", by.Name, key, err)
			}
			gone = gone || err != nil
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !gone {
		delete(r.missing, key)
		return 0, nil
	}
	since, ok := r.missing[key]
	if !ok {
		since = time.Now()
		r.missing[key] = since
	}
	if wait := detachAfter - time.Since(since); wait > 0 {
		return wait, nil
	}
	delete(r.missing, key)
	return 0, nil
}

// claim adds the claim of the policy to the template, or removes it, and returns the result.
func (r *reconciler) claim(ctx context.Context, key Key, t *unstructured.Unstructured,
	c choice) (*unstructured.Unstructured, error) {
	patch, err := claimPatch(t, c.policy)
	if err != nil || patch == nil {
		return t, err
	}
	now := t.DeepCopy()
	others, err := r.templates.Write(key, now, func() error {
		if err := r.client.Patch(ctx, now, client.RawPatch(types.MergePatchType, patch)); err != nil {
			return err
		}
		now.SetManagedFields(nil) // as in the cache: they are half of it
		return nil
	})
	if others {
		r.queue.Add(key)
	}
	if err != nil {
		if c.preempts != nil && !kube.IsStale(err) {
			r.counts.preempted.WithLabelValues(resultOf(err)).Inc()
			r.events.Eventf(t, corev1.EventTypeWarning, workv1alpha2.EventPreemptPolicyFailed,
				"%s goes before %s but could not take over, which is tried again; it stays as it is: %v", c.policy, c.preempts, err)
		}
		return nil, fmt.Errorf("mark %s with the policy that it follows: %w", key, err)
	}
	if c.preempts != nil {
		r.counts.preempted.WithLabelValues(resultOf(nil)).Inc()
		r.events.Eventf(now, corev1.EventTypeNormal, workv1alpha2.EventPreemptPolicySucceed, "%s takes over from %s",
			c.policy, c.preempts)
	}
	return now, nil
}

// bind writes the desired binding, including the decision. If it cannot be computed, the existing one is kept and only its clusters
// are decided: evictions, failback and the removal of clusters continue.
func (r *reconciler) bind(ctx context.Context, key Key, w inputs) (time.Duration, error) {
	b, err := r.desired(ctx, &w)
	if kube.IsStale(err) {
		return 0, err
	}
	if err != nil {
		reason := workv1alpha2.EventApplyPolicyFailed
		switch {
		case errors.Is(err, errDependencies):
			reason = workv1alpha2.EventGetDependenciesFailed
		case errors.Is(err, errReplicas):
			reason = workv1alpha2.EventGetReplicasFailed
		}
		r.events.Event(w.template, corev1.EventTypeWarning, reason, err.Error())
		if w.kept || !w.have.Exists() {
			return 0, err
		}
		w.kept = true
		_, kept := r.bind(ctx, key, w)
		return 0, errors.Join(err, kept)
	}
	if !b.Exists() {
		return 0, r.detach(ctx, key, w.have)
	}
	generation := r.generation.Load()
	b, d, e, err := r.place(ctx, b, w.policy != nil && !w.kept && w.policy.removes())
	if err != nil {
		r.keepPlaces(b, e)
		return 0, err
	}
	next := e.Next
	if d.retry || len(e.Held) > 0 || e.Return.Failed {
		next = again
	}
	if w.have.Exists() && same(w.have, b) {
		r.counts.decision(d, nil)
		d.release()
		r.recordConflict(key, w, b)
		return next, nil
	}
	if err := r.confirm(ctx, key, w, b); err != nil {
		d.release()
		r.keepPlaces(b, e)
		return 0, err
	}
	err = r.write(ctx, key, w.have, b)
	r.counts.decision(d, err)
	if err != nil {
		r.unwritten(ctx, b, d, err)
		r.keepPlaces(b, e)
		return 0, err
	}
	if d.reservation != nil {
		d.reservation.Commit(b.GetResourceVersion())
	}
	if r.generation.Load() != generation {
		r.queue.Add(key)
	}
	r.recordEvents(w, b, d, e)
	r.recordConflict(key, w, b)
	if len(e.Began) > 0 && next != again { // it may be healthy in the other clusters already, so that no status changes
		next = time.Second
	}
	return next, nil
}

// desired completes the inputs and computes the binding.
func (r *reconciler) desired(ctx context.Context, w *inputs) (kube.Binding, error) {
	var err error
	if w.policy != nil && !w.kept {
		if w.waiting, err = waits(w.policy, w.template, w.have); err != nil {
			return kube.Binding{}, err
		}
	}
	if !w.have.Exists() {
		if w.name, err = r.bindingName(ctx, w.template); err != nil {
			return kube.Binding{}, err
		}
		w.id = uuid.NewUUID()
	} else if of := claimOf(w.have); (w.waiting || w.kept) && of.id != "" && !of.of(w.policy) {
		p, err := r.holder(ctx, of)
		if err != nil {
			return kube.Binding{}, err
		}
		w.staleClaim = gone(p)
	}
	return desired(*w, r.Interpreter)
}

// same reports whether nothing need be written.
func same(a, b kube.Binding) bool {
	return sameMetadata(a, b) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// write creates the binding, or updates the one that was read and no later one.
func (r *reconciler) write(ctx context.Context, key Key, have, b kube.Binding) error {
	others, err := r.bindings.Write(key, b.Object, func() error {
		if have.Exists() {
			return r.client.Update(ctx, b.Object, client.FieldOwner(kube.BindingManager))
		}
		return r.client.Create(ctx, b.Object, client.FieldOwner(kube.BindingManager))
	})
	if others {
		r.queue.Add(key)
	}
	if err != nil {
		return fmt.Errorf("write binding %s of %s: %w", b.GetName(), key, err)
	}
	return nil
}

// unwritten releases a decision whose write failed. If the outcome is unknown (a timeout), the binding is read from the API server; if
// that fails, too, the decision counts until the next one for the binding.
func (r *reconciler) unwritten(ctx context.Context, b kube.Binding, d decision, failure error) {
	if d.reservation == nil {
		return
	}
	var status apierrors.APIStatus
	if !errors.As(failure, &status) || apierrors.IsTimeout(failure) || apierrors.IsServerTimeout(failure) ||
		apierrors.IsInternalError(failure) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		now := kube.NewBinding(client.ObjectKeyFromObject(b))
		switch err := r.live.Get(ctx, client.ObjectKeyFromObject(b), now.Object); {
		case err == nil:
			r.Capacity.Observe(capacityKey(now), placement.ObservationOf(now))
		case apierrors.IsNotFound(err):
			r.Capacity.Forget(capacityKey(b), "")
		default:
			return
		}
	}
	d.release()
}

// detach deletes the binding of a template on which no other depends any more. First it is written without requiredBy:
// control/hub/work keeps the Works of a binding that is deleted while its template exists, unless the binding names no cluster.
func (r *reconciler) detach(ctx context.Context, key Key, have kube.Binding) error {
	if !have.Exists() {
		return nil
	}
	b := have.Copy()
	requireBy(b, nil)
	if !same(have, b) {
		if err := r.write(ctx, key, have, b); err != nil {
			return err
		}
	}
	return r.remove(ctx, key, b, "on which nothing depends any more")
}

// recordConflict records an event if the policies of those that need a template disagree about something else than at the last
// reconcile. The binding may be the same: its fields are those of one side.
func (r *reconciler) recordConflict(key Key, w inputs, b kube.Binding) {
	now := ""
	if b.Spec.Placement == nil {
		now = conflict(w.parents)
	}
	r.mu.Lock()
	was := r.conflicts[key]
	if now == "" {
		delete(r.conflicts, key)
	} else {
		r.conflicts[key] = now
	}
	r.mu.Unlock()
	if now != "" && now != was {
		r.events.Event(w.template, corev1.EventTypeWarning, workv1alpha2.EventDependencyPolicyConflict, now)
		r.events.Event(b.Object, corev1.EventTypeWarning, workv1alpha2.EventDependencyPolicyConflict, now)
	}
}

// recordEvents emits Events for what was written: problems on template and binding, successes as one Event on the template.
func (r *reconciler) recordEvents(w inputs, b kube.Binding, d decision, e placement.Eviction) {
	warn := func(reason, message string) {
		r.events.Event(w.template, corev1.EventTypeWarning, reason, message)
		r.events.Event(b.Object, corev1.EventTypeWarning, reason, message)
	}
	if d.written && d.message != "" {
		warn(workv1alpha2.EventScheduleBindingFailed, d.message)
	}
	for _, t := range e.Began {
		r.counts.evictions.WithLabelValues(t.Reason).Inc()
		what := "it leaves"
		if t.Reason == workv1alpha2.EvictionReasonFailback {
			what = "replicas leave"
		}
		warn(workv1alpha2.EventEvictWorkloadFromClusterSucceed, fmt.Sprintf("%s cluster %s: %s", what, t.FromCluster, t.Message))
	}
	if f := e.Return.Record; d.written && f != nil && f.Message != ptr.Deref(recorded(w.have).Failback, workv1alpha2.Failback{}).Message {
		r.events.Event(b.Object, corev1.EventTypeNormal, workv1alpha2.EventFailbackAwaited, f.Message)
	}
	if d.written && len(e.Held) > 0 {
		warn(workv1alpha2.EventEvictWorkloadFromClusterFailed, strings.Join(e.Held, "; "))
	}
	if reason, message := news(w, b, d); reason != "" {
		r.events.Event(w.template, corev1.EventTypeNormal, reason, message)
	}
}

// news is what a written binding says that the former one did not, in words, and as reason the most important of it; "" if nothing.
func news(w inputs, b kube.Binding, d decision) (reason, message string) {
	var all []string
	was, is := "", b.GetAnnotations()[workv1alpha2.AnnotationDependencies]
	if w.have.Exists() {
		was = w.have.GetAnnotations()[workv1alpha2.AnnotationDependencies]
	}
	if is != was {
		reason = workv1alpha2.EventGetDependenciesSucceed
		all = append(all, fmt.Sprintf("it depends on %d objects", len(dependenciesOf(b))))
	}
	if w.policy != nil && (!w.have.Exists() || !claimOf(w.have).of(w.policy)) && claimOf(b).of(w.policy) {
		reason, all = workv1alpha2.EventApplyPolicySucceed, append(all, fmt.Sprintf("it follows %s", w.policy))
	}
	if d.written && d.message == "" && d.moved {
		reason, all = workv1alpha2.EventScheduleBindingSucceed, append(all, "it runs in "+places(b.Spec.Clusters))
	}
	slices.Reverse(all)
	return reason, strings.Join(all, "; ")
}

// leaves reports whether a cluster loses the template.
func leaves(before, after []workv1alpha2.TargetCluster) bool {
	return slices.ContainsFunc(before, func(b workv1alpha2.TargetCluster) bool {
		return !slices.ContainsFunc(after, func(a workv1alpha2.TargetCluster) bool { return a.Name == b.Name })
	})
}

// stale is the error of a template that the cache does not show as it is at the API server.
func stale(key Key, cached *unstructured.Unstructured, expected string) error {
	o := example(key.GVK)
	o.SetNamespace(key.Namespace)
	o.SetName(key.Name)
	version := ""
	if cached != nil {
		o.SetUID(cached.GetUID())
		version = cached.GetResourceVersion()
	}
	return kube.StaleCache(o, cmp.Or(version, "none"), expected)
}
