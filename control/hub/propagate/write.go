package propagate

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/placement"
	"github.com/pelago-net/pelago/control/kube"
)

// write writes a placed binding. It returns false if the binding is as it was. A decision that is
// not written counts no longer.
func (r *reconciler) write(ctx context.Context, w inputs, p placed) (bool, error) {
	b, d := p.binding, p.decision
	if w.have.Exists() && same(w.have, b) {
		r.counts.decision(d, nil)
		d.release()
		return false, nil
	}
	if err := r.confirm(ctx, w, b); err != nil {
		d.release()
		r.keepPlaces(p)
		return false, err
	}
	err := r.put(ctx, w.key, w.have, b)
	r.counts.decision(d, err)
	if err != nil {
		r.unwritten(ctx, b, d, err)
		r.keepPlaces(p)
		return false, err
	}
	if d.reservation != nil {
		d.reservation.Commit(b.GetResourceVersion())
	}
	return true, nil
}

// same reports whether nothing need be written.
func same(a, b binding.Binding) bool {
	return sameMetadata(a, b) && equality.Semantic.DeepEqual(a.Spec, b.Spec)
}

// confirm guards the removal of a template from a cluster, and the recreation of a binding: it
// returns a StaleCacheError if the API server has another version of the template (for a removal
// also of the policy) than the cache.
//
// The informers are independent: after a start or an outage the policies' one may lag by seconds,
// and a new template combined with an old policy may be removed from a cluster in which it runs
// both before and after the change. And the garbage collector may have removed the binding of a
// template whose deletion the cache does not show yet: a new binding would recreate in members what
// was deleted.
func (r *reconciler) confirm(ctx context.Context, w inputs, b binding.Binding) error {
	if !w.have.Exists() {
		r.mu.Lock()
		ended := r.ended[w.key]
		r.mu.Unlock()
		if !ended {
			return nil
		}
		return r.confirmOne(ctx, w.template, example(w.template.GroupVersionKind()))
	}
	if !leaves(w.have.Spec.Clusters, b.Spec.Clusters) {
		return nil
	}
	if err := r.confirmOne(ctx, w.template, example(w.template.GroupVersionKind())); err != nil || w.policy == nil {
		return err
	}
	var now client.Object = &policyv1alpha1.PropagationPolicy{}
	if w.policy.clusterWide {
		now = &policyv1alpha1.ClusterPropagationPolicy{}
	}
	return r.confirmOne(ctx, w.policy.Object, now)
}

// leaves reports whether a cluster loses the template.
func leaves(before, after []workv1alpha2.TargetCluster) bool {
	return slices.ContainsFunc(before, func(b workv1alpha2.TargetCluster) bool {
		return !slices.ContainsFunc(after, func(a workv1alpha2.TargetCluster) bool { return a.Name == b.Name })
	})
}

// put creates the binding, or updates the one that was read and no later one.
func (r *reconciler) put(ctx context.Context, key Key, have, b binding.Binding) error {
	others, err := r.bindings.Write(key, b.Object, func() error {
		if have.Exists() {
			return r.client.Update(ctx, b.Object, client.FieldOwner(binding.Manager))
		}
		return r.client.Create(ctx, b.Object, client.FieldOwner(binding.Manager))
	})
	if others {
		r.queue.Add(key)
	}
	if err != nil {
		return fmt.Errorf("write binding %s of %s: %w", b.GetName(), key, err)
	}
	return nil
}

// unwritten releases a decision whose write failed. If the outcome is unknown (a timeout), the
// binding is read from the API server; if that fails, too, the decision counts until the next one
// for the binding.
func (r *reconciler) unwritten(ctx context.Context, b binding.Binding, d decision, failure error) {
	if d.reservation == nil {
		return
	}
	var status apierrors.APIStatus
	if !errors.As(failure, &status) || apierrors.IsTimeout(failure) || apierrors.IsServerTimeout(failure) ||
		apierrors.IsInternalError(failure) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), verifyTimeout)
		defer cancel()
		now := binding.New(client.ObjectKeyFromObject(b))
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

// detach deletes the binding of a template on which no other depends any more. First it is written
// without requiredBy: control/hub/work keeps the Works of a binding that is deleted while its
// template exists, unless the binding names no cluster.
func (r *reconciler) detach(ctx context.Context, key Key, have binding.Binding) error {
	if !have.Exists() {
		return nil
	}
	b := have.Copy()
	requireBy(b, nil)
	if !same(have, b) {
		if err := r.put(ctx, key, have, b); err != nil {
			return err
		}
	}
	return r.remove(ctx, key, b, "on which nothing depends any more")
}

// remove deletes a binding; why describes its template in the error.
func (r *reconciler) remove(ctx context.Context, key Key, have binding.Binding, why string) error {
	err := r.client.Delete(ctx, have.Object, kube.Exactly(have))
	r.bindings.Forget(key)
	r.mu.Lock()
	delete(r.conflicts, key)
	r.mu.Unlock()
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete binding %s of %s, %s: %w", have.GetName(), key, why, err)
	}
	return nil
}
