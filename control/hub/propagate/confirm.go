package propagate

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// confirm guards the removal of a template from a cluster, and the recreation of a binding: it returns a StaleCacheError if the API
// server has another version of the template (for a removal also of the policy) than the cache.
//
// The informers are independent: after a start or an outage the policies' one may lag by seconds, and a new template combined with an
// old policy may be removed from a cluster in which it runs both before and after the change. And the garbage collector may have removed
// the binding of a template whose deletion the cache does not show yet: a new binding would recreate in members what was deleted.
func (r *reconciler) confirm(ctx context.Context, key Key, w inputs, b kube.Binding) error {
	if !w.have.Exists() {
		r.mu.Lock()
		ended := r.ended[key]
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

// confirmVersion is a StaleCacheError if the binding was written from a later version of the template than the cached one: after a
// change of the leader the informer of templates may lag behind that of bindings. If the API server has no later one either, the version
// in the binding dates from before a restore of the hub.
func (r *reconciler) confirmVersion(ctx context.Context, t *unstructured.Unstructured, have kube.Binding) error {
	if !have.Exists() || have.Spec.Resource.UID != t.GetUID() || !kube.OlderVersion(t.GetResourceVersion(), have.Spec.Resource.ResourceVersion) {
		return nil
	}
	return r.confirmOne(ctx, t, example(t.GroupVersionKind()))
}

// replaced reports whether the binding belongs to a previous object with the template's name and must be deleted first (kube.Replaced).
// A binding without owner stays: its template was deleted with --cascade=orphan.
func (r *reconciler) replaced(ctx context.Context, t *unstructured.Unstructured, have kube.Binding) (bool, error) {
	if !have.Exists() || metav1.GetControllerOf(have) == nil {
		return false, nil
	}
	if is, err := kube.Replaced(ctx, r.live, have, t.GetUID()); err != nil || !is {
		return false, err
	}
	return true, r.confirmOne(ctx, t, example(t.GroupVersionKind())) // the cached template may be the former one
}

// confirmOne reads an object into now, which has the type of the cached one. A read of metadata alone is not comparable: the API
// server computes annotations of some kinds (DaemonSet: deprecated.daemonset.template.generation) from the whole object.
func (r *reconciler) confirmOne(ctx context.Context, cached, now client.Object) error {
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), now); {
	case apierrors.IsNotFound(err):
		return kube.StaleCache(cached, cached.GetResourceVersion(), "none")
	case err != nil:
		return fmt.Errorf("read %T %s, from which its binding is to be written: %w", cached, cached.GetName(), err)
	}
	if now.GetResourceVersion() != cached.GetResourceVersion() && !equivalent(cached, now) {
		return kube.StaleCache(cached, cached.GetResourceVersion(), now.GetResourceVersion())
	}
	return nil
}

// equivalent reports whether two versions of an object differ at most in status. A kind without generations has no status.
func equivalent(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetGeneration() > 0 && sameMetadata(a, b)
}
