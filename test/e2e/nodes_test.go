package e2e

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// retire switches a node off for good: its machine has no power, its Node is deleted. Its disk stays.
func (s *clusterset) retire(t *testing.T, node string) {
	t.Helper()
	n, err := s.Lab.Plan().Node(node)
	must(t, err)
	must(t, s.Lab.Kill(t.Context(), node))
	s.kubectl(t, n.Cluster, "delete", "node", node)
	// The pod garbage collector does so too, 40 s later.
	for line := range strings.Lines(s.kubectl(t, n.Cluster, "get", "pods", "-A", "--field-selector", "spec.nodeName="+node,
		"-o", `jsonpath={range .items[*]}{.metadata.namespace} {.metadata.name}{"\n"}{end}`)) {
		f := strings.Fields(line)
		s.kubectl(t, n.Cluster, "-n", f[0], "delete", "pod", f[1], "--force", "--grace-period=0", "--ignore-not-found")
	}
}

// register creates the Node of a machine that is off, unless it exists, with more labels: each begins
// with a comma.
func (s *clusterset) register(ctx context.Context, node, labels string) error {
	n, err := s.Lab.Plan().Node(node)
	if err != nil {
		return err
	}
	quiet := s.Walk
	quiet.Out = io.Discard
	return quiet.Apply(ctx, n.Cluster, fmt.Sprintf("{apiVersion: v1, kind: Node, metadata: {name: %s, labels: {kubernetes.io/hostname: %s%s}}, spec: {podCIDR: %s, podCIDRs: [%s]}}",
		node, node, labels, n.PodCIDR, n.PodCIDR))
}

// boot switches a registered node on, and waits until pelago-node is ready on it.
func (s *clusterset) boot(t *testing.T, node string) {
	t.Helper()
	n, err := s.Lab.Plan().Node(node)
	must(t, err)
	must(t, s.Lab.Heal(t.Context(), node))
	within(t, func() error {
		ready := s.kubectl(t, n.Cluster, "-n", "pelago-system", "get", "pods", "-l", "app=pelago-node", "--field-selector", "spec.nodeName="+node,
			"-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`)
		if ready != "True" {
			return fmt.Errorf("pelago-node on %s is Ready: %q", node, ready)
		}
		return nil
	})
}

// newMachine removes the disk of a node that is off. Its next boot is that of another machine.
func (s *clusterset) newMachine(t *testing.T, node string) {
	t.Helper()
	must(t, os.RemoveAll(filepath.Join(s.Lab.Dir(), "node", node)))
}

// allReady reports whether all nodes of a cluster are Ready.
func (s *clusterset) allReady(t *testing.T, cluster string) error {
	t.Helper()
	states := s.kubectl(t, cluster, "get", "nodes", "-o", `jsonpath={range .items[*]}{.metadata.name}={.status.conditions[?(@.type=="Ready")].status} {end}`)
	if states == "" || strings.Contains(states, "=False") || strings.Contains(states, "=Unknown") {
		return fmt.Errorf("nodes of %s are Ready: %s", cluster, states)
	}
	return nil
}

// serverOn takes name, node and namespace.
const serverOn = `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[3]s, labels: {app: %[1]s, of: %[3]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: http
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
    readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
`

// serve creates a server on a node, in namespace load, and waits until it runs.
func (s *clusterset) serve(t *testing.T, name, node string) walk.Pod {
	t.Helper()
	n, err := s.Lab.Plan().Node(node)
	must(t, err)
	s.applyQuietly(t, n.Cluster, fmt.Sprintf(serverOn, name, node, loadNamespace))
	s.kubectl(t, n.Cluster, "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/"+name, walk.WaitFlag)
	return walk.Pod{Cluster: n.Cluster, Namespace: loadNamespace, Name: name}
}
