package work_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/test/await"
)

// TestOverrides: a change of an override policy or of a cluster reaches the Works;
// one that fails stops its cluster only and reports which rule.
func TestOverrides(t *testing.T) {
	h := newHub(t)
	d := deployment("over")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1), on("m2", 1))
	h.Make(b)
	h.run(&writes{})
	h.becomes("over", map[string]string{"m1": "1 replicas of nginx:1", "m2": "1 replicas of nginx:1"})

	tag := func(cluster *policyv1alpha1.ClusterAffinity, value string) []policyv1alpha1.RuleWithCluster {
		return []policyv1alpha1.RuleWithCluster{{TargetCluster: cluster, Overriders: policyv1alpha1.Overriders{
			ImageOverrider: []policyv1alpha1.ImageOverrider{{Component: policyv1alpha1.Tag, Operator: "replace", Value: value}},
		}}}
	}
	eu := &policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"place": "eu"}}}
	op := &policyv1alpha1.OverridePolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "tags"},
		Spec: policyv1alpha1.OverrideSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{
				{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{MatchLabels: d.Labels}},
			},
			OverrideRules: tag(eu, "eu"),
		},
	}
	h.Make(op)
	// Past the look that follows the echo of a Work, which would find the new label, too.
	await.Never(t, 1500*time.Millisecond, "the policy applies to a cluster without its label", func() bool {
		return h.state("over")["m2"] != "1 replicas of nginx:1"
	})
	m2 := &clusterv1alpha1.Cluster{}
	if err := h.Get(t.Context(), types.NamespacedName{Name: "m2"}, m2); err != nil {
		t.Fatal(err)
	}
	m2.Labels = map[string]string{"place": "eu"}
	if err := h.Update(t.Context(), m2); err != nil {
		t.Fatal(err)
	}
	h.becomes("over", map[string]string{"m1": "1 replicas of nginx:1", "m2": "1 replicas of nginx:eu"})
	succeeded := func() string { return h.said(workv1alpha2.EventApplyOverridePolicySucceed) }
	await.Equal(t, "ResourceBinding over-deployment: Other overrides than before apply in m2", succeeded)
	// which changes nothing of it
	h.change(b, func(b *workv1alpha2.ResourceBinding) { b.Spec.Clusters[1].Replicas = 2 })
	h.becomes("over", map[string]string{"m1": "1 replicas of nginx:1", "m2": "2 replicas of nginx:eu"})
	await.Never(t, time.Second, "it is told again", func() bool { return strings.Count(succeeded(), ";") > 0 })

	broken := policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{Path: "/spec/no/where", Operator: "remove"}}}
	op.Spec.OverrideRules = append(tag(&policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m1"}}, "one"),
		policyv1alpha1.RuleWithCluster{TargetCluster: eu, Overriders: broken})
	if err := h.Update(t.Context(), op); err != nil {
		t.Fatal(err)
	}
	h.becomes("over", map[string]string{"m1": "1 replicas of nginx:one", "m2": "2 replicas of nginx:eu"})
	for _, kind := range []string{"ResourceBinding", "Deployment"} {
		await.True(t, "an Event on the "+kind+" names cluster, policy and rule", func() bool {
			var events corev1.EventList
			if err := h.List(t.Context(), &events, client.InNamespace("default")); err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.InvolvedObject.Kind == kind && e.Reason == workv1alpha2.EventApplyOverridePolicyFailed &&
					strings.Contains(e.Message, "Cluster m2") && strings.Contains(e.Message, "OverridePolicy default/tags: overrideRules[1]")
			})
		})
	}

	h.Remove(op)
	h.becomes("over", map[string]string{"m1": "1 replicas of nginx:1", "m2": "2 replicas of nginx:1"})
}

// said lists the Events of a reason, up to the remedy, each as often as it was made.
func (h hub) said(reason string) string {
	h.Helper()
	var all corev1.EventList
	if err := h.List(h.Context(), &all, client.InNamespace("default")); err != nil {
		h.Fatal(err)
	}
	var out []string
	for _, e := range all.Items {
		if e.Reason == reason {
			text, _, _ := strings.Cut(e.Message, ": see")
			one := e.InvolvedObject.Kind + " " + e.InvolvedObject.Name + ": " + text
			out = append(out, slices.Repeat([]string{one}, int(e.Count))...)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// TestMemberOwned: what a policy leaves to members comes with the policy's annotation.
func TestMemberOwned(t *testing.T) {
	h := newHub(t)
	pp := &policyv1alpha1.PropagationPolicy{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: "pp", Labels: map[string]string{policyv1alpha1.LabelPropagationPolicyID: "p1"},
		},
		Spec: policyv1alpha1.PropagationSpec{
			ResourceSelectors: []policyv1alpha1.ResourceSelector{{APIVersion: "apps/v1", Kind: "Deployment"}},
		},
	}
	h.Make(pp)
	d := deployment("owned")
	h.Make(d)
	b := bindingOf(d, "apps/v1", "Deployment", "b1", on("m1", 1))
	b.Labels[policyv1alpha1.LabelPropagationPolicyID] = "p1"
	b.Annotations = map[string]string{
		policyv1alpha1.AnnotationPropagationPolicyNamespace: "default", policyv1alpha1.AnnotationPropagationPolicyName: "pp",
	}
	h.Make(b)
	h.run(&writes{})
	h.becomes("owned", map[string]string{"m1": "1 replicas of nginx:1"})
	pp.Annotations = map[string]string{policyv1alpha1.AnnotationMemberOwned: "/spec/replicas"}
	if err := h.Update(t.Context(), pp); err != nil {
		t.Fatal(err)
	}
	await.Equal(t, "/spec/replicas", func() string {
		return holds(t, h.works("owned")["m1"]).GetAnnotations()[policyv1alpha1.AnnotationMemberOwned]
	})
}
