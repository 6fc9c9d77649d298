package propagate

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kinds"
)

// inert keeps a propagated template from making the hub's API server call a Service of members, and
// returns the template as it is then. Where the hub's cluster runs workloads, Services are there.
func (r *reconciler) inert(
	ctx context.Context, key Key, t *unstructured.Unstructured,
) (*unstructured.Unstructured, error) {
	if r.RunsWorkloads {
		return t, nil
	}
	now := t.DeepCopy()
	what, err := kinds.Inert(now)
	if err != nil || what == "" {
		return t, err
	}
	patch := client.MergeFromWithOptions(t, client.MergeFromWithOptimisticLock{})
	others, err := r.templates.Write(key, now, func() error {
		if err := r.client.Patch(ctx, now, patch, client.FieldOwner(policyv1alpha1.AnnotationMembersOnly)); err != nil {
			return err
		}
		return r.unmark(ctx, now)
	})
	if others {
		r.queue.Add(key)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the hub's API server from calling the Service of %s: %w", key, err)
	}
	r.events.Event(now, corev1.EventTypeNormal, workv1alpha2.EventMembersOnly, what)
	return now, nil
}

// unmark removes our ownership of the fields that inert has set. With it the user's next server-side
// apply would be a conflict. It is tried until no other write comes between, such as that of the
// status of a CustomResourceDefinition: later the template shows nothing to do.
func (r *reconciler) unmark(ctx context.Context, now *unstructured.Unstructured) error {
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := r.unmarkOnce(ctx, now)
		if apierrors.IsConflict(err) {
			if gone := r.live.Get(ctx, client.ObjectKeyFromObject(now), now); gone != nil {
				return client.IgnoreNotFound(gone)
			}
		}
		return err
	})
	now.SetManagedFields(nil) // as in the cache
	return err
}

func (r *reconciler) unmarkOnce(ctx context.Context, now *unstructured.Unstructured) error {
	all := now.GetManagedFields()
	others := slices.DeleteFunc(slices.Clone(all), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == policyv1alpha1.AnnotationMembersOnly
	})
	if len(others) == len(all) {
		return nil
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"resourceVersion": now.GetResourceVersion(), "managedFields": others}})
	if err != nil {
		return err
	}
	return r.client.Patch(ctx, now, client.RawPatch(types.MergePatchType, raw))
}
