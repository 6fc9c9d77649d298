package propagate

import (
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// ignored reports whether an object is none of ours although its kind is watched.
func ignored(o client.Object, gk schema.GroupKind) bool {
	return policy.OwnKind(gk) || kinds.OfEachCluster(gk, o) || workv1alpha2.ReservedNamespace(o.GetNamespace()) || o.GetLabels()[workv1alpha2.LabelClaimedBy] != "" ||
		gk == schema.GroupKind{Kind: "Namespace"} && workv1alpha2.ReservedNamespace(o.GetName())
}

// changed reports whether an update of a template is relevant: not if only status or metadata
// maintained by the API server changed.
func changed(before, after *unstructured.Unstructured) bool {
	return before.GetUID() != after.GetUID() || (before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(bare(before), bare(after))
}

// bare is an object without metadata and status.
func bare(t *unstructured.Unstructured) map[string]any {
	out := maps.Clone(t.Object)
	delete(out, "metadata")
	delete(out, "status")
	return out
}

// sameMetadata compares the metadata that propagation depends on.
func sameMetadata(a, b client.Object) bool {
	return maps.Equal(a.GetLabels(), b.GetLabels()) && maps.Equal(a.GetAnnotations(), b.GetAnnotations()) &&
		slices.Equal(a.GetFinalizers(), b.GetFinalizers()) &&
		equality.Semantic.DeepEqual(a.GetOwnerReferences(), b.GetOwnerReferences()) &&
		(a.GetDeletionTimestamp() == nil) == (b.GetDeletionTimestamp() == nil)
}

func groupOf(apiVersion string) string {
	group, _, ok := strings.Cut(apiVersion, "/")
	if !ok {
		return ""
	}
	return group
}
