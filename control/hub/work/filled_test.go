package work_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// A port that the hub's API server chose is not propagated, and the member's stays; one that the
// user or an override set is.
func TestFilledIn(t *testing.T) {
	const service = `
apiVersion: v1
kind: Service
metadata:
  name: web
  namespace: default
  uid: u1
  annotations: {pelago.io/member-owned: /spec/type}
  managedFields:
  - manager: kubectl
    operation: Update
    apiVersion: v1
    fieldsV1:
      f:metadata: {f:annotations: {f:pelago.io/member-owned: {}}}
      f:spec:
        f:type: {}
        f:ports:
          ".": {}
          'k:{"port":80,"protocol":"TCP"}': {".": {}, f:port: {}, f:protocol: {}}
          'k:{"port":81,"protocol":"TCP"}': {".": {}, f:port: {}, f:protocol: {}, f:nodePort: {}}
spec:
  type: NodePort
  clusterIP: 10.0.0.1
  ports:
  - {port: 80, protocol: TCP, nodePort: 31000}
  - {port: 81, protocol: TCP, nodePort: 32123}`
	for name, tt := range map[string]struct {
		override string
		ports    []any
		owned    string
	}{
		"without overrides": {"", []any{map[string]any{"port": int64(80), "protocol": "TCP"}, map[string]any{"port": int64(81), "protocol": "TCP", "nodePort": int64(32123)}},
			"/spec/clusterIP,/spec/ports/0/nodePort,/spec/type"},
		"with an override of the port": {"32000", []any{map[string]any{"port": int64(80), "protocol": "TCP", "nodePort": int64(32000)}, map[string]any{"port": int64(81), "protocol": "TCP", "nodePort": int64(32123)}},
			"/spec/clusterIP,/spec/type"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, service, on("m1", 0))
			if tt.override != "" {
				p := policyv1alpha1.OverridePolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
				p.Spec.OverrideRules = []policyv1alpha1.RuleWithCluster{{Overriders: policyv1alpha1.Overriders{Plaintext: []policyv1alpha1.PlaintextOverrider{
					{Path: "/spec/ports/0/nodePort", Operator: policyv1alpha1.OverriderOpReplace},
				}}}}
				p.Spec.OverrideRules[0].Overriders.Plaintext[0].Value.Raw = []byte(tt.override)
				w.Overrides.Namespaced = append(w.Overrides.Namespaced, p)
			}
			plan := w.plan()
			if len(plan.Create) != 1 {
				t.Fatalf("%d Works", len(plan.Create))
			}
			got := holds(t, plan.Create[0])
			if diff := cmp.Diff(map[string]any{"type": "NodePort", "ports": tt.ports}, got.Object["spec"]); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := cmp.Diff(tt.owned, got.GetAnnotations()[policyv1alpha1.AnnotationMemberOwned]); diff != "" {
				t.Errorf("left to the member: -want +got\n%s", diff)
			}
			if got.GetManagedFields() != nil {
				t.Error("managed fields are sent")
			}
			if w.Template.GetManagedFields() == nil {
				t.Error("the template was changed")
			}
		})
	}
}
