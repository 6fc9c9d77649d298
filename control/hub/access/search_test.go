package access

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	searchv1alpha1 "github.com/pelago-net/pelago/api/search/v1alpha1"
)

func TestParseTarget(t *testing.T) {
	for path, want := range map[string]string{
		"/api/v1/pods":                                "/api/v1/pods ",
		"/api/v1/namespaces/shop":                     "/api/v1/namespaces/shop ",
		"/api/v1/namespaces/shop/finalize":            "/api/v1/namespaces/shop finalize",
		"/api/v1/namespaces/shop/pods/":               "/api/v1/namespaces/shop/pods ",
		"/api/v1/namespaces/shop/pods/a/log":          "/api/v1/namespaces/shop/pods/a log",
		"/api/v1/nodes/n/proxy/metrics/x":             "/api/v1/nodes/n proxy/metrics/x",
		"/apis/apps/v1/deployments":                   "/apis/apps/v1/deployments ",
		"/apis/apps/v1/namespaces/shop/deployments/a": "/apis/apps/v1/namespaces/shop/deployments/a ",
		"/apis/apps/v1":                               "",
		"/api/v1":                                     "",
		"/apis":                                       "",
		"/":                                           "",
		"/version":                                    "",
		"/openapi/v3/apis/apps/v1":                    "",
		"/apis/rbac.authorization.k8s.io/v1/clusterroles": "/apis/rbac.authorization.k8s.io/v1/clusterroles ",
	} {
		got := ""
		if target, ok := parseTarget(path); ok {
			got = target.path() + " " + target.sub
		}
		if got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// FuzzParseTarget: the path of a target, without dot segments, is one of the same target.
func FuzzParseTarget(f *testing.F) {
	f.Add("/apis/apps/v1/namespaces/shop/deployments/a/scale")
	f.Add("/api/v1/namespaces/shop/status")
	f.Fuzz(func(t *testing.T, path string) {
		first, ok := parseTarget(path)
		if !ok || strings.Contains(path, "//") {
			return
		}
		again, ok := parseTarget(first.path())
		if first.sub = ""; !ok || again != first {
			t.Errorf("%q: %+v, and of its path %q: %+v", path, first, first.path(), again)
		}
	})
}

func TestSources(t *testing.T) {
	cluster := func(name string, member bool, kinds ...string) clusterv1alpha1.Cluster {
		c := clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}},
			Spec: clusterv1alpha1.ClusterSpec{SyncMode: clusterv1alpha1.Pull}}
		if member {
			c.Finalizers = []string{clusterv1alpha1.FinalizerCluster}
		}
		e := clusterv1alpha1.APIEnablement{GroupVersion: "v1"}
		for _, kind := range kinds {
			e.Resources = append(e.Resources, clusterv1alpha1.APIResource{Name: strings.ToLower(kind) + "s", Kind: kind})
		}
		c.Status.APIEnablements = []clusterv1alpha1.APIEnablement{{GroupVersion: "apps/v1"}, e}
		return c
	}
	clusters := []clusterv1alpha1.Cluster{cluster("m2", true, "Pod", "Secret"), cluster("m1", true, "Pod"), cluster("m3", true, "Node"), cluster("m4", false, "Pod")}
	waits := cluster("m5", true, "Pod", "Invented")
	waits.Spec.Taints = []clusterv1alpha1.Taint{{Key: clusterv1alpha1.TaintUnapproved, Effect: corev1.TaintEffectNoSchedule}}
	clusters = append(clusters, waits)
	registry := func(target policyv1alpha1.ClusterAffinity, kind string, namespaces ...string) (r searchv1alpha1.ResourceRegistry) {
		r.Spec.TargetCluster = target
		for _, n := range namespaces {
			r.Spec.ResourceSelectors = append(r.Spec.ResourceSelectors, searchv1alpha1.ResourceSelector{APIVersion: "v1", Kind: kind, Namespace: n})
		}
		return r
	}
	all, one := policyv1alpha1.ClusterAffinity{}, policyv1alpha1.ClusterAffinity{ClusterNames: []string{"m1"}}
	invalid := policyv1alpha1.ClusterAffinity{LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "x"}}}}
	openSearch := registry(all, "Pod", "")
	openSearch.Spec.BackendStore = &searchv1alpha1.BackendStoreConfig{OpenSearch: &searchv1alpha1.OpenSearchConfig{}}
	for name, c := range map[string]struct {
		path       string
		registries []searchv1alpha1.ResourceRegistry
		want       string // keys and paths
		kind       string
		selected   bool
	}{
		"nothing":             {"/api/v1/pods", nil, "", "Pod", false},
		"all members":         {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(all, "Pod", "")}, "m1=/api/v1/pods m2=/api/v1/pods", "Pod", true},
		"one":                 {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Pod", "")}, "m1=/api/v1/pods", "Pod", true},
		"another kind":        {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Node", "")}, "", "Pod", false},
		"not served there":    {"/api/v1/secrets", []searchv1alpha1.ResourceRegistry{registry(one, "Secret", "")}, "", "Secret", false},
		"not accepted yet":    {"/api/v1/inventeds", []searchv1alpha1.ResourceRegistry{registry(all, "Invented", "")}, "", "", false},
		"not served at all":   {"/apis/apps/v1/deployments", []searchv1alpha1.ResourceRegistry{registry(all, "Deployment", "")}, "", "", false},
		"two registries":      {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Pod", "b", "a"), registry(all, "Pod", "a")}, "m1/a=/api/v1/namespaces/a/pods m1/b=/api/v1/namespaces/b/pods m2/a=/api/v1/namespaces/a/pods", "Pod", true},
		"all and a namespace": {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Pod", "a", "")}, "m1=/api/v1/pods", "Pod", true},
		"in a namespace":      {"/api/v1/namespaces/a/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Pod", "a", "b")}, "m1=/api/v1/namespaces/a/pods", "Pod", true},
		"in another one":      {"/api/v1/namespaces/c/pods", []searchv1alpha1.ResourceRegistry{registry(one, "Pod", "a", "b")}, "", "Pod", true},
		"not accepted":        {"/api/v1/pods", []searchv1alpha1.ResourceRegistry{registry(invalid, "Pod", ""), openSearch}, "", "Pod", false},
	} {
		t.Run(name, func(t *testing.T) {
			target, ok := parseTarget(c.path)
			if !ok {
				t.Fatal("no target")
			}
			of, kind, selected := sources(target, c.registries, clusters)
			var got []string
			for _, s := range of {
				got = append(got, s.Key+"="+s.path())
			}
			if strings.Join(got, " ") != c.want || kind != c.kind || selected != c.selected {
				t.Errorf("%v, kind %s, selected %v", got, kind, selected)
			}
		})
	}
}

func TestJSONOnly(t *testing.T) {
	for accept, want := range map[string]string{
		"":    "application/json",
		"*/*": "application/json",
		"application/vnd.kubernetes.protobuf,application/json":                                                    "application/json",
		"application/json;as=Table;v=v1;g=meta.k8s.io,application/json":                                           "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
		"application/vnd.kubernetes.protobuf;as=PartialObjectMetadata, application/json;as=PartialObjectMetadata": "application/json;as=PartialObjectMetadata",
		"application/yaml": "",
	} {
		q := &http.Request{Header: http.Header{}}
		if accept != "" {
			q.Header.Set("Accept", accept)
		}
		got, err := jsonOnly(q)
		if strings.TrimSpace(got) != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v", accept, got, err)
		}
	}
}
