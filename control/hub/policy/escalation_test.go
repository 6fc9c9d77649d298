package policy

import (
	"encoding/json"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// A tenant's OverridePolicy cannot grant rights in members that its author does not have at the
// hub; an administrator's ClusterOverridePolicy can.
func TestOverridesDoNotEscalate(t *testing.T) {
	objects := map[string]string{
		"Role":        `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{"namespace":"shop","name":"a"},"rules":[{"verbs":["get"],"apiGroups":[""],"resources":["pods"]}]}`,
		"RoleBinding": `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{"namespace":"shop","name":"a"},"roleRef":{"kind":"Role","name":"a"},"subjects":[{"kind":"User","name":"u"}]}`,
		"ConfigMap":   `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"shop","name":"a"},"rules":["x"]}`,
	}
	for name, tt := range map[string]struct{ kind, overriders, want string }{
		"a verb":             {"Role", `{"plaintext":[{"path":"/rules/0/verbs/-","operator":"add","value":"*"}]}`, "changes rules of the Role"},
		"all rules":          {"Role", `{"plaintext":[{"path":"/rules","operator":"replace","value":[{"verbs":["*"],"apiGroups":["*"],"resources":["*"]}]}]}`, "changes rules of the Role"},
		"another role":       {"RoleBinding", `{"plaintext":[{"path":"/roleRef","operator":"replace","value":{"kind":"ClusterRole","name":"cluster-admin"}}]}`, "changes roleRef of the RoleBinding"},
		"another subject":    {"RoleBinding", `{"plaintext":[{"path":"/subjects/-","operator":"add","value":{"kind":"User","name":"v"}}]}`, "changes subjects of the RoleBinding"},
		"a label":            {"Role", `{"labelsOverrider":[{"operator":"add","value":{"a":"b"}}]}`, ""},
		"rules of no rights": {"ConfigMap", `{"plaintext":[{"path":"/rules/-","operator":"add","value":"y"}]}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			obj := new(unstructured.Unstructured)
			if err := obj.UnmarshalJSON([]byte(objects[tt.kind])); err != nil {
				t.Fatal(err)
			}
			var o policyv1alpha1.Overriders
			if err := json.Unmarshal([]byte(tt.overriders), &o); err != nil {
				t.Fatal(err)
			}
			spec := policyv1alpha1.OverrideSpec{OverrideRules: []policyv1alpha1.RuleWithCluster{{Overriders: o}}}
			own := policyv1alpha1.OverridePolicy{Spec: spec}
			own.Namespace, own.Name = "shop", "p"
			_, _, err := ApplyOverrides(obj, new(clusterv1alpha1.Cluster), OverridePolicies{Namespaced: []policyv1alpha1.OverridePolicy{own}})
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
			if _, _, err := ApplyOverrides(obj, new(clusterv1alpha1.Cluster),
				OverridePolicies{Cluster: []policyv1alpha1.ClusterOverridePolicy{{Spec: spec}}}); err != nil {
				t.Errorf("a ClusterOverridePolicy: %v", err)
			}
		})
	}
}
