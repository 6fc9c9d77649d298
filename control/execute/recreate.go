package execute

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// keepData are the kinds whose deletion loses what a new object does not bring back.
var keepData = []schema.GroupKind{
	{Kind: "PersistentVolumeClaim"}, {Kind: "PersistentVolume"}, {Kind: "Namespace"},
	{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"},
}

// unchangeable is how API servers refuse a change in place (validation of the kinds of Kubernetes).
var unchangeable = regexp.MustCompile(`(?i)immutable|may not change|may not be changed|cannot (be )?change|must not be changed|` +
	`updates to .* forbidden|Forbidden: (pod )?updates |not mutable`)

// immutable reports whether all that an API server refuses is a change in place. An object that is
// invalid by itself is not deleted, since it could not be created again.
func immutable(err error) bool {
	var answer apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &answer) || answer.Status().Details == nil || len(answer.Status().Details.Causes) == 0 {
		return false
	}
	return !slices.ContainsFunc(answer.Status().Details.Causes, func(c metav1.StatusCause) bool { return !unchangeable.MatchString(c.Message) })
}

// headless is the error of a Service that is headless in the member alone. Its API server does not
// refuse the change but leaves it headless.
func headless(want, have *unstructured.Unstructured) error {
	if have.GroupVersionKind().GroupKind() != (schema.GroupKind{Kind: "Service"}) {
		return nil
	}
	spec := func(u *unstructured.Unstructured, field string) string {
		value, _, _ := unstructured.NestedString(u.Object, "spec", field) // "" if it is no text, which the member refuses
		return value
	}
	if spec(have, "clusterIP") != corev1.ClusterIPNone || spec(want, "clusterIP") != "" || spec(want, "type") == string(corev1.ServiceTypeExternalName) {
		return nil
	}
	return refusal("spec.clusterIP is None in the cluster, which cannot change in place: delete the Service in the cluster, then it is made anew")
}

// recreate deletes an object that cannot become what is desired, if its template was replaced by
// another one of its name, and creates it again: deleting the former template would have done the
// same, had the hub seen it in time. Any other refusal is returned: a change of the same template,
// of an object that is preserved on deletion, or of a kind whose deletion loses data.
func (t *task) recreate(ctx context.Context, want *desired, have *unstructured.Unstructured, refused error) (*unstructured.Unstructured, error) {
	was, is := have.GetAnnotations()[workv1alpha2.AnnotationTemplateUID], want.object.GetAnnotations()[workv1alpha2.AnnotationTemplateUID]
	kind := have.GroupVersionKind().GroupKind()
	if was == "" || is == "" || was == is || ptr.Deref(t.work.Spec.PreserveResourcesOnDeletion, false) || slices.Contains(keepData, kind) ||
		ownerOf(have, t.o.HubID, t.key()) != oursOfWork {
		return nil, refused
	}
	pending := refusal(fmt.Sprintf("it is deleted to be made anew, and not gone yet; its finalizers: %v", have.GetFinalizers()))
	if have.GetDeletionTimestamp() != nil {
		return nil, pending
	}
	if err := t.fresh(); err != nil {
		return nil, err
	}
	err := t.member.client.Delete(ctx, have, client.PropagationPolicy(metav1.DeletePropagationBackground), client.Preconditions{
		UID: ptr.To(have.GetUID()), ResourceVersion: ptr.To(have.GetResourceVersion()),
	})
	count(t.o.Metrics.delete, t.o.Cluster, want.object, client.IgnoreNotFound(err))
	if client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	t.o.Recorder.Eventf(t.work, corev1.EventTypeWarning, workv1alpha2.EventSyncSucceed,
		"%s was deleted in the cluster %s to be made anew: its template was replaced, and the change is not possible in place: %v",
		describe(want.object), t.o.Cluster, refused)
	again, err := t.live(ctx, want.object)
	if err != nil {
		return nil, err
	}
	if again != nil {
		return nil, pending
	}
	return t.create(ctx, want)
}
