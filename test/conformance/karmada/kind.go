package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/pelago-net/pelago/test/hubset"
)

// clustersVariable is the environment variable with the URL at which the suite requests clusters.
const clustersVariable = "CONFORMANCE_CLUSTERS"

// createClusters is a file of the suite: its own functions of these names run kind, which needs
// Docker.
const createClusters = `package base

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
)

func createCluster(name, kubeconfig, _, context string) error {
	return changeCluster(http.MethodPut, name, url.Values{"kubeconfig": {kubeconfig}, "context": {context}})
}

func deleteCluster(name, _ string) error { return changeCluster(http.MethodDelete, name, nil) }

func changeCluster(method, name string, options url.Values) error {
	request, err := http.NewRequest(method, os.Getenv("` + clustersVariable + `")+"/"+name+"?"+options.Encode(), nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if text, err := io.ReadAll(response.Body); err != nil || response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s cluster %s: %s: %s: %v", method, name, response.Status, text, err)
	}
	return nil
}
`

// replaceKind has the suite in a directory get its clusters from a server of clusters.
func replaceKind(dir string) error {
	file := filepath.Join(dir, "suite_test.go")
	text, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("replace kind in the suite: %w", err)
	}
	renamed := string(text)
	for _, name := range []string{"createCluster", "deleteCluster"} {
		if !strings.Contains(renamed, "\nfunc "+name+"(") {
			return fmt.Errorf("%s has no function %s: this version of the suite is not known", file, name)
		}
		renamed = strings.Replace(renamed, "\nfunc "+name+"(", "\nfunc "+name+"WithKind(", 1)
	}
	if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(file, 0o644), os.WriteFile(file, []byte(renamed), 0o644),
		os.WriteFile(filepath.Join(dir, "pelago_clusters_test.go"), []byte(createClusters), 0o644)); err != nil {
		return fmt.Errorf("replace kind in the suite: %w", err)
	}
	return nil
}

// clusters are real clusters, not joined, that the suite makes and deletes: PUT and DELETE of
// /NAME.
type clusters struct {
	*httptest.Server
	set *hubset.Set
	mu  sync.Mutex
	all map[string]*hubset.Member
}

func serveClusters(set *hubset.Set) *clusters {
	c := &clusters{set: set, all: map[string]*hubset.Member{}}
	c.Server = httptest.NewServer(c)
	return c
}

func (c *clusters) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	name := strings.TrimPrefix(q.URL.Path, "/")
	var err error
	if q.Method == http.MethodPut {
		err = c.create(q.Context(), name, q.FormValue("kubeconfig"), q.FormValue("context"))
	} else {
		err = c.delete(name)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func (c *clusters) create(ctx context.Context, name, kubeconfig, kubecontext string) error {
	m, err := c.set.OpenMember(name)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.all[name] = m
	c.mu.Unlock()
	if err := makeFixtures(ctx, name, m.Config); err != nil {
		return err
	}
	return writeKubeconfig(kubeconfig, m.Config, kubecontext)
}

func (c *clusters) delete(name string) error {
	c.mu.Lock()
	m := c.all[name]
	delete(c.all, name)
	c.mu.Unlock()
	if m == nil {
		return fmt.Errorf("there is no cluster %s", name)
	}
	return m.Close()
}

// Close ends the server, and the clusters that the suite has left.
func (c *clusters) Close() error {
	c.Server.Close()
	var errs []error
	for name := range c.all {
		errs = append(errs, c.delete(name))
	}
	return errors.Join(errs...)
}
