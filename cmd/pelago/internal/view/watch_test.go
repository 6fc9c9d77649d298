package view

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// tableOf is a table of one ConfigMap at a resource version, with n in its second column.
func tableOf(version string, n int, columns bool) metav1.Table {
	raw, err := json.Marshal(&corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", ResourceVersion: version}})
	if err != nil {
		panic(err)
	}
	t := metav1.Table{ListMeta: metav1.ListMeta{ResourceVersion: version},
		Rows: []metav1.TableRow{{Cells: []any{"web", n}, Object: runtime.RawExtension{Raw: raw}}}}
	if columns {
		t.ColumnDefinitions = []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "Data"}}
	}
	return t
}

// A watch continues after the server has ended it, from the last object; one that has missed changes
// is an error.
func TestFollow(t *testing.T) {
	var mu sync.Mutex
	var since []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		q := r.URL.Query()
		event := func(kind string, object any) {
			if err := json.NewEncoder(w).Encode(map[string]any{"type": kind, "object": object}); err != nil {
				t.Error(err)
			}
		}
		if q.Get("watch") == "" {
			if err := json.NewEncoder(w).Encode(tableOf("1", 1, true)); err != nil {
				t.Error(err)
			}
			return
		}
		since = append(since, q.Get("resourceVersion")+" "+q.Get("fieldSelector"))
		switch len(since) {
		case 1:
			event("MODIFIED", tableOf("5", 22222, true))
			event("MODIFIED", tableOf("7", 3, false))
		case 2: // the server ends it before there is an event
		default:
			event("ERROR", metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired, Message: "too old"})
		}
	}))
	defer server.Close()
	typed, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	mapping := &meta.RESTMapping{Resource: corev1.SchemeGroupVersion.WithResource("configmaps"), Scope: meta.RESTScopeNamespace,
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ConfigMap")}
	s := Selection{Kind: "configmaps", Namespace: "shop", Names: []string{"web"}}
	for output, want := range map[string]string{
		"table": "NAME   CLUSTER   DATA   ADOPTION\nweb    m1        1      N\nweb    m1        22222   N\nweb    m1        3       N\n",
		"name":  strings.Repeat("configmap/web\n", 3),
	} {
		since = nil
		l, err := List(t.Context(), Member{Typed: typed}, mapping, "m1", s)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = Follow(t.Context(), &out, output, []Listing{l}, s)
		if err == nil || !strings.Contains(err.Error(), "watch configmaps of m1: changes were missed, run the command again: too old") {
			t.Errorf("%v", err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-o %s -want +got:\n%s", output, diff)
		}
		name := " metadata.name=web"
		if diff := cmp.Diff([]string{"1" + name, "7" + name, "7" + name}, since); diff != "" {
			t.Errorf("watched since -want +got:\n%s", diff)
		}
	}
}
