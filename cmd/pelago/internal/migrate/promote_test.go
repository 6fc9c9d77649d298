package migrate

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// However promote ends, no policy is left that sends a template other than the promoted one, and
// another run completes it.
func TestPromoteIsInterrupted(t *testing.T) {
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if err := policyv1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	template := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"namespace": "shop", "name": "web"}, "data": map[string]any{"a": "1"}}}
	policy := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"namespace": "shop", "name": "web-configmap"},
		"spec": map[string]any{"conflictResolution": "Overwrite", "placement": map[string]any{"clusterAffinity": map[string]any{"clusterNames": []any{"m1"}}},
			"resourceSelectors": []any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "namespace": "shop", "name": "web"}}}}}
	policy.SetGroupVersionKind(policyv1alpha1.GroupVersion.WithKind("PropagationPolicy"))
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}, Data: map[string]string{"a": "2"}}
	for name, tt := range map[string]struct {
		there    []client.Object
		refused  string // the kind whose creation fails
		says     string
		policies int
		after    string // what another run prints
	}{
		"nothing there":           {says: "created\nConfigMap shop/web created\n", policies: 1, after: "unchanged\nConfigMap shop/web unchanged\n"},
		"after the policy":        {there: []client.Object{policy}, says: "unchanged\nConfigMap shop/web created\n", policies: 1},
		"after the template":      {there: []client.Object{template}, says: "created\nConfigMap shop/web unchanged\n", policies: 1},
		"the policy is refused":   {refused: "PropagationPolicy", says: "create PropagationPolicy", after: "created\nConfigMap shop/web created\n"},
		"the template is refused": {refused: "ConfigMap", says: "create ConfigMap", after: "created\nConfigMap shop/web created\n"},
		"another template":        {there: []client.Object{other}, says: "ConfigMap shop/web is at the hub already and differs"},
	} {
		t.Run(name, func(t *testing.T) {
			var there []client.Object
			for _, o := range tt.there {
				there = append(there, o.DeepCopyObject().(client.Object))
			}
			refused := tt.refused
			hub := fake.NewClientBuilder().WithScheme(scheme).WithObjects(there...).WithInterceptorFuncs(interceptor.Funcs{
				Create: func(ctx context.Context, hub client.WithWatch, o client.Object, opts ...client.CreateOption) error {
					if o.GetObjectKind().GroupVersionKind().Kind == refused {
						return errors.New("refused")
					}
					return hub.Create(ctx, o, opts...)
				}}).Build()
			run := func() string {
				var out bytes.Buffer
				if err := Promote(t.Context(), hub, "test", Promotion{Policy: policy.DeepCopy(), Template: template.DeepCopy()}, &out); err != nil {
					return err.Error()
				}
				return out.String()
			}
			if got := run(); !strings.Contains(got, tt.says) {
				t.Errorf("%q, want %q", got, tt.says)
			}
			policies := &policyv1alpha1.PropagationPolicyList{}
			if err := hub.List(t.Context(), policies); err != nil || len(policies.Items) != tt.policies {
				t.Errorf("%d policies, %v; want %d", len(policies.Items), err, tt.policies)
			}
			refused = ""
			if got := run(); !strings.Contains(got, tt.after) {
				t.Errorf("once more: %q, want %q", got, tt.after)
			}
		})
	}
}
