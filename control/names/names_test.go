package names

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

func ref(apiVersion, kind, namespace, name string) workv1alpha2.ObjectReference {
	return workv1alpha2.ObjectReference{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: name}
}

func TestNames(t *testing.T) {
	nginx := ref("apps/v1", "Deployment", "default", "nginx")
	for name, tt := range map[string]struct{ got, want string }{
		"a binding":                     {Binding(nginx), "nginx-deployment"},
		"a binding of a role":           {Binding(ref("rbac.authorization.k8s.io/v1", "ClusterRole", "", "system:View")), "system.view-clusterrole"},
		"a binding beside another kind": {BindingBeside(ref("batch.volcano.sh/v1alpha1", "Job", "a", "x")), "x-job-9486bcd0"},
		"a Work":                        {Work(nginx), "nginx-687f7fb96f"},
		"a Work without a namespace":    {Work(ref("v1", "Namespace", "", "shop")), "shop-55c4c4674c"},
		"an execution namespace":        {Execution("m1"), "karmada-es-m1"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.got, tt.want)
		}
	}
	if WorkBeside(nginx) == Work(nginx) || WorkBeside(nginx) == WorkBeside(ref("apps/v1", "Deployment", "other", "nginx")) {
		t.Error("the name beside is not one of its own")
	}
	if c, ok := ClusterOf("karmada-es-m1"); c != "m1" || !ok {
		t.Errorf("cluster %q %v", c, ok)
	}
}

func TestLongNamesFitAndStayApart(t *testing.T) {
	long := strings.Repeat("a", 252)
	one, two := ref("v1", "ConfigMap", "n", long+"1"), ref("v1", "ConfigMap", "n", long+"2")
	for _, name := range []func(workv1alpha2.ObjectReference) string{Binding, BindingBeside, Work, WorkBeside} {
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
		if !Reserved(n) {
			t.Errorf("%s is not reserved", n)
		}
	}
	for _, n := range []string{"default", "shop", "kubernetes"} {
		if Reserved(n) {
			t.Errorf("%s is reserved", n)
		}
	}
}
