package main

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestShowVisitsContextsConcurrently: each API server refuses only once the other has a request as
// well.
func TestShowVisitsContextsConcurrently(t *testing.T) {
	var both sync.WaitGroup
	kc := clientcmdapi.NewConfig()
	for _, name := range []string{"a", "b"} {
		both.Add(1)
		var once sync.Once
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			once.Do(both.Done)
			met := make(chan struct{})
			go func() { both.Wait(); close(met) }()
			select {
			case <-met:
				http.Error(w, "refused by "+name, http.StatusForbidden)
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(s.Close)
		kc.Clusters[name] = &clientcmdapi.Cluster{Server: s.URL}
		kc.Contexts[name] = &clientcmdapi.Context{Cluster: name}
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*kc, file); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cmd := root("pelago")
	cmd.SetArgs([]string{"show", "gateways", "--kubeconfig", file})
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	err := cmd.ExecuteContext(t.Context())
	if err == nil {
		t.Fatalf("no cluster is joined, and show prints\n%s", &out)
	}
	a, b := strings.Index(err.Error(), "refused by a"), strings.Index(err.Error(), "refused by b")
	if a < 0 || b < a {
		t.Errorf("want the refusals of a and b, in this order: %v", err)
	}
}
