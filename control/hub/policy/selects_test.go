package policy

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

func TestBy(t *testing.T) {
	obj := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "Deployment",
		"metadata": map[string]any{"namespace": "shop", "name": "web", "labels": map[string]any{"app": "web"}},
	}}
	type s = policyv1alpha1.ResourceSelector
	app := func(v string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": v}}
	}
	for name, c := range map[string]struct {
		selectors []s
		namespace string
		want      Precision
	}{
		"nothing":                      {nil, "shop", NoMatch},
		"the kind":                     {[]s{{APIVersion: "apps/v1", Kind: "Deployment"}}, "shop", Kind},
		"another kind":                 {[]s{{APIVersion: "apps/v1", Kind: "StatefulSet"}}, "shop", NoMatch},
		"another group":                {[]s{{APIVersion: "v1", Kind: "Deployment"}}, "shop", NoMatch},
		"by labels":                    {[]s{{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: app("web")}}, "shop", Labels},
		"by other labels":              {[]s{{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: app("db")}}, "shop", NoMatch},
		"by name, labels do not count": {[]s{{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", LabelSelector: app("db")}}, "shop", Name},
		"by another name":              {[]s{{APIVersion: "apps/v1", Kind: "Deployment", Name: "db"}}, "shop", NoMatch},
		"the best of several":          {[]s{{APIVersion: "apps/v1", Kind: "Deployment"}, {APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}}, "shop", Name},
		"a policy elsewhere":           {[]s{{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop"}}, "other", NoMatch},
		"another version":              {[]s{{APIVersion: "apps/v1beta1", Kind: "Deployment"}}, "shop", Kind},
		"no version":                   {[]s{{APIVersion: "a/b/c", Kind: "Deployment"}}, "shop", NoMatch},
		"everywhere":                   {[]s{{APIVersion: "apps/v1", Kind: "Deployment"}}, "", Kind},
		"in its namespace":             {[]s{{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop"}}, "", Kind},
		"in another namespace":         {[]s{{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "other"}}, "", NoMatch},
	} {
		got, err := Match(c.selectors, c.namespace, obj)
		if err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", name, got, err, c.want)
		}
	}
	bad := []s{{APIVersion: "apps/v1", Kind: "Deployment", LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}}}
	if _, err := Match(bad, "", obj); err == nil || err.Error() != `resourceSelectors[0]: labelSelector: "Like" is not a valid label selector operator` {
		t.Errorf("error %v", err)
	}
}
