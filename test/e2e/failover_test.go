package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

const movedManifests = `apiVersion: policy.karmada.io/v1alpha1
kind: PropagationPolicy
metadata: {name: moved, namespace: default}
spec:
  resourceSelectors: [{apiVersion: apps/v1, kind: Deployment, name: moved}]
  placement:
    clusterAffinity: {clusterNames: [g1, g2]}
    replicaScheduling: {replicaSchedulingType: Divided, replicaDivisionPreference: Weighted}
  failover: {cluster: {purgeMode: Gracefully}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: moved, namespace: default}
spec:
  replicas: 4
  selector: {matchLabels: {app: moved}}
  template:
    metadata: {labels: {app: moved}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: whereami, image: "localhost/whereami:dev", imagePullPolicy: Never}]
`

// testFailover: a cluster that only the hub does not reach keeps its workloads, and one that is cut
// off from all loses them to the other one.
func testFailover(t *testing.T, s *clusterset) {
	get := func(cluster string, args ...string) string {
		out, err := s.Quietly(t.Context(), s.Lab.Kubectl(), append([]string{"--context", cluster, "get"}, args...)...)
		if err != nil {
			return err.Error()
		}
		return out
	}
	condition := func(kind string) string {
		return get("hub", "clusters.cluster.karmada.io", "g2", "-o", `jsonpath={.status.conditions[?(@.type=="`+kind+`")].status}`)
	}
	is := func(what, want string, got func() string) time.Duration {
		t.Helper()
		return within(t, func() error {
			if have := got(); have != want {
				return fmt.Errorf("%s: %q, want %q", what, have, want)
			}
			return nil
		})
	}
	placed := func() string {
		return get("hub", "resourcebindings", "moved-deployment", "-o", `jsonpath={range .spec.clusters[*]}{.name}={.replicas} {end}`)
	}
	ready := func(cluster string) func() string {
		return func() string {
			return get(cluster, "deployments", "moved", "--ignore-not-found", "-o", "jsonpath={.status.readyReplicas}")
		}
	}
	t.Cleanup(func() {
		_, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "hub", "delete", "--ignore-not-found",
			"deployment/moved", "propagationpolicy.policy.karmada.io/moved")
		if err := errors.Join(s.Lab.HealPaths(), s.Lab.HealLink("g2"), err); err != nil {
			t.Error(err)
		}
	})
	is("g2 is Ready", "True", func() string { return condition("Ready") })
	s.applyQuietly(t, "hub", movedManifests)
	is("it is placed", "g1=2 g2=2 ", placed)
	is("ready in g1", "2", ready("g1"))
	is("ready in g2", "2", ready("g2"))
	is("g1 reaches g2", "True", func() string { return condition("DataPlaneReachable") })

	must(t, s.Lab.CutPath("g2", "hub"))
	within(t, func() error { // False for a push member, Unknown for a pull member
		if got := condition("Ready"); got == "True" {
			return fmt.Errorf("g2 is Ready, although the hub does not reach it")
		}
		return nil
	})
	held := func() error {
		message := get("hub", "resourcebindings", "moved-deployment", "-o", `jsonpath={.status.conditions[?(@.type=="Failover")].message}`)
		if !strings.Contains(message, "since other clusters reach its data plane") {
			return fmt.Errorf("condition Failover: %q", message)
		}
		return nil
	}
	within(t, held)
	// nothing may be evicted meanwhile
	for begin := time.Now(); time.Since(begin) < 15*time.Second; time.Sleep(time.Second) {
		if got := placed(); got != "g1=2 g2=2 " {
			t.Fatalf("the hub is cut off from g2, whose data plane is reached: the template runs in %s", got)
		}
		must(t, held())
	}
	must(t, s.Lab.HealPaths())
	is("Ready after healing", "True", func() string { return condition("Ready") })

	must(t, s.Lab.CutLink("g2", false))
	begin := time.Now()
	is("it is placed after g2 was cut off from all", "g1=4 ", placed)
	t.Logf("moved %.1f s after the cluster was cut off", time.Since(begin).Seconds())
	is("ready in g1", "4", ready("g1"))
	t.Logf("ready elsewhere %.1f s after the cluster was cut off", time.Since(begin).Seconds())
	must(t, s.Lab.HealLink("g2"))
	is("copies in g2", "", ready("g2"))
	is("it stays", "g1=4 ", placed)
	is("ready in g1", "4", ready("g1"))
}
