package walk

import (
	"context"
	"fmt"
	"strings"
)

// The well-known example of propagation: a Deployment, a policy that divides its replicas, an
// override for one cluster.
const (
	nginx = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: nginx, labels: {app: nginx}}
spec:
  replicas: 2
  selector: {matchLabels: {app: nginx}}
  template:
    metadata: {labels: {app: nginx}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - {name: nginx, image: "localhost/whereami:dev", imagePullPolicy: IfNotPresent}
`
	nginxPolicy = `
apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: nginx-propagation}
spec:
  resourceSelectors:
  - {apiVersion: apps/v1, kind: Deployment, name: nginx}
  placement:
    clusterAffinity: {clusterNames: [g1, g2]}
    replicaScheduling:
      replicaDivisionPreference: Weighted
      replicaSchedulingType: Divided
      weightPreference:
        staticWeightList:
        - {targetCluster: {clusterNames: [g1]}, weight: 1}
        - {targetCluster: {clusterNames: [g2]}, weight: 1}
`
	nginxOverride = `
apiVersion: policy.karmada.io/v1alpha1
kind: OverridePolicy
metadata: {name: example}
spec:
  resourceSelectors:
  - apiVersion: apps/v1
    kind: Deployment
    name: nginx
    labelSelector: {matchLabels: {app: nginx}}
  overrideRules:
  - targetCluster: {clusterNames: [g1]}
    overriders:
      imageOverrider:
      - {component: Tag, operator: replace, value: next}
`
	nginxBinding, nginxWork = "nginx-deployment", "nginx-687f7fb96f"
)

// Spread applies the example and waits until one replica runs in each cluster and the hub's status
// is 2 of 2.
func (w *Walk) Spread(ctx context.Context) error {
	if err := w.Apply(ctx, "hub", nginxPolicy); err != nil {
		return err
	}
	if err := w.Apply(ctx, "hub", nginx); err != nil {
		return err
	}
	for cluster, want := range map[string]string{"hub": "2 2", "g1": "1 1", "g2": "1 1"} {
		if err := w.nginx(ctx, cluster, "{.status.replicas} {.status.readyReplicas}", want); err != nil {
			return err
		}
	}
	for _, command := range [][]string{
		{"--context", "hub", "get", "deployment", "nginx"}, {"--context", "g1", "get", "deployment", "nginx"},
		{"--context", "g2", "get", "deployment", "nginx"}, {"--context", "hub", "get", "clusters.cluster.karmada.io"},
	} {
		if _, err := w.Kubectl(ctx, command...); err != nil {
			return err
		}
	}
	out, err := w.Kubectl(ctx, "--context", "hub", "get", "resourcebinding,work", "-A")
	if err != nil {
		return err
	}
	for _, name := range []string{nginxBinding, "karmada-es-g1", "karmada-es-g2", nginxWork} {
		if !strings.Contains(out, name) {
			return fmt.Errorf("%s is not in %q", name, out)
		}
	}
	return nil
}

// Override gives one cluster another tag; the other keeps its own.
func (w *Walk) Override(ctx context.Context) error {
	if err := w.Apply(ctx, "hub", nginxOverride); err != nil {
		return err
	}
	const image, dev, next = "{.spec.template.spec.containers[0].image}", "localhost/whereami:dev", "localhost/whereami:next"
	for cluster, want := range map[string]string{"g1": next, "g2": dev, "hub": dev} {
		if err := w.nginx(ctx, cluster, image, want); err != nil {
			return err
		}
		if _, err := w.Kubectl(ctx, "--context", cluster, "get", "deployment", "nginx", "-o", "jsonpath="+image); err != nil {
			return err
		}
	}
	if err := w.nginx(ctx, "hub", "{.status.updatedReplicas} {.status.readyReplicas}", "2 2"); err != nil {
		return err
	}
	_, err := w.Pelago(ctx, "why", "deployment", "nginx", "--context", "hub")
	return err
}

// nginx waits until the Deployment of a cluster is as wanted.
func (w *Walk) nginx(ctx context.Context, cluster, path, want string) error {
	err := Eventually(ctx, Patience, func() error {
		out, err := w.run(ctx, "", w.Lab.Kubectl(), "--context", cluster, "get", "deployment", "nginx", "-o", "jsonpath="+path)
		if err == nil && out != want {
			err = fmt.Errorf("%s is %q, want %q", path, out, want)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("deployment nginx of %s: %w", cluster, err)
	}
	return nil
}
