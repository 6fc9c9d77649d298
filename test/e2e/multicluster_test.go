package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// sharedManifests are a Deployment and its Service that a policy places in g1, whose Service g2
// consumes.
const sharedManifests = `apiVersion: v1
kind: Namespace
metadata: {name: shared}
---
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: api, namespace: shared}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: api}, {apiVersion: v1, kind: Service, name: api}]
  placement: {clusterAffinity: {clusterNames: [g1]}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shared}
spec:
  replicas: 1
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: whereami
        image: localhost/whereami:dev
        imagePullPolicy: Never
        env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shared}
spec:
  selector: {app: api}
  ports: [{port: 80}]
---
apiVersion: networking.karmada.io/v1alpha1
kind: MultiClusterService
metadata: {name: api, namespace: shared}
spec:
  types: [CrossCluster]
  providerClusters: [{name: g1}]
  consumerClusters: [{name: g2}]
`

// testMultiClusterService: a consumer uses the plain name of a service that another cluster
// provides, also while the hub writes that Service, which a policy has placed.
func testMultiClusterService(t *testing.T, s *clusterset) {
	ctx := t.Context()
	t.Cleanup(func() {
		_, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "hub", "delete", "namespace", "shared", "--ignore-not-found", "--wait=false")
		if err != nil {
			t.Error(err)
		}
	})
	client, err := s.Client(ctx, "g2")
	must(t, err)
	s.applyQuietly(t, "hub", sharedManifests)
	get := func(cluster string, args ...string) string {
		out, err := s.Quietly(ctx, s.Lab.Kubectl(), append([]string{"--context", cluster, "-n", "shared", "get"}, args...)...)
		if err != nil {
			return err.Error()
		}
		return strings.TrimSpace(out)
	}
	const name = "api.shared.svc.cluster.local"
	start := time.Now()
	_, err = s.Resolve(ctx, client, name, 1, s.ShownServices("g1"))
	must(t, err)
	within(t, func() error {
		_, err := s.Ask(ctx, client, name)
		return err
	})
	t.Logf("g2 reaches the service by its plain name %.1f s after it was made at the hub", time.Since(start).Seconds())
	if pods := get("g2", "pods", "-o", "name"); pods != "" {
		t.Errorf("g2 runs %s itself", pods)
	}
	must(t, s.ReachesPod(ctx, client, name, get("g1", "pods", "-o", "jsonpath={.items[0].metadata.name}")))

	alias := get("g2", "service", "api", "-o", "jsonpath={.metadata.uid}")
	s.kubectl(t, "hub", "-n", "shared", "label", "service", "api", "edited=yes")
	within(t, func() error {
		if got := get("g1", "service", "api", "-o", "jsonpath={.metadata.labels.edited}"); got != "yes" {
			return fmt.Errorf("g1 has label edited=%q", got)
		}
		return nil
	})
	_, err = s.Ask(ctx, client, name)
	must(t, err)
	if now := get("g2", "service", "api", "-o", "jsonpath={.metadata.uid}"); now != alias {
		t.Errorf("the alias in g2 was %s and is %s", alias, now)
	}

	s.kubectl(t, "hub", "-n", "shared", "delete", "multiclusterservice", "api")
	within(t, func() error {
		if left := get("g2", "service", "api", "--ignore-not-found", "-o", "name") + get("g1", "serviceexport", "api", "--ignore-not-found", "-o", "name"); left != "" {
			return fmt.Errorf("left behind: %s", left)
		}
		return nil
	})
	if kept := get("g1", "service", "api", "-o", "name"); kept != "service/api" {
		t.Errorf("the provider's Service: %s", kept)
	}
}
