package v1alpha2

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// SpecHash returns a hash of a binding's spec without the clusters: when it changes, a decision is
// due.
func SpecHash(spec *ResourceBindingSpec) (string, error) {
	in := *spec
	in.Clusters = nil
	hash, err := hashOf(in)
	if err != nil {
		return "", fmt.Errorf("hash the spec of a binding: %w", err)
	}
	return hash, nil
}

// TemplateHash returns a hash of the propagated parts of a template (see AnnotationTemplate): all
// except its status, the metadata that the API server maintains, and the claim.
func TemplateHash(t *unstructured.Unstructured) (string, error) {
	labels, annotations := map[string]string{}, map[string]string{} // never null
	maps.Copy(labels, t.GetLabels())
	maps.Copy(annotations, t.GetAnnotations())
	for _, key := range policyv1alpha1.ClaimLabels {
		delete(labels, key)
	}
	for _, key := range append([]string{AnnotationTemplate}, policyv1alpha1.ClaimAnnotations...) {
		delete(annotations, key)
	}
	content := maps.Clone(t.Object)
	delete(content, "status")
	content["metadata"] = map[string]any{"labels": labels, "annotations": annotations}
	hash, err := hashOf(content)
	if err != nil {
		return "", fmt.Errorf("hash %s %s: %w", t.GetKind(), t.GetName(), err)
	}
	return hash, nil
}

func hashOf(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", err
	}
	h := fnv.New64a()
	_, _ = h.Write(raw) // a hash takes everything
	return fmt.Sprintf("%016x", h.Sum64()), nil
}
