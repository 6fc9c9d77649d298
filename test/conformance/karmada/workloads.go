package main

import (
	"fmt"
	"strings"
)

// workloads are the policies and templates that migrate has Karmada propagate.
func workloads() string {
	var out strings.Builder
	out.WriteString(`
{apiVersion: v1, kind: Namespace, metadata: {name: shop}}
---
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: divided, namespace: shop}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {how: divided}}}]
  failover: {application: {decisionConditions: {tolerationSeconds: 3600}, purgeMode: Gracefully}}
  propagateDeps: true
  placement: {replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted, weightPreference: {dynamicWeight: AvailableReplicas}}}
---
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: duplicated, namespace: shop}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, labelSelector: {matchLabels: {how: duplicated}}}, {apiVersion: v1, kind: ConfigMap, labelSelector: {matchLabels: {how: duplicated}}}]
  propagateDeps: true
---
apiVersion: policy.karmada.io/v1alpha1
kind: OverridePolicy
metadata: {name: image, namespace: shop}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: duplicated-0}]
  overrideRules: [{targetCluster: {clusterNames: [member2]}, overriders: {imageOverrider: [{component: Tag, operator: replace, value: special}]}}]
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: mounted, namespace: shop}, data: {a: b}}
`)
	deployment := func(name, how string, replicas int, more string) {
		fmt.Fprintf(&out, `---
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: shop, labels: {how: %[2]s}}
spec:
  replicas: %[3]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec: {containers: [{name: web, image: "nginx:v1"}]%[4]s}
`, name, how, replicas, more)
	}
	for i := range dividedCount {
		deployment(fmt.Sprintf("divided-%d", i), "divided", 3, "")
	}
	for i := range duplicatedCount {
		deployment(fmt.Sprintf("duplicated-%d", i), "duplicated", 1, "")
	}
	deployment("mounting", "duplicated", 1, ", volumes: [{name: config, configMap: {name: mounted}}]")
	for i := range configCount {
		fmt.Fprintf(&out, "---\n{apiVersion: v1, kind: ConfigMap, metadata: {name: config-%d, namespace: shop, labels: {how: duplicated}}, data: {a: b}}\n", i)
	}
	return out.String()
}
