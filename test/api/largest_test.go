package api_test

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// times joins n texts, each made from its number.
func times(n int, text func(i int) string) string {
	texts := make([]string, n)
	for i := range texts {
		texts[i] = text(i)
	}
	return "[" + strings.Join(texts, ",") + "]"
}

// The bounds are kept so that an API server takes the rules; objects at the bounds must not run out
// of its budget for evaluating them, and one more is refused.
func TestLargestObjects(t *testing.T) {
	policy := func(spec string) string {
		return `{"apiVersion":"policy.karmada.io/v1alpha1","kind":"PropagationPolicy","metadata":{"name":"largest","namespace":"default"},"spec":` + spec + `}`
	}
	pod := func(int) string { return `{"apiVersion":"v1","kind":"Pod","name":"a"}` }
	override := func(rules int) string {
		field := func(i int) string {
			return `{"fieldPath":"/data/a","json":[{"subPath":"/a","operator":"add","value":1}]}`
		}
		return `{"apiVersion":"policy.karmada.io/v1alpha1","kind":"OverridePolicy","metadata":{"name":"largest","namespace":"default"},"spec":{"overrideRules":` +
			times(rules, func(i int) string {
				return fmt.Sprintf(`{"targetCluster":{"clusterNames":["m%d"]},"overriders":{"fieldOverrider":%s}}`, i, times(10, field))
			}) + `}}`
	}
	// Names have 32 characters.
	groups := func(n, overflows int) string {
		return policy(`{"resourceSelectors":` + times(1, pod) + `,"placement":{"replicaScheduling":{"replicaDivisionPreference":"Aggregated"},"clusterAffinities":` +
			times(n, func(i int) string {
				return fmt.Sprintf(`{"affinityName":"group-%026d","clusterNames":["m"],"overflowAffinities":%s}`, i, times(overflows, func(j int) string {
					return fmt.Sprintf(`{"affinityName":"overflow-%023d"}`, j)
				}))
			}) + `}}`)
	}
	cluster := func(taints, models int) string {
		const largest = "9223372036854775807"
		return `{"apiVersion":"cluster.karmada.io/v1alpha1","kind":"Cluster","metadata":{"name":"largest"},"spec":{"syncMode":"Push","apiEndpoint":"https://` + strings.Repeat("a", 2000) + `","id":"` +
			strings.Repeat("i", 128000) + `","taints":` + times(taints, func(i int) string {
			return fmt.Sprintf(`{"key":"example.com/%063d","effect":"NoSchedule"}`, i)
		}) + `,"resourceModels":` + times(models, func(i int) string {
			return fmt.Sprintf(`{"grade":%d,"ranges":[{"name":"cpu","min":%d,"max":%s},{"name":"memory","min":%d,"max":%s}]}`, i, i, largest, i, largest)
		}) + `}}`
	}
	c := connect(t)
	for name, tt := range map[string]struct{ object, refused string }{
		"1000 selectors, named":     {policy(`{"preemption":"Always","resourceSelectors":` + times(1000, pod) + `}`), ""},
		"1001 selectors":            {policy(`{"resourceSelectors":` + times(1001, pod) + `}`), "spec.resourceSelectors: Too many"},
		"100 groups with overflows": {groups(100, 20), ""},
		"101 groups":                {groups(101, 1), "spec.placement.clusterAffinities: Too many"},
		"1000 override rules":       {override(1000), ""},
		"1001 override rules":       {override(1001), "spec.overrideRules: Too many"},
		"100 taints, 32 models":     {cluster(100, 32), ""},
		"101 taints":                {cluster(101, 0), "spec.taints: Too many"},
		"33 models":                 {cluster(0, 33), "spec.resourceModels: Too many"},
	} {
		t.Run(name, func(t *testing.T) {
			u := object(t, []byte(tt.object))
			err := c.Create(t.Context(), u, &client.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
			if err == nil {
				c.Remove(u)
			}
			switch {
			case tt.refused == "" && err != nil:
				t.Errorf("%.2000s", err.Error())
			case tt.refused != "" && (err == nil || !strings.Contains(err.Error(), tt.refused)):
				t.Errorf("answered %.2000v, want %s", err, tt.refused)
			}
		})
	}
}
