package apiserver

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"k8s.io/client-go/rest"
)

// Kubectl is the kubectl of the same build. The function that it returns runs it with the access
// that c gives, and with nothing of the user's; said is its output, both streams. An exit
// code other than 0 is an error.
func Kubectl(t testing.TB, c *rest.Config) (run func(args ...string) (said string, err error)) {
	t.Helper()
	bin, err := binDirectory(false)
	if err != nil {
		t.Fatal(err)
	}
	text, err := Kubeconfig(c)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	file := filepath.Join(home, "kubeconfig")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return func(args ...string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "kubectl"), args...)
		cmd.Env = []string{"HOME=" + home, "KUBECONFIG=" + file}
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		if err := cmd.Run(); err != nil {
			return said.String(), fmt.Errorf("kubectl %q: %w", args, err)
		}
		return said.String(), nil
	}
}
