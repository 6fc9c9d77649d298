package main

import (
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pelago-net/pelago/test/hubset"
	"github.com/pelago-net/pelago/test/need"
)

// What the suite does with a cluster of its own: it makes it, connects with the context that it has
// named, and deletes it.
func TestClustersOfTheSuite(t *testing.T) {
	need.Kubernetes(t)
	server := serveClusters(new(hubset.Set))
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	do := func(method string, options url.Values) (int, string) {
		request, err := http.NewRequest(method, server.URL+"/extra?"+options.Encode(), nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, _ := io.ReadAll(response.Body)
		return response.StatusCode, string(text)
	}
	file := filepath.Join(t.TempDir(), "new", "extra.config")
	if code, text := do(http.MethodPut, url.Values{"kubeconfig": {file}, "context": {"kind-extra"}}); code != http.StatusOK {
		t.Fatal(text)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(&clientcmd.ClientConfigLoadingRules{ExplicitPath: file},
		&clientcmd.ConfigOverrides{CurrentContext: "kind-extra"}).ClientConfig()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	if code, text := do(http.MethodDelete, nil); code != http.StatusOK {
		t.Error(text)
	}
	if code, text := do(http.MethodDelete, nil); code != http.StatusInternalServerError || !strings.Contains(text, "there is no cluster extra") {
		t.Errorf("deleted again: %d %s", code, text)
	}
}

func TestReplaceKind(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "suite_test.go")
	for text, want := range map[string]string{
		"package base\n\nfunc createCluster(a string) {}\n\nfunc deleteCluster() {}\n": "",
		"package base\n\nfunc createCluster(a string) {}\n":                            "no function deleteCluster: this version of the suite is not known",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		err := replaceKind(dir)
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %s", err, want)
			}
			continue
		}
		got, readErr := os.ReadFile(file)
		if err != nil || readErr != nil || string(got) != "package base\n\nfunc createClusterWithKind(a string) {}\n\nfunc deleteClusterWithKind() {}\n" {
			t.Errorf("%v %v:\n%s", err, readErr, got)
		}
	}
}
