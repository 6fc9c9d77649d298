package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A signal ends commands of kubectl that would go on for ever.
func TestSignals(t *testing.T) {
	t.Parallel()
	arrived := make(chan string, 1)
	answers := map[string]string{
		"/apis/proxy.pelago.io/v1alpha1":      `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"proxy.pelago.io/v1alpha1","resources":[]}`,
		"/api":                                `{"kind":"APIVersions","versions":["v1"]}`,
		"/apis":                               `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
		"/api/v1":                             `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[{"name":"pods","kind":"Pod","namespaced":true,"verbs":["get"]}]}`,
		"/api/v1/namespaces/default/pods/web": `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web","namespace":"default"},"spec":{"containers":[{"name":"c"}]}}`,
	}
	hub := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		path := q.URL.Path
		if _, in, ok := strings.Cut(path, "/clusters/m1/proxy"); ok {
			path = in
		}
		// a subresource
		if name, ok := strings.CutPrefix(path, "/api/v1/namespaces/default/pods/web/"); ok {
			arrived <- name
			<-q.Context().Done()
			return
		}
		if answers[path] == "" {
			http.NotFound(w, q)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answers[path])
	}))
	defer hub.Close()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"hub","clusters":[{"name":"hub","cluster":{"server":%q}}],`+
		`"contexts":[{"name":"hub","context":{"cluster":"hub"}}]}`, hub.URL)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"logs", "-f"}, {"attach"}, {"exec", "--", "sleep"}} {
		for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			args := slices.Insert(slices.Clone(args), 1, "web", "--kubeconfig", file, "--cache-dir", t.TempDir(), "-C", "m1")
			cmd := exec.Command(os.Args[0], args...)
			cmd.Env = append(os.Environ(), asProgram+"=yes")
			cmd.Stderr = t.Output()
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-arrived:
			case err := <-ended:
				t.Fatalf("%q: %v", args, err)
			}
			if err := cmd.Process.Signal(signal); err != nil {
				t.Fatal(err)
			}
			select {
			case <-ended: // with its status, or by the signal
			case <-time.After(time.Minute):
				t.Errorf("%q goes on after %v", args, signal)
				_ = cmd.Process.Kill() // it may have ended now
				<-ended
			}
		}
	}
}
