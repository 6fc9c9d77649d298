package policy_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/await"
)

// What a policy names and the hub does not have is in its condition until it exists. The policy is
// accepted: the rest of it is in effect.
func TestResolvedRefs(t *testing.T) {
	h := newHub(t)
	selector := func(apiVersion, kind, namespace string) policyv1alpha1.ResourceSelector {
		return policyv1alpha1.ResourceSelector{APIVersion: apiVersion, Kind: kind, Namespace: namespace}
	}
	named := func(names ...string) *policyv1alpha1.ClusterAffinity {
		return &policyv1alpha1.ClusterAffinity{ClusterNames: names}
	}
	h.Make(&clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "member1"}, Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}})
	spec := policyv1alpha1.PropagationSpec{
		ResourceSelectors: []policyv1alpha1.ResourceSelector{
			selector("v1", "ConfigMap", ""), selector("v1", "Configmap", ""), selector("v1", "Deployment", ""),
			selector("apps/v1beta1", "StatefulSet", ""), selector("example.org/v1", "Widget", ""),
			selector("discovery.k8s.io/v1", "EndpointSlice", ""), selector("v1", "Secret", "kube-system"),
		},
		Placement: policyv1alpha1.Placement{ClusterAffinity: named("member1", "memebr1")},
	}
	want := []string{
		"spec.resourceSelectors[1]: the hub serves no kind Configmap in v1; it serves ConfigMap in v1",
		"spec.resourceSelectors[2]: the hub serves no kind Deployment in v1; it serves Deployment in apps/v1",
		"spec.resourceSelectors[3]: the hub serves no kind StatefulSet in apps/v1beta1; it serves StatefulSet in apps/v1",
		"spec.resourceSelectors[4]: the hub serves no kind Widget in example.org/v1: create its CustomResourceDefinition at the hub, or correct the name",
		"spec.resourceSelectors[5]: objects of kind EndpointSlice in discovery.k8s.io/v1 are never propagated",
		"spec.resourceSelectors[6].namespace: nothing in the system's namespace kube-system is propagated: put the objects into another one",
		`spec.placement.clusterAffinity.clusterNames[1]: no cluster "memebr1" has joined`,
	}
	p := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "typos"}, Spec: spec}
	inSystem := &policyv1alpha1.PropagationPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "dns"},
		Spec: policyv1alpha1.PropagationSpec{ResourceSelectors: []policyv1alpha1.ResourceSelector{selector("apps/v1", "Deployment", "")}}}
	override := &policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "typos"}, Spec: policyv1alpha1.OverrideSpec{
		ResourceSelectors: []policyv1alpha1.ResourceSelector{selector("autoscaling/v1", "HorizontalPodAutoscaler", "")},
		OverrideRules: []policyv1alpha1.RuleWithCluster{{TargetCluster: &policyv1alpha1.ClusterAffinity{ExcludeClusters: []string{"gone"}},
			Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{Path: "/metadata/labels/a", Operator: "remove"}}}}},
	}}
	fine := &policyv1alpha1.ClusterPropagationPolicy{ObjectMeta: metav1.ObjectMeta{Name: "fine"}, Spec: policyv1alpha1.PropagationSpec{
		ResourceSelectors: spec.ResourceSelectors[:1], Placement: policyv1alpha1.Placement{ClusterAffinity: named("member1")}}}
	for _, o := range []client.Object{p, inSystem, override, fine} {
		h.Make(o)
	}
	unresolved := func(o client.Object, status *policyv1alpha1.PolicyStatus) func() string {
		return func() string {
			h.read(o)
			if !meta.IsStatusConditionTrue(status.Conditions, policyv1alpha1.ConditionAccepted) {
				return "not accepted"
			}
			if c := meta.FindStatusCondition(status.Conditions, policyv1alpha1.ConditionResolvedRefs); c != nil {
				return c.Message
			}
			return ""
		}
	}
	await.Equal(t, strings.Join(want, "; "), unresolved(p, &p.Status))
	await.Equal(t, "metadata.namespace: nothing in the system's namespace kube-system is propagated: put the objects into another one", unresolved(inSystem, &inSystem.Status))
	await.Equal(t, `spec.overrideRules[0].targetCluster.exclude[0]: no cluster "gone" has joined`, unresolved(override, &override.Status))
	await.Equal(t, "", unresolved(fine, &fine.Status))

	p.Spec.ResourceSelectors, p.Spec.Placement = spec.ResourceSelectors[:1], policyv1alpha1.Placement{ClusterAffinity: named("member1")}
	if err := h.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "", unresolved(p, &p.Status))
}
