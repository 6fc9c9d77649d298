package work

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// marks are the labels and annotations that name the binding and its policy on Works and on the
// objects in members.
func marks(b binding.Binding, policyLabels, policyAnnotations map[string]string) (labels, annotations map[string]string) {
	labels, annotations = maps.Clone(policyLabels), maps.Clone(policyAnnotations)
	if id := b.GetLabels()[b.IDLabel()]; id != "" {
		labels[b.IDLabel()] = id
	}
	if b.GetNamespace() == "" {
		annotations[workv1alpha2.AnnotationClusterBindingName] = b.GetName()
	} else {
		annotations[workv1alpha2.AnnotationBindingNamespace] = b.GetNamespace()
		annotations[workv1alpha2.AnnotationBindingName] = b.GetName()
	}
	return labels, annotations
}

// claimed reports whether a policy claims the binding.
func claimed(b binding.Binding) bool {
	labels, _ := PolicyMarks(b.GetLabels(), nil)
	return len(labels) > 0
}

// PolicyMarks are the labels and annotations that name a policy.
func PolicyMarks(labels, annotations map[string]string) (ofLabels, ofAnnotations map[string]string) {
	return only(labels, policyv1alpha1.ClaimLabels), only(annotations, policyv1alpha1.ClaimAnnotations)
}

func only(m map[string]string, keys []string) map[string]string {
	out := map[string]string{}
	for _, key := range keys {
		if value, there := m[key]; there {
			out[key] = value
		}
	}
	return out
}

// mark sets the labels and annotations that identify the object in the member. It runs last, so
// that no override changes them and the lists of managed keys are complete.
func mark(obj *unstructured.Unstructured, work *workv1alpha1.Work, in RenderInput) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for _, key := range policyv1alpha1.ClaimLabels {
		delete(labels, key) // the template's claim may be newer or older than the binding's
	}
	maps.Copy(labels, work.Labels)
	labels[workv1alpha1.LabelManaged] = "true"
	obj.SetLabels(labels)

	a := obj.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	for _, key := range policyv1alpha1.ClaimAnnotations {
		delete(a, key)
	}
	maps.Copy(a, in.Annotations)
	a[workv1alpha1.AnnotationWorkNamespace], a[workv1alpha1.AnnotationWorkName] = work.Namespace, work.Name
	a[workv1alpha2.AnnotationTemplateUID] = string(in.Object.GetUID())
	a[workv1alpha2.AnnotationTemplateGeneration] = strconv.FormatInt(in.Object.GetGeneration(), 10)
	a[workv1alpha1.AnnotationConflictResolution] = conflict(in)
	a[pelagov1alpha1.AnnotationHubID] = in.HubID
	if owned := memberOwned(in.MemberOwned, a[policyv1alpha1.AnnotationMemberOwned]); owned != "" {
		a[policyv1alpha1.AnnotationMemberOwned] = owned
	}
	a[workv1alpha2.AnnotationManagedLabels] = ledger(labels)
	a[workv1alpha2.AnnotationManagedAnnotations] = ""
	a[workv1alpha2.AnnotationManagedAnnotations] = ledger(a)
	obj.SetAnnotations(a)
}

// leave adds fields that each member fills in to those that the object leaves to members: what a
// member has stays when the hub no longer sends a value of its own. Labels and annotations of
// others stay anyway.
func leave(obj *unstructured.Unstructured, pointers []string) {
	pointers = slices.DeleteFunc(pointers, func(p string) bool { return strings.HasPrefix(p, "/metadata/") })
	if len(pointers) == 0 {
		return
	}
	annotations := obj.GetAnnotations()
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[policyv1alpha1.AnnotationMemberOwned] = memberOwned(annotations[policyv1alpha1.AnnotationMemberOwned], strings.Join(pointers, ","))
	obj.SetAnnotations(annotations)
}

// conflict is the conflict resolution of the template's annotation, else the policy's.
func conflict(in RenderInput) string {
	own := in.Object.GetAnnotations()[workv1alpha1.AnnotationConflictResolution]
	switch {
	case own == workv1alpha1.ConflictResolutionOverwrite, own == workv1alpha1.ConflictResolutionAbort:
		return own
	case in.Conflict == policyv1alpha1.ConflictOverwrite:
		return workv1alpha1.ConflictResolutionOverwrite
	}
	return workv1alpha1.ConflictResolutionAbort
}

// memberOwned is the union of two lists of fields, sorted.
func memberOwned(lists ...string) string {
	var all []string
	for _, list := range lists {
		for field := range strings.SplitSeq(list, ",") {
			if field = strings.TrimSpace(field); field != "" {
				all = append(all, field)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func ledger(m map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ",")
}
