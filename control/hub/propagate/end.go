package propagate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
)

// end deletes the binding that a deleted template owned. The hub's garbage collector does so, too, but recovers from an outage of the
// API server only after up to a minute. A template that was deleted with --cascade=orphan no longer owns its binding.
func (r *reconciler) end(ctx context.Context, key Key) error {
	have, err := r.binding(ctx, key)
	if err != nil || !have.Exists() || have.GetDeletionTimestamp() != nil {
		return err
	}
	if !owned(have, key) {
		return r.disown(ctx, key, have)
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(key.GVK)
	switch err := r.live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, now); {
	case err == nil:
		return stale(key, nil, now.GetResourceVersion())
	case kube.NotServed(err): // its objects may exist in another version, or come back with this one
		return r.disown(ctx, key, have)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for %s, whose binding is to go: %w", key, err)
	}
	return r.remove(ctx, key, have, "which is gone")
}

// owned reports whether the template of the key is the controller of a binding.
func owned(b kube.Binding, key Key) bool {
	ref := metav1.GetControllerOf(b)
	return ref != nil && ref.Kind == key.GVK.Kind && ref.Name == key.Name
}

// disown removes from a binding that stays without a template the clusters that are being removed from the hub, and the claim of a policy
// that is gone or being deleted: those end when no binding names them.
func (r *reconciler) disown(ctx context.Context, key Key, have kube.Binding) error {
	b := have.Copy()
	p, err := r.holder(ctx, claimOf(have))
	if err != nil {
		return err
	}
	if gone(p) {
		mark(b, nil)
	}
	if b.Spec.Clusters, err = r.staying(ctx, b.Spec.Clusters); err != nil || same(have, b) {
		return err
	}
	return r.write(ctx, key, have, b)
}

// gone reports whether a policy does not exist or is being deleted.
func gone(p *propagationPolicy) bool { return p == nil || p.GetDeletionTimestamp() != nil }

// remove deletes a binding; why is said of its template.
func (r *reconciler) remove(ctx context.Context, key Key, have kube.Binding, why string) error {
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
