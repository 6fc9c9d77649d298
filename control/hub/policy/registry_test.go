package policy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
)

func TestRegistryConditions(t *testing.T) {
	clusters := make([]clusterv1alpha1.Cluster, 2)
	for i, kind := range []string{"Pod", "Node"} {
		clusters[i].Name = "m" + string(rune('1'+i))
		clusters[i].Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "v1",
			Resources: []clusterv1alpha1.APIResource{{Name: strings.ToLower(kind) + "s", Kind: kind}}}}
	}
	m1 := policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m1"}}
	invalid := policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}}
	openSearch := &searchv1alpha1.BackendStoreConfig{OpenSearch: &searchv1alpha1.OpenSearchConfig{}}
	for name, c := range map[string]struct {
		target policyv1alpha1.ClusterAffinity
		store  *searchv1alpha1.BackendStoreConfig
		kinds  string
		want   string // of Accepted, of KindsServed, what a message has
	}{
		"served":         {m1, &searchv1alpha1.BackendStoreConfig{}, "Pod", "True True cluster of spec.targetCluster serves"},
		"by another one": {m1, nil, "Pod Node", "True False no cluster of spec.targetCluster serves Node (v1): correct"},
		"by none":        {policyv1alpha1.ClusterAffinity{}, nil, "Gadget Pod Widget", "True False serves Gadget (v1), Widget (v1): correct"},
		"OpenSearch":     {m1, openSearch, "Pod", "False Unknown spec.backendStore.openSearch is not supported"},
		"not served":     {m1, nil, "Pod", "False Unknown pelago-hub serves no search: run it with --proxy-address"},
		"invalid":        {invalid, nil, "Pod", "False Unknown spec.targetCluster: labelSelector"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := &searchv1alpha1.ResourceRegistrySpec{TargetCluster: c.target, BackendStore: c.store}
			for _, kind := range strings.Fields(c.kinds) {
				spec.ResourceSelectors = append(spec.ResourceSelectors, searchv1alpha1.ResourceSelector{APIVersion: "v1", Kind: kind})
			}
			got := registryConditions(spec, clusters, name != "not served")
			text := string(got[0].Status) + " " + string(got[1].Status) + " "
			if rest, ok := strings.CutPrefix(c.want, text); !ok || !strings.Contains(got[1].Message, rest) {
				t.Errorf("%s %s, want %s", text, got[1].Message, c.want)
			}
			if got[0].Type != "Accepted" || got[1].Type != "KindsServed" {
				t.Errorf("types %s, %s", got[0].Type, got[1].Type)
			}
		})
	}
}
