package v1alpha2

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func ref(apiVersion, kind, namespace, name string) ObjectReference {
	return ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
}

func TestNames(t *testing.T) {
	nginx := ref("apps/v1", "Deployment", "default", "nginx")
	for name, tt := range map[string]struct{ got, want string }{
		"a binding":                     {BindingName(nginx), "nginx-deployment"},
		"a binding of a role":           {BindingName(ref("rbac.authorization.k8s.io/v1", "ClusterRole", "", "system:View")), "system.view-clusterrole"},
		"a binding beside another kind": {AlternateBindingName(ref("batch.volcano.sh/v1alpha1", "Job", "a", "x")), "x-job-9486bcd0"},
		"a Work":                        {WorkName(nginx), "nginx-687f7fb96f"},
		"a Work of a role":              {WorkName(ref("rbac.authorization.k8s.io/v1", "ClusterRole", "", "system:View")), "system.view-c6967bccb"},
		"a Work without a namespace":    {WorkName(ref("v1", "Namespace", "", "shop")), "shop-55c4c4674c"},
		"an execution namespace":        {ExecutionNamespace("m1"), "karmada-es-m1"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.got, tt.want)
		}
	}
	if AlternateWorkName(nginx) == WorkName(nginx) || AlternateWorkName(nginx) == AlternateWorkName(ref("apps/v1", "Deployment", "other", "nginx")) {
		t.Error("the name beside is not one of its own")
	}
	if c, ok := ClusterOfNamespace("karmada-es-m1"); c != "m1" || !ok {
		t.Errorf("cluster %q %v", c, ok)
	}
}

func TestLongNamesFitAndStayApart(t *testing.T) {
	long := strings.Repeat("a", 252)
	one, two := ref("v1", "ConfigMap", "n", long+"1"), ref("v1", "ConfigMap", "n", long+"2")
	for _, name := range []func(ObjectReference) string{BindingName, AlternateBindingName, WorkName, AlternateWorkName} {
		a, b := name(one), name(two)
		if a == b {
			t.Errorf("two templates have the name %s", a)
		}
		if errs := validation.IsDNS1123Subdomain(a); len(errs) > 0 {
			t.Errorf("%s: %v", a, errs)
		}
	}
}

func TestReserved(t *testing.T) {
	for _, n := range []string{"kube-system", "kube-public", "karmada-system", "karmada-cluster", "karmada-es-m1", "pelago-system", "submariner-k8s-broker", "submariner-operator"} {
		if !ReservedNamespace(n) {
			t.Errorf("%s is not reserved", n)
		}
	}
	for _, n := range []string{"default", "shop", "kubernetes"} {
		if ReservedNamespace(n) {
			t.Errorf("%s is reserved", n)
		}
	}
}
