package kube_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/control/kube"
)

func TestConnect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubeconfig")
	err := os.WriteFile(file, []byte(`{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"s"}}],
		"clusters":[{"name":"s","cluster":{"server":"https://192.0.2.1:6443"}}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.Connect(file, "pelago-test", "")
	if err != nil || c.Host != "https://192.0.2.1:6443" || c.UserAgent != "pelago-test" {
		t.Errorf("got %v, %v", c, err)
	}
	_, err = kube.Connect(file+".none", "pelago-test", ", as `pelago init` writes it")
	if err == nil || !strings.Contains(err.Error(), "give --kubeconfig, as `pelago init` writes it)") {
		t.Errorf("without the file: %v", err)
	}
}
