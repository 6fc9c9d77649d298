package propagate

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// dependsOn says whether the template of a binding refers to an object, by name or by its labels.
func dependsOn(b binding, t *unstructured.Unstructured) bool {
	for _, d := range dependenciesOf(b) {
		if d.Kind != t.GetKind() || groupOf(d.APIVersion) != groupOf(t.GetAPIVersion()) || d.Namespace != t.GetNamespace() {
			continue
		}
		if d.Name != "" {
			if d.Name == t.GetName() {
				return true
			}
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(d.LabelSelector)
		if err == nil && selector.Matches(labels.Set(t.GetLabels())) { // one that cannot be evaluated selects nothing
			return true
		}
	}
	return false
}

func groupOf(apiVersion string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return ""
	}
	return group
}

// requireBy notes the bindings that need this one: a snapshot of each, and a label to find it by.
func requireBy(b binding, parents []binding) {
	for key := range b.GetLabels() {
		if strings.HasPrefix(key, workv1alpha2.LabelDependedByPrefix) {
			setLabel(b, key, "")
		}
	}
	b.spec.RequiredBy = nil
	for _, p := range parents {
		setLabel(b, dependedBy(p), p.GetLabels()[p.idLabel()])
		b.spec.RequiredBy = append(b.spec.RequiredBy, snapshotOf(p))
	}
}

func snapshotOf(p binding) workv1alpha2.BindingSnapshot {
	return workv1alpha2.BindingSnapshot{Namespace: p.GetNamespace(), Name: p.GetName(), Clusters: p.spec.Clusters}
}

// dependedBy is the label by which a binding says that another one needs it.
func dependedBy(parent binding) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(parent.roomKey())) // a hash takes everything
	return fmt.Sprintf("%s%08x", workv1alpha2.LabelDependedByPrefix, h.Sum32())
}

// attach gives a binding without a policy of its own what those that need it want: Overwrite and preservation if any of them does.
func attach(s *workv1alpha2.ResourceBindingSpec, parents []binding) {
	s.ConflictResolution = policyv1alpha1.ConflictAbort
	s.PreserveResourcesOnDeletion = nil
	for _, p := range parents {
		if p.spec.ConflictResolution == policyv1alpha1.ConflictOverwrite {
			s.ConflictResolution = policyv1alpha1.ConflictOverwrite
		}
		if ptr.Deref(p.spec.PreserveResourcesOnDeletion, false) {
			s.PreserveResourcesOnDeletion = ptr.To(true)
		}
	}
}

// conflict says in words what those that need one object disagree about; "": nothing.
func conflict(parents []binding) string {
	var of []string
	if disagree(parents, func(b binding) bool { return b.spec.ConflictResolution == policyv1alpha1.ConflictOverwrite }) {
		of = append(of, "conflictResolution: Overwrite is used")
	}
	if disagree(parents, func(b binding) bool { return ptr.Deref(b.spec.PreserveResourcesOnDeletion, false) }) {
		of = append(of, "preserveResourcesOnDeletion: true is used")
	}
	if len(of) == 0 {
		return ""
	}
	var who []string
	for _, p := range parents {
		who = append(who, p.GetName())
	}
	return fmt.Sprintf("the policies of %s disagree about %s; give them the same value, or give this object a policy of its own",
		strings.Join(who, ", "), strings.Join(of, ", and about "))
}

func disagree(all []binding, about func(binding) bool) bool {
	return slices.ContainsFunc(all, about) && slices.ContainsFunc(all, func(b binding) bool { return !about(b) })
}

func sortBindings(all []binding) {
	slices.SortFunc(all, func(a, b binding) int { return strings.Compare(a.roomKey(), b.roomKey()) })
}
