package work

import (
	"encoding/json"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// marks are the labels and annotations that name the binding and its policy on Works and on the objects in members.
func marks(b kube.Binding, policyLabels, policyAnnotations map[string]string) (labels, annotations map[string]string) {
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
func claimed(b kube.Binding) bool {
	labels, _ := PolicyMarks(b.GetLabels(), nil)
	return len(labels) > 0
}

// Identity names an object whatever version it is written in: by it a Work is found again when ids, names and UIDs are others
// than before (a hub that was restored).
type Identity struct{ Group, Kind, Namespace, Name string }

// String is the identity as a key of an index.
func (i Identity) String() string {
	return strings.Join([]string{i.Group, i.Kind, i.Namespace, i.Name}, "/")
}

// OfReference is the identity of a template.
func OfReference(ref workv1alpha2.ObjectReference) Identity {
	group := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).Group
	return Identity{Group: group, Kind: ref.Kind, Namespace: ref.Namespace, Name: ref.Name}
}

// OfWork is the identity of what a Work of ours holds. ok is false for Works that somebody else made: they carry neither an id
// nor the name of a binding, or hold something else than one object.
func OfWork(w *workv1alpha1.Work) (id Identity, ok bool) {
	if w.Labels[workv1alpha1.LabelWorkID] == "" && !OfBinding(w) || len(w.Spec.Workload.Manifests) != 1 {
		return Identity{}, false
	}
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Metadata   struct {
			Namespace string `json:"namespace"`
			Name      string `json:"name"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(w.Spec.Workload.Manifests[0].Raw, &head); err != nil {
		return Identity{}, false // not an object, so not a template
	}
	return OfReference(workv1alpha2.ObjectReference{
		APIVersion: head.APIVersion, Kind: head.Kind, Namespace: head.Metadata.Namespace, Name: head.Metadata.Name,
	}), true
}

// OfBinding reports whether a Work was written for a binding.
func OfBinding(w *workv1alpha1.Work) bool {
	return w.Annotations[workv1alpha2.AnnotationBindingName] != "" || w.Annotations[workv1alpha2.AnnotationClusterBindingName] != ""
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
