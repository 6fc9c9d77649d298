package kube

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// discoveryOf is a client of a server that serves paths, and for all others http.NotFound, as an
// API server does for what it does not serve.
func discoveryOf(t *testing.T, paths map[string]string) *discovery.DiscoveryClient {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, ok := paths[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if strings.HasPrefix(body, `{"kind":"Status"`) {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprint(w, body) // the client reports a broken connection
	}))
	t.Cleanup(s.Close)
	return discovery.NewDiscoveryClientForConfigOrDie(&rest.Config{Host: s.URL})
}

func TestNotServed(t *testing.T) {
	const absent = "/apis/example.com/v1/namespaces/shop/gadgets/gone"
	d := discoveryOf(t, map[string]string{absent: `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}`})
	get := func(path string) error { return d.RESTClient().Get().AbsPath(path).Do(t.Context()).Error() }
	for path, want := range map[string]bool{absent: false, "/apis/example.com/v1alpha1/namespaces/shop/gadgets/there": true} {
		err := get(path)
		if got := NotServed(fmt.Errorf("read: %w", err)); got != want || !apierrors.IsNotFound(err) {
			t.Errorf("%s: not served: %v, want %v: %v", path, got, want, err)
		}
	}
}

func TestServedVersion(t *testing.T) {
	const core = `{"kind":"APIVersions","versions":["v1"]}`
	const groups = `{"kind":"APIGroupList","apiVersion":"v1","groups":[{"name":"example.com","versions":[
		{"groupVersion":"example.com/v1","version":"v1"},{"groupVersion":"example.com/v1alpha1","version":"v1alpha1"}]}]}`
	list := func(gv, kind string) string {
		return `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"` + gv + `","resources":[{"name":"x","kind":"` + kind + `","verbs":["get"]}]}`
	}
	all := map[string]string{"/api": core, "/apis": groups, "/api/v1": list("v1", "Pod"),
		"/apis/example.com/v1": list("example.com/v1", "Gadget"), "/apis/example.com/v1alpha1": list("example.com/v1alpha1", "Widget")}
	partly := map[string]string{"/api": core, "/apis": groups, "/api/v1": list("v1", "Pod"), "/apis/example.com/v1": all["/apis/example.com/v1"]}
	for name, test := range map[string]struct {
		paths       map[string]string
		group, kind string
		want        string
		fails       bool
	}{
		"the newest version":                     {all, "example.com", "Gadget", "v1", false},
		"another version":                        {all, "example.com", "Widget", "v1alpha1", false},
		"no version":                             {all, "example.com", "Doodad", "", false},
		"no group":                               {all, "example.net", "Gadget", "", false},
		"a version of the group does not answer": {partly, "example.com", "Widget", "", true},
		"another group does not answer":          {partly, "", "Pod", "v1", false},
		"not an API server":                      {nil, "example.com", "Gadget", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ServedVersion(t.Context(), discoveryOf(t, test.paths), schema.GroupKind{Group: test.group, Kind: test.kind})
			if got != test.want || (err != nil) != test.fails {
				t.Errorf("got %q, %v", got, err)
			}
		})
	}
}
