package policy_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	autoscalingv1alpha1 "github.com/pelago-net/pelago/api/autoscaling/v1alpha1"
	configv1alpha1 "github.com/pelago-net/pelago/api/config/v1alpha1"
	networkingv1alpha1 "github.com/pelago-net/pelago/api/networking/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
)

// A kind on which nothing acts has Accepted=False with the alternative; its spec is unchanged.
func TestUnsupportedKindsNameTheAlternative(t *testing.T) {
	c := apiserver.Connect(t, server.Config(t), policyv1alpha1.AddToScheme, autoscalingv1alpha1.AddToScheme,
		configv1alpha1.AddToScheme, networkingv1alpha1.AddToScheme)
	apiserver.Manager{Scheme: c.Scheme(), Setup: []func(ctrl.Manager) error{policy.SetupUnsupported}}.Run(t, c.Config)
	for folder, want := range map[string]string{
		"multiclusteringress": "Ingress",
	} {
		t.Run(folder, func(t *testing.T) {
			files, err := filepath.Glob("../../../api/examples/" + folder + "/*.yaml")
			if err != nil || len(files) == 0 {
				t.Fatalf("no example: %v", err)
			}
			text, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			o := new(unstructured.Unstructured)
			if err := yaml.Unmarshal(text, o); err != nil {
				t.Fatal(err)
			}
			if err := c.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Remove(o) })
			await.True(t, folder+" has the condition", func() bool {
				if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
					t.Fatal(err)
				}
				conditions, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
				if len(conditions) != 1 {
					return false
				}
				is, _ := conditions[0].(map[string]any)
				message, _ := is["message"].(string)
				return is["type"] == "Accepted" && is["status"] == "False" && is["reason"] == "NotSupportedYet" &&
					is["observedGeneration"] == int64(1) && strings.Contains(message, want)
			})
			if o.GetGeneration() != 1 {
				t.Errorf("the spec was written: generation %d", o.GetGeneration())
			}
		})
	}
}
