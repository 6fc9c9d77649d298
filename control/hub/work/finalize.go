package work

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// finalize releases a binding. Its Works are deleted first, unless the template still exists and the binding names clusters (a user
// deleted it, or the garbage collector of a restored hub does not find its owner): they stay for the next binding.
func (r *reconciler) finalize(ctx context.Context, b Binding) (time.Duration, error) {
	if !controllerutil.ContainsFinalizer(b.Object, b.finalizer()) {
		return 0, nil
	}
	alive, err := r.alive(ctx, b.Spec.Resource)
	if err != nil {
		return 0, fmt.Errorf("look for the template of %s: %w", b.title(), err)
	}
	works, err := r.works(ctx, b)
	if err != nil {
		return 0, err
	}
	if alive && !detached(b) {
		if err := r.leave(ctx, b, works); err != nil {
			return 0, r.notCleaned(b, nil, err)
		}
		return 0, r.release(ctx, b)
	}
	if err := r.writer.Delete(ctx, works); err != nil {
		return 0, r.notCleaned(b, nil, err)
	}
	if waiting, err := r.holding(ctx, works); waiting || err != nil {
		return goneAgain, err
	}
	if len(works) == 0 {
		unseen, err := r.unseen(ctx, b)
		if unseen || err != nil {
			return goneAgain, err
		}
	}
	return 0, r.release(ctx, b)
}

// detached reports whether control/hub/propagate deletes the binding because no other template depends on this one.
func detached(b Binding) bool {
	return b.Spec.Placement == nil && !b.claimed() && len(b.Spec.Clusters) == 0 && len(b.Spec.RequiredBy) == 0
}

// alive reports whether the API server has a template of this kind and name that is not being deleted. A kind that is not served has
// no objects.
func (r *reconciler) alive(ctx context.Context, ref workv1alpha2.ObjectReference) (bool, error) {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(ref.APIVersion)
	u.SetKind(ref.Kind)
	switch err := r.live.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, u); {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return u.GetDeletionTimestamp() == nil, nil
}

// holding reports whether a Work delays the end of its binding. One of a cluster that is leaving or gone does not: it may have no
// executor any more, and its namespace is deleted with the cluster.
func (r *reconciler) holding(ctx context.Context, works []*workv1alpha1.Work) (bool, error) {
	for _, w := range works {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		if !ok {
			continue
		}
		if c, err := r.cluster(ctx, cluster); c != nil || err != nil {
			return true, err
		}
	}
	return false, nil
}

// unseen reports whether the API server has Works of the binding that the cache does not show. After the binding is gone no reconcile
// would delete them.
func (r *reconciler) unseen(ctx context.Context, b Binding) (bool, error) {
	id := b.GetLabels()[b.idLabel()]
	if id == "" {
		return false, nil
	}
	var list workv1alpha1.WorkList
	if err := r.live.List(ctx, &list, client.MatchingLabels{b.idLabel(): id}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the Works of %s: %w", b.title(), err)
	}
	return len(list.Items) > 0, nil
}

// release removes the finalizer.
func (r *reconciler) release(ctx context.Context, b Binding) error {
	controllerutil.RemoveFinalizer(b.Object, b.finalizer())
	if err := r.client.Update(ctx, b.Object); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("let %s go: %w", b.title(), err))
	}
	return nil
}
