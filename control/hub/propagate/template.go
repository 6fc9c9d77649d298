package propagate

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// ownGroups are groups none of whose objects are templates: what propagation itself consists of, and the network's.
var ownGroups = []string{"cluster.karmada.io", "policy.karmada.io", "work.karmada.io", "config.karmada.io", "pelago.io",
	"submariner.io", "events.k8s.io", "coordination.k8s.io", "discovery.k8s.io"}

// ownKind says whether objects of a kind are never templates. Of discovery.k8s.io and coordination.k8s.io nothing is left without
// EndpointSlices and Leases.
func ownKind(gk schema.GroupKind) bool {
	return slices.Contains(ownGroups, gk.Group) || gk == schema.GroupKind{Kind: "Event"}
}

// ignored says whether an object is none of ours although its kind is watched.
func ignored(o client.Object, gk schema.GroupKind) bool {
	return ownKind(gk) || workv1alpha2.ReservedNamespace(o.GetNamespace()) || o.GetLabels()[workv1alpha2.LabelClaimedBy] != "" ||
		gk == schema.GroupKind{Kind: "Namespace"} && workv1alpha2.ReservedNamespace(o.GetName())
}

// content is what of a template is propagated: all but its status, what the API server keeps in metadata, and our own marks.
func content(t *unstructured.Unstructured) map[string]any {
	out := maps.Clone(t.Object)
	delete(out, "status")
	out["metadata"] = map[string]any{"labels": without(t.GetLabels(), markLabels),
		"annotations": without(t.GetAnnotations(), append([]string{workv1alpha2.AnnotationTemplate}, markAnnotations...))}
	return out
}

// without is a copy of the map that lacks some keys.
func without(m map[string]string, keys []string) map[string]string {
	out := make(map[string]string, len(m))
	for k, v := range m {
		if !slices.Contains(keys, k) {
			out[k] = v
		}
	}
	return out
}

// templateHash is a hash of the content; see workv1alpha2.AnnotationTemplate.
func templateHash(t *unstructured.Unstructured) (string, error) {
	raw, err := json.Marshal(content(t))
	if err != nil {
		return "", fmt.Errorf("hash %s %s: %w", t.GetKind(), t.GetName(), err)
	}
	h := fnv.New64a()
	_, _ = h.Write(raw) // a hash takes everything
	return fmt.Sprintf("%016x", h.Sum64()), nil
}

// changed says whether a change of a template is any of our business: not if it was the status, or what the API server keeps.
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
