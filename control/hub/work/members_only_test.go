package work_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// What was set aside at the hub is in the Work, before overrides are applied.
func TestMembersOnly(t *testing.T) {
	const apiService = `
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata:
  name: v1beta1.metrics.k8s.io
  uid: u1
  annotations: {pelago.io/members-only: '{"spec":{"service":{"name":"metrics-server","namespace":"kube-system"},"insecureSkipTLSVerify":true}}'}
spec: {group: metrics.k8s.io, version: v1beta1}`
	w := newWorld(t, apiService, on("m1", 0))
	p := policyv1alpha1.ClusterOverridePolicy{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	p.Spec.OverrideRules = []policyv1alpha1.RuleWithCluster{{Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{
		{Path: "/spec/service/namespace", Operator: policyv1alpha1.OverriderOpReplace},
	}}}}
	p.Spec.OverrideRules[0].Overriders.Plaintext[0].Value.Raw = []byte(`"monitoring"`)
	w.Overrides.Cluster = append(w.Overrides.Cluster, p)
	plan := w.plan()
	if len(plan.Create) != 1 {
		t.Fatalf("%d Works, %v", len(plan.Create), plan.Failed)
	}
	got := holds(t, plan.Create[0])
	if diff := cmp.Diff(map[string]any{"group": "metrics.k8s.io", "version": "v1beta1", "insecureSkipTLSVerify": true,
		"service": map[string]any{"name": "metrics-server", "namespace": "monitoring"}}, got.Object["spec"]); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if text, ok := got.GetAnnotations()[policyv1alpha1.AnnotationMembersOnly]; ok {
		t.Errorf("the annotation is sent: %s", text)
	}

	w.Template.SetAnnotations(map[string]string{policyv1alpha1.AnnotationMembersOnly: "["})
	if plan := w.plan(); len(plan.Create) != 0 || len(plan.Failed) != 1 {
		t.Errorf("%d Works, failed: %v", len(plan.Create), plan.Failed)
	}
}
