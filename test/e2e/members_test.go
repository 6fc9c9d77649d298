package e2e

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// membersManifest are two pods that print their requests, and the rights of alice to one of them.
const membersManifest = `apiVersion: v1
kind: Namespace
metadata: {name: members}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: members}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: whereami, image: "localhost/whereami:dev", imagePullPolicy: Never}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: alice, namespace: members}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// entrants are the rights of alice at the hub.
const entrants = `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: members}
rules: [{apiGroups: [proxy.pelago.io], resources: [clusters/proxy], resourceNames: [g1, g2], verbs: ["*"]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: members}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: members}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: alice}]
`

// testMembers: a user of the hub reaches pods of a pull member (g1) and of a push member (g2) through the hub, and only those of the
// namespace that is hers. A Deployment made there is taken to the hub without a restart.
func testMembers(t *testing.T, s *clusterset) {
	ctx := t.Context()
	s.applyQuietly(t, "hub", entrants)
	for _, cluster := range []string{"g1", "g2"} {
		s.applyQuietly(t, cluster, membersManifest)
		s.kubectl(t, cluster, "-n", "members", "rollout", "status", "deployment/web", walk.WaitFlag)
		as := func(verb, namespace string, args ...string) []string {
			return append([]string{verb, "-C", cluster, "--context", "hub", "--as", "alice", "-n", namespace}, args...)
		}
		within(t, func() error {
			_, err := s.Pelago(ctx, as("exec", "members", "deployment/web", "--", "cat", "/etc/hostname")...)
			return err
		})
		pod := strings.TrimSpace(s.kubectl(t, cluster, "-n", "members", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].metadata.name}"))
		if out, err := s.Pelago(ctx, as("exec", "members", pod, "--", "cat", "/etc/hostname")...); err != nil || strings.TrimSpace(out) != pod {
			t.Errorf("%s: exec prints %q, want %s: %v", cluster, out, pod, err)
		}
		if _, err := s.Pelago(ctx, as("logs", "members", "deployment/web")...); err != nil {
			t.Errorf("%s: logs: %v", cluster, err)
		}
		if out, err := s.forwarded(t, as("port-forward", "members", "deployment/web", ":80")...); err != nil || !strings.Contains(out, pod) {
			t.Errorf("%s: port-forward: %q, want %s: %v", cluster, out, pod, err)
		}
		if out, err := s.Pelago(ctx, as("logs", "kube-system", "-l", "k8s-app=kube-dns")...); err == nil || !strings.Contains(out+err.Error(), `User "alice" cannot list`) {
			t.Errorf("%s: logs of another namespace: %s %v", cluster, out, err)
		}
	}

	s.applyQuietly(t, "hub", "apiVersion: v1\nkind: Namespace\nmetadata: {name: members}\n")
	before := s.kubectl(t, "g2", "-n", "members", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}")
	_, err := s.Pelago(ctx, "promote", "deployment", "web", "-n", "members", "-C", "g2", "--context", "hub")
	must(t, err)
	within(t, func() error {
		managed := s.kubectl(t, "g2", "-n", "members", "get", "deployment", "web", "-o", `jsonpath={.metadata.labels.karmada\.io/managed}`)
		if managed != "true" {
			return fmt.Errorf("the Deployment of g2 is not the hub's: %q", managed)
		}
		return nil
	})
	if after := s.kubectl(t, "g2", "-n", "members", "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].metadata.uid}"); after != before {
		t.Errorf("pods of the promoted Deployment: %s, want the same: %s", after, before)
	}
}

// forwarded runs port-forward, and returns what the pod answers at the local port.
func (s *clusterset) forwarded(t *testing.T, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), walk.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "pelago"), args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	defer func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("port-forward ends: %w", err)
	}
	// Forwarding from 127.0.0.1:12345 -> 80
	address, _, _ := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/", nil)
	if err != nil {
		return "", err
	}
	r, err := http.DefaultClient.Do(q)
	if err != nil {
		return "", err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	return string(text), err
}
