package kinds

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// BenchmarkEngines compares the built-in operations of a Deployment with equivalent CEL rules.
func BenchmarkEngines(b *testing.B) {
	counts := "['replicas', 'updatedReplicas', 'readyReplicas', 'availableReplicas', 'unavailableReplicas']"
	rules, errs := compileRules("benchmark", pelagov1alpha1.Rules{
		Replicas: "object.spec.?replicas.orValue(1)", Requirements: "podRequirements(object.spec.template.spec)",
		Reflect: pelagov1alpha1.Expression("counted(observed, " + counts + ")"), Aggregate: pelagov1alpha1.Expression("sums(object, items, " + counts + ")"),
		Healthy: "observed.?status.?observedGeneration.orValue(0) == observed.metadata.generation && " +
			"observed.?status.?updatedReplicas.orValue(0) >= observed.spec.?replicas.orValue(1) && " +
			"observed.?status.?availableReplicas.orValue(0) >= observed.?status.?updatedReplicas.orValue(0)",
		Dependencies: "podReferences(object.spec.template.spec)",
	})
	if errs != nil {
		b.Fatal(errs)
	}
	env := []any{}
	for i := range 20 {
		env = append(env, map[string]any{"name": fmt.Sprint("E", i), "value": "x"})
	}
	deployment := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "namespace": "shop", "generation": int64(1)},
		"spec": map[string]any{"replicas": int64(3), "template": map[string]any{"spec": map[string]any{"containers": []any{map[string]any{
			"name": "c", "image": "i", "env": env,
			"resources": map[string]any{"requests": map[string]any{"cpu": "100m", "memory": "64Mi"}},
		}}}}},
		"status": map[string]any{"observedGeneration": int64(1), "replicas": int64(3), "updatedReplicas": int64(3), "availableReplicas": int64(3)},
	}}
	var items []workv1alpha2.AggregatedStatusItem
	for i := range 10 {
		items = append(items, workv1alpha2.AggregatedStatusItem{ClusterName: fmt.Sprint("m", i), Status: &runtime.RawExtension{
			Raw: []byte(`{"generation":1,"observedGeneration":1,"resourceTemplateGeneration":1,"replicas":3,"readyReplicas":3}`)}})
	}
	for name, k := range map[string]Kind{"native": kinds[apps("Deployment")], "cel": rules} {
		for operation, do := range map[string]func() error{
			"replicas":     func() error { _, _, err := k.Replicas(deployment); return err },
			"dependencies": func() error { _, err := k.Dependencies(deployment); return err },
			"reflect":      func() error { _, err := k.Reflect(deployment); return err },
			"healthy":      func() error { _, err := k.Healthy(deployment); return err },
			"aggregate":    func() error { _, err := k.Aggregate(deployment, items); return err },
		} {
			b.Run(operation+"/"+name, func(b *testing.B) {
				for b.Loop() {
					if err := do(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
