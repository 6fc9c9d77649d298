package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// serving is an API server's discovery of the MCS API: the resources of each version.
func serving(t *testing.T, versions map[string][]string) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		resources, ok := versions[strings.TrimPrefix(r.URL.Path, "/apis/multicluster.x-k8s.io/")]
		if !ok {
			http.NotFound(w, r)
			return
		}
		list := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}}
		for _, name := range resources {
			list.APIResources = append(list.APIResources, metav1.APIResource{Name: name})
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(list); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

func TestMCSVersion(t *testing.T) {
	both := []string{"serviceexports", "serviceexports/status", "serviceimports"}
	tests := map[string]struct {
		versions map[string][]string
		want     string
	}{
		"ours":                 {map[string][]string{"v1beta1": both, "v1alpha1": both}, "v1beta1"},
		"an older one":         {map[string][]string{"v1alpha1": both}, "v1alpha1"},
		"exports are newer":    {map[string][]string{"v1beta1": {"serviceexports"}, "v1alpha1": both}, "v1alpha1"},
		"none":                 {nil, ""},
		"one without the rest": {map[string][]string{"v1beta1": {"serviceexports"}}, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := mcsVersion(serving(t, tt.versions))
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("got %q, %v; want %q", got, err, tt.want)
			}
			if err != nil && !strings.Contains(err.Error(), "pelago join") {
				t.Errorf("error %q names no remedy", err)
			}
		})
	}
}
