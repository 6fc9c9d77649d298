package propagate

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
	if err := r.confirmOne(ctx, w.template, example(w.template.GroupVersionKind())); err != nil || w.policy == nil {
		return err
	}
	var now client.Object = &policyv1alpha1.PropagationPolicy{}
	if w.policy.clusterWide {
		now = &policyv1alpha1.ClusterPropagationPolicy{}
	}
	return r.confirmOne(ctx, w.policy.Object, now)
}

// confirmOne reads an object into now, which has the type of the cached one. A read of metadata alone is not comparable: the API
// server computes annotations of some kinds (DaemonSet: deprecated.daemonset.template.generation) from the whole object.
func (r *reconciler) confirmOne(ctx context.Context, cached, now client.Object) error {
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
