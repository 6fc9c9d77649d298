package propagate

import (
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// leaves says whether a cluster loses the template.
func leaves(before, after []workv1alpha2.TargetCluster) bool {
	return slices.ContainsFunc(before, func(b workv1alpha2.TargetCluster) bool {
		return !slices.ContainsFunc(after, func(a workv1alpha2.TargetCluster) bool { return a.Name == b.Name })
	})
}

// confirm is errBehind if the template or the policy at the server is another than the one that was decided from. Each has an informer
// of its own; the one of policies may be behind that of templates, after a start or an outage for seconds. Of both together a
// state comes out then that nobody has asked for, in which a cluster may lose a template that it had before and has afterwards.
func (r *reconciler) confirm(ctx context.Context, w wish) error {
	if err := r.confirmOne(ctx, w.template, w.template.GroupVersionKind()); err != nil {
		return err
	}
	if w.policy == nil {
		return nil
	}
	kind := "PropagationPolicy"
	if w.policy.clusterWide {
		kind = "ClusterPropagationPolicy"
	}
	return r.confirmOne(ctx, w.policy.Object, policyv1alpha1.GroupVersion.WithKind(kind))
}

func (r *reconciler) confirmOne(ctx context.Context, o client.Object, gvk schema.GroupVersionKind) error {
	now := &metav1.PartialObjectMetadata{}
	now.SetGroupVersionKind(gvk)
	switch err := r.live.Get(ctx, client.ObjectKeyFromObject(o), now); {
	case apierrors.IsNotFound(err):
		return errBehind
	case err != nil:
		return fmt.Errorf("read %s %s, from which a cluster is to lose it: %w", gvk.Kind, o.GetName(), err)
	}
	// A kind that does not count generations has no status beside.
	same := now.GetGeneration() == o.GetGeneration() && (now.GetGeneration() > 0 || now.GetResourceVersion() == o.GetResourceVersion())
	if now.GetUID() != o.GetUID() || !same || !sameMarks(now, o) {
		return errBehind
	}
	return nil
}
