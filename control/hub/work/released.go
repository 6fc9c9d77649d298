package work

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// leave notes on the Works of a binding that goes while a template of its name lives that they are for the next binding. If the
// template goes before there is one, nothing else would tell that these Works have had an end.
func (r *reconciler) leave(ctx context.Context, b Binding, works []*workv1alpha1.Work) error {
	var left []*workv1alpha1.Work
	for _, w := range works {
		req, ok := bindingOf(w)
		ours := ok && req.NamespacedName == client.ObjectKeyFromObject(b)
		if ours && w.DeletionTimestamp == nil && !isReleased(w) {
			w.Annotations[workv1alpha1.AnnotationReleased] = "true"
			left = append(left, w)
		}
	}
	return r.writer.Update(ctx, OfReference(b.Spec.Resource), left)
}

func isReleased(w *workv1alpha1.Work) bool {
	return w.Annotations[workv1alpha1.AnnotationReleased] != ""
}

// released looks at the Works that a binding which is gone has left: they go if their template has gone since, too. Other Works
// without a binding are left alone: who made them is not known.
func (r *reconciler) released(ctx context.Context, req reconcile.Request) (time.Duration, error) {
	var list workv1alpha1.WorkList
	if err := r.client.List(ctx, &list, client.MatchingFields{bindingIndex: req.String()}); err != nil {
		return 0, fmt.Errorf("list the Works that the binding %s has left: %w", req, err)
	}
	var works []*workv1alpha1.Work
	for i := range list.Items {
		if w := &list.Items[i]; w.DeletionTimestamp == nil && isReleased(w) {
			works = append(works, w)
		}
	}
	if len(works) == 0 {
		return 0, nil
	}
	ref, err := templateOf(works[0])
	if err != nil {
		return 0, err
	}
	alive, err := r.alive(ctx, ref)
	if err != nil {
		return 0, fmt.Errorf("look for the template of the binding %s: %w", req, err)
	}
	if alive {
		return goneAgain, nil // its next binding is on the way
	}
	b := newBinding(req.NamespacedName)
	if err := r.live.Get(ctx, req.NamespacedName, b.Object); !apierrors.IsNotFound(err) {
		return 0, err // the cache is behind
	}
	return 0, r.writer.Delete(ctx, works)
}

// templateOf is what a Work was made of; all Works of one binding are of one template.
func templateOf(w *workv1alpha1.Work) (workv1alpha2.ObjectReference, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(w.Spec.Workload.Manifests[0].Raw); err != nil {
		return workv1alpha2.ObjectReference{}, fmt.Errorf("read the manifest of Work %s/%s: %w", w.Namespace, w.Name, err)
	}
	return workv1alpha2.ObjectReference{APIVersion: u.GetAPIVersion(), Kind: u.GetKind(), Namespace: u.GetNamespace(),
		Name: u.GetName()}, nil
}
