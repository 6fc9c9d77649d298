package propagate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kube"
)

// end does what is left to be done for a template that is not propagated, or not now.
func (r *reconciler) end(ctx context.Context, s subject) error {
	switch s.state {
	case templateGone:
		return r.endBinding(ctx, s.key, s.have)
	case templateIgnored:
		if s.have.Exists() {
			return r.disown(ctx, s.key, s.have)
		}
	case bindingEnding: // when it has gone the template is reconciled again
		if gone(s.held) { // its deletion ends when no object carries its claim
			_, err := r.claim(ctx, s.key, s.template, choice{})
			return err
		}
	case bindingReplaced:
		return r.remove(ctx, s.key, s.have, "that of a former object of its name")
	}
	return nil
}

// forgetTemplate drops the state kept for a template that does not exist.
func (r *reconciler) forgetTemplate(key Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.missing, key)
	delete(r.ended, key)
}

// endBinding deletes the binding that a deleted template owned. The hub's garbage collector does
// so, too, but recovers from an outage of the API server only after up to a minute. A template that
// was deleted with --cascade=orphan no longer owns its binding.
func (r *reconciler) endBinding(ctx context.Context, key Key, have binding.Binding) error {
	if !have.Exists() || have.GetDeletionTimestamp() != nil {
		return nil
	}
	if !owned(have, key) {
		return r.disown(ctx, key, have)
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(key.GVK)
	switch err := r.live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, now); {
	case err == nil:
		return stale(key, nil, now.GetResourceVersion())
	case kube.NotServed(err):
		// its objects may exist in another version, or come back with this one
		return r.disown(ctx, key, have)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for %s, whose binding is to go: %w", key, err)
	}
	return r.remove(ctx, key, have, "which is gone")
}

// owned reports whether the template of the key is the controller of a binding.
func owned(b binding.Binding, key Key) bool {
	ref := metav1.GetControllerOf(b)
	return ref != nil && ref.Kind == key.GVK.Kind && ref.Name == key.Name
}

// disown removes from a binding that stays without a template the clusters that are being removed
// from the hub, and the claim of a policy that is gone or being deleted: those end when no binding
// names them.
func (r *reconciler) disown(ctx context.Context, key Key, have binding.Binding) error {
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
	return r.put(ctx, key, have, b)
}
