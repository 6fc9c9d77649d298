package propagate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// end deletes the binding that a template which is gone has owned. The garbage collector of the hub does so, too, but after an outage
// of the API server it comes back late, after up to a minute. A template that was deleted with --cascade=orphan owns no more.
func (r *reconciler) end(ctx context.Context, key Key) error {
	have, err := r.binding(ctx, key)
	if err != nil || !have.exists() || have.GetDeletionTimestamp() != nil || !owned(have, key) {
		return err
	}
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(key.GVK)
	switch err := r.live.Get(ctx, client.ObjectKey{Namespace: key.Namespace, Name: key.Name}, now); {
	case err == nil:
		return stale(key, nil, now.GetResourceVersion())
	case meta.IsNoMatchError(err): // the kind is served no more; its objects may come back with it
		return nil
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("look for %s, whose binding is to go: %w", key, err)
	}
	return r.remove(ctx, key, have, "which is gone")
}

// owned says whether the template of the key is the controller of a binding.
func owned(b binding, key Key) bool {
	ref := metav1.GetControllerOf(b)
	return ref != nil && ref.Kind == key.GVK.Kind && ref.Name == key.Name
}
