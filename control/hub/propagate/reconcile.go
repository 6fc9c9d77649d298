package propagate

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// reconcile writes the claim of a template and its binding.
func (r *reconciler) reconcile(ctx context.Context, key Key) (time.Duration, error) {
	key.GVK = r.kinds.current(key.GVK)
	next, err := r.propagate(ctx, key)
	if errors.Is(err, errNotSynced) {
		err = stale(key, nil, "the first list of its kind")
	}
	if apierrors.IsNotFound(err) { // the object to be written is deleted
		err = stale(key, nil, err.Error())
	}
	if next.backoff {
		return r.retry.When(key), err
	}
	if err == nil {
		r.retry.Forget(key)
	}
	return next.after, err
}

// requeue is when a template is reconciled again if no event comes before.
type requeue struct {
	after time.Duration // 0: not at all
	// after an interval that grows each time: the template waits for something else
	backoff bool
}

var (
	done  = requeue{}
	later = requeue{backoff: true}
)

// propagate takes a template all its way: read, match, claim, inputs, desired, place, write,
// record. Each step is in the file of its name, and the table in the README has them in this order.
func (r *reconciler) propagate(ctx context.Context, key Key) (requeue, error) {
	s, err := r.read(ctx, key)
	if err != nil {
		return done, err
	}
	if s.state == templateEnding {
		return r.outlast(ctx, s)
	}
	if s.state != propagates {
		return done, r.end(ctx, s)
	}
	c, err := match(s.template, s.held, s.policies)
	if err != nil || c.inert && !s.have.Exists() {
		return done, err
	}
	r.counts.match.WithLabelValues().Observe(since(s.began))
	if c.policy != nil || s.have.Exists() {
		if s.template, err = r.inert(ctx, key, s.template); err != nil {
			return done, err
		}
	}
	if wait, err := r.detaching(ctx, s); wait > 0 || err != nil {
		return requeue{after: wait}, err
	}
	if c.inert {
		return r.keep(ctx, s, c)
	}
	need, err := r.requirements(ctx, c.policy)
	if err != nil {
		return later, err
	}
	if need.missing != "" {
		return r.await(ctx, s, c, need.missing)
	}
	began := time.Now()
	next, err := r.apply(ctx, s, c, need.priority)
	if c.policy != nil {
		r.counts.applied(began, err)
	}
	return next, err
}

// apply writes the claim of a policy, then the binding.
func (r *reconciler) apply(ctx context.Context, s subject, c choice, priority *int32) (requeue, error) {
	var err error
	if s.template, err = r.claim(ctx, s.key, s.template, c); err != nil {
		return done, err
	}
	w, err := r.inputs(ctx, s, c.policy, priority)
	if err != nil {
		return done, err
	}
	return r.bind(ctx, w)
}

// await keeps a template as it is while an object that its policy refers to is missing.
func (r *reconciler) await(ctx context.Context, s subject, c choice, missing string) (requeue, error) {
	r.events.Event(s.template, corev1.EventTypeWarning, workv1alpha2.EventApplyPolicyFailed, missing)
	if gone(s.held) { // its deletion ends when no object carries its claim
		var err error
		if s.template, err = r.claim(ctx, s.key, s.template, choice{}); err != nil {
			return done, err
		}
	}
	if !s.have.Exists() {
		return later, nil
	}
	_, err := r.keep(ctx, s, c)
	return later, err
}

// outlast keeps the binding of a template that is being deleted and whose finalizers hold it: it
// leaves clusters that are removed or fail, and does not hold its policy.
func (r *reconciler) outlast(ctx context.Context, s subject) (requeue, error) {
	if !s.have.Exists() || s.have.GetDeletionTimestamp() != nil {
		return done, nil
	}
	if gone(s.held) {
		var err error
		if s.template, err = r.claim(ctx, s.key, s.template, choice{}); err != nil {
			return done, err
		}
		s.held = nil
	}
	return r.keep(ctx, s, choice{policy: s.held})
}

// keep writes the present binding with no change but of its clusters and of the bindings that
// require it.
func (r *reconciler) keep(ctx context.Context, s subject, c choice) (requeue, error) {
	w, err := r.inputs(ctx, s, c.policy, nil)
	if err != nil {
		return done, err
	}
	return r.bind(ctx, w.keeping())
}

// bind writes the desired binding, including the decision. If it cannot be computed, the present
// one is kept and only its clusters are decided: evictions, failback and the removal of clusters
// continue.
func (r *reconciler) bind(ctx context.Context, w inputs) (requeue, error) {
	b, err := desired(w, r.Interpreter)
	if err != nil {
		r.recordFailure(w, err)
		if w.kept || !w.have.Exists() {
			return done, err
		}
		_, kept := r.bind(ctx, w.keeping())
		return done, errors.Join(err, kept)
	}
	if !b.Exists() {
		return done, r.detach(ctx, w.key, w.have)
	}
	if err := r.outgrows(w, b); err != nil {
		return r.bind(ctx, w.refusing(err))
	}
	p, err := r.place(ctx, b, w)
	if err != nil {
		r.keepPlaces(p)
		return done, err
	}
	if p.rollout, err = r.roll(ctx, w, p.binding); err != nil {
		p.decision.release()
		r.keepPlaces(p)
		return done, err
	}
	written, err := r.write(ctx, w, p)
	if err != nil {
		return done, err
	}
	if written {
		if r.generation.Load() != w.generation {
			r.queue.Add(w.key)
		}
		r.recordEvents(w, p)
	}
	r.recordConflict(w, p.binding)
	return p.next(written), nil
}

// outgrows returns a *placement.QuotaError if replicas that run would request more than before, and
// more than a quota allows. Numbers of replicas are not compared: the scheduler's decision is.
func (r *reconciler) outgrows(w inputs, b binding.Binding) error {
	if w.kept || !w.have.Exists() || w.have.Spec.Placement == nil {
		return nil
	}
	return r.Capacity.Resize(capacityKey(b), w.have.Spec, b.Spec)
}

// next is when to place the binding again.
func (p placed) next(written bool) requeue {
	switch {
	case p.decision.retry, len(p.eviction.Held) > 0, p.eviction.Return.Failed:
		return later
	case written && len(p.eviction.Began) > 0:
		// it may be healthy in the other clusters already, so that no status changes
		return requeue{after: time.Second}
	}
	if p.rollout > 0 && (p.eviction.Next <= 0 || p.rollout < p.eviction.Next) {
		return requeue{after: p.rollout}
	}
	return requeue{after: p.eviction.Next}
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
