package work_test

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/hub/work"
	"github.com/pelago-net/pelago/test/await"
)

// A policy of everything whose path Namespaces lack does not keep them from the clusters: the other
// rules apply, and the policy's condition names rule, object and path until the policy is
// corrected.
func TestNamespaceLacksPathOfOverride(t *testing.T) {
	h := namespaceNewHub(t)
	h.join("skips")
	m := h.manager(false)
	skips := &policy.Skips{}
	m.Setup = []func(ctrl.Manager) error{work.AddIndexes,
		func(mgr ctrl.Manager) error { return policy.Setup(mgr, skips) },
		func(mgr ctrl.Manager) error {
			return work.SetupNamespaces(mgr, work.NamespaceOptions{HubID: "hub", Skips: skips})
		}}
	m.Run(h, h.Config)
	p := &policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "everything"},
		Spec: policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{
			{Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{{
				Path: "/spec/replicas", Operator: policyv1alpha1.OverriderOpReplace, Value: apiextensionsv1.JSON{Raw: []byte("1")}}}}},
			{Overriders: policyv1alpha1.Overriders{LabelsOverrider: []policyv1alpha1.LabelAnnotationOverrider{{
				Operator: policyv1alpha1.OverriderOpAdd, Value: map[string]string{"place": "north"}}}}},
		}}}
	h.Make(p)
	t.Cleanup(func() {
		if err := h.Delete(context.Background(), p); err != nil { // the test's context has ended
			t.Error(err)
		}
	})
	h.Make(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lacks-path"}})
	await.True(t, "the Namespace goes to the cluster with the other rule applied", func() bool {
		return strings.Contains(strings.Join(h.holds("lacks-path"), " "), "skips:north")
	})
	condition := func() string {
		if err := h.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		if c := meta.FindStatusCondition(p.Status.Conditions, policyv1alpha1.ConditionRulesSkipped); c != nil {
			return c.Message
		}
		return ""
	}
	await.True(t, "the condition names object, rule and path", func() bool {
		text := condition()
		return strings.Contains(text, "Namespace lacks-path: overrideRules[0].overriders.plaintext: ") && strings.Contains(text, "/spec/replicas")
	})
	await.True(t, "the policy is corrected", func() bool {
		if err := h.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			t.Fatal(err)
		}
		p.Spec.OverrideRules = p.Spec.OverrideRules[1:]
		return h.Update(t.Context(), p) == nil
	})
	await.Equal(t, "", condition)
}
