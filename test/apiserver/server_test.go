package apiserver_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/test/apiserver"
	"github.com/pelago-net/pelago/test/await"
	"github.com/pelago-net/pelago/test/need"
)

const auditCreates = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, verbs: [create], namespaces: [default], resources: [{group: "", resources: [configmaps]}]}
`

// A server that is killed and put back to an earlier state keeps its address and shows that state.
func TestServerKilledAndRestored(t *testing.T) {
	need.Kubernetes(t)
	s, err := apiserver.Open(apiserver.Audit(auditCreates), apiserver.Controllers("namespace-controller"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	ctx := t.Context()
	config := s.Config()
	maps := client(t, config).CoreV1().ConfigMaps("default")
	create := func(name string) {
		t.Helper()
		if _, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	names := func() string {
		t.Helper()
		list, err := maps.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, m := range list.Items {
			names = append(names, m.Name)
		}
		return strings.Join(names, " ")
	}

	create("a")
	backup := filepath.Join(t.TempDir(), "backup")
	if err := s.Backup(ctx, backup); err != nil {
		t.Fatal(err)
	}
	create("b")
	s.KillAPI()
	if _, err := maps.List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("a killed server answers")
	}
	if err := s.StartAPI(ctx); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "a b" {
		t.Errorf("after a kill there are %q", got)
	}
	if err := s.Restore(ctx, backup); err != nil {
		t.Fatal(err)
	}
	if got := names(); got != "a" {
		t.Errorf("after the restore there are %q", got)
	}
	spaces := client(t, config).CoreV1().Namespaces()
	if _, err := spaces.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "gone"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := spaces.Delete(ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await.True(t, "the controllers work on what was restored", func() bool {
		_, err := spaces.Get(ctx, "gone", metav1.GetOptions{})
		return err != nil
	})
	await.Equal(t, []string{"a", "b"}, func() []string { return audited(t, s.AuditLog()) })
}

// audited lists the names in an audit log.
func audited(t *testing.T, file string) (names []string) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var event struct{ ObjectRef struct{ Name string } }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		names = append(names, event.ObjectRef.Name)
	}
	return names
}
