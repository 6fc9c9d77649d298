package work

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// A namespace goes to all clusters, or where policies place it; never both.
func TestEverywhere(t *testing.T) {
	yes := func(label string) map[string]string { return map[string]string{label: "true"} }
	skip, propagate := yes(policyv1alpha1.LabelNamespaceSkipAutoPropagation), yes(policyv1alpha1.LabelPropagateNamespace)
	for name, c := range map[string]struct {
		kind, name  string
		labels      map[string]string
		optIn, want bool
	}{
		"a namespace":                           {"Namespace", "web", nil, false, true},
		"a labelled one":                        {"Namespace", "web", skip, false, false},
		"default":                               {"Namespace", "default", nil, false, false},
		"a hub with other uses":                 {"Namespace", "web", nil, true, false},
		"a hub with other uses, a labelled one": {"Namespace", "web", propagate, true, true},
		"another kind":                          {"ConfigMap", "web", nil, false, false},
	} {
		u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": c.kind}}
		u.SetName(c.name)
		u.SetLabels(c.labels)
		if got := everywhere(u, c.optIn); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		now := metav1.Now()
		u.SetDeletionTimestamp(&now)
		if got := everywhere(u, c.optIn); got != c.want {
			t.Errorf("%s, being deleted: %v", name, got)
		}
	}
}
