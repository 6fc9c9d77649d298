package work

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/kube"
)

// Identity names an object whatever version it is written in: by it a Work is found again when ids,
// names and UIDs are others than before (a hub that was restored).
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

// OfWork is the identity of what a Work of ours holds. ok is false for Works that another component
// made: they carry neither an id nor the name of a binding, or hold something else than one object.
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

// templateIndex finds Works by the identity of what they hold.
const templateIndex = "manifest.template"

// AddIndexes indexes the Works in the manager's cache by what they hold, as Writer.Works needs it:
// once for all controllers.
func AddIndexes(mgr ctrl.Manager) error {
	return kube.AddIndex(mgr, &workv1alpha1.Work{}, templateIndex, func(w *workv1alpha1.Work) []string {
		if id, ok := OfWork(w); ok {
			return []string{id.String()}
		}
		return nil
	})
}

func find(ctx context.Context, cache client.Reader, holds Identity) ([]*workv1alpha1.Work, error) {
	var list workv1alpha1.WorkList
	if err := cache.List(ctx, &list, client.MatchingFields{templateIndex: holds.String()}); err != nil {
		name := types.NamespacedName{Namespace: holds.Namespace, Name: holds.Name}
		return nil, fmt.Errorf("list the Works of %s %s: %w", holds.Kind, name, err)
	}
	return kube.Pointers(list.Items), nil
}
