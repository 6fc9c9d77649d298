package propagate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// leaves reports whether a cluster loses the template.
func leaves(before, after []workv1alpha2.TargetCluster) bool {
	return slices.ContainsFunc(before, func(b workv1alpha2.TargetCluster) bool {
		return !slices.ContainsFunc(after, func(a workv1alpha2.TargetCluster) bool { return a.Name == b.Name })
	})
}

// confirm is a StaleCacheError if the API server has another version of the template or the policy than the one the decision was
// made from. Their informers are independent: after a start or an outage that of policies may lag by seconds, and the combination of
// a new template with an old policy may remove a template from a cluster that has it before and after.
func (r *reconciler) confirm(ctx context.Context, w wish) error {
	if err := r.confirmOne(ctx, w.template, w.template.GroupVersionKind()); err != nil || w.policy == nil {
		return err
	}
	kind := "PropagationPolicy"
	if w.policy.clusterWide {
		kind = "ClusterPropagationPolicy"
	}
	return r.confirmOne(ctx, w.policy.Object, policyv1alpha1.GroupVersion.WithKind(kind))
}

func (r *reconciler) confirmOne(ctx context.Context, cached client.Object, gvk schema.GroupVersionKind) error {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(gvk)
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(cached), now); {
	case apierrors.IsNotFound(err):
		return kube.StaleCache(cached, cached.GetResourceVersion(), "none")
	case err != nil:
		return fmt.Errorf("read %T %s, from which a cluster is to lose it: %w", cached, cached.GetName(), err)
	}
	if now.GetResourceVersion() != cached.GetResourceVersion() && !equivalent(cached, now) {
		return kube.StaleCache(cached, cached.GetResourceVersion(), now.GetResourceVersion())
	}
	return nil
}

// equivalent reports whether two versions of an object differ at most in status. A kind without generations has no status.
func equivalent(a, b client.Object) bool {
	return a.GetUID() == b.GetUID() && a.GetGeneration() == b.GetGeneration() && a.GetGeneration() > 0 && sameMarks(a, b)
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
