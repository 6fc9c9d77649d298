package work

import (
	"bytes"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// The marks of a Work that are ours: those that are not wanted any more are removed, all others are somebody else's.
var (
	ownLabels      = append([]string{workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID}, policyLabels...)
	ownAnnotations = append([]string{
		workv1alpha2.AnnotationBindingNamespace, workv1alpha2.AnnotationBindingName, workv1alpha2.AnnotationClusterBindingName,
		policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides, policyv1alpha1.AnnotationMemberOwned,
		workv1alpha2.AnnotationTemplate, workv1alpha1.AnnotationReleased,
	}, policyAnnotations...)
)

// Updated returns a Work that exists as it is wanted; nil if it is that already. Compared is by content: the bytes of a
// manifest may be others after the API server has read them.
func Updated(have, want *workv1alpha1.Work) *workv1alpha1.Work {
	next := have.DeepCopy()
	next.Labels = marked(next.Labels, want.Labels, ownLabels)
	next.Annotations = marked(next.Annotations, want.Annotations, ownAnnotations)
	for _, f := range want.Finalizers {
		if !slices.Contains(next.Finalizers, f) {
			next.Finalizers = append(next.Finalizers, f)
		}
	}
	if !equalSpec(&have.Spec, &want.Spec) {
		next.Spec = *want.Spec.DeepCopy()
	}
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	return next
}

func marked(have, want map[string]string, own []string) map[string]string {
	out := map[string]string{}
	for key, value := range have {
		if !slices.Contains(own, key) {
			out[key] = value
		}
	}
	for key, value := range want {
		out[key] = value
	}
	return out
}

func equalSpec(have, want *workv1alpha1.WorkSpec) bool {
	return ptr.Deref(have.SuspendDispatching, false) == ptr.Deref(want.SuspendDispatching, false) &&
		ptr.Deref(have.PreserveResourcesOnDeletion, false) == ptr.Deref(want.PreserveResourcesOnDeletion, false) &&
		slices.EqualFunc(have.Workload.Manifests, want.Workload.Manifests, func(a, b workv1alpha1.Manifest) bool {
			return sameContent(a.Raw, b.Raw)
		})
}

// sameContent compares two JSON objects.
func sameContent(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return equality.Semantic.DeepEqual(x, y)
}
