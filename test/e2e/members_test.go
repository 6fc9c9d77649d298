package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/images"
	"github.com/pelago-net/pelago/test/lab/binaries"
)

// membersManifest is a web server, a pod that prints what it reads, and the rights of alice in
// their namespace.
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
apiVersion: v1
kind: Pod
metadata: {name: reader, namespace: members}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: sh, image: "localhost/whereami:dev", imagePullPolicy: Never, stdin: true, command: [sh, -c, "while read line; do echo read $line; done; sleep 3600"]}
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

// metricsServer is metrics-server in the pod network; kubelets of the lab have certificates of
// their own making.
const metricsServer = `apiVersion: v1
kind: ServiceAccount
metadata: {name: metrics-server, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:metrics-server"}
rules:
- {apiGroups: [""], resources: [nodes/metrics], verbs: [get]}
- {apiGroups: [""], resources: [pods, nodes], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "system:metrics-server"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:metrics-server"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: "metrics-server:system:auth-delegator"}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: metrics-server-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{kind: ServiceAccount, name: metrics-server, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: "system:aggregated-metrics-reader", labels: {rbac.authorization.k8s.io/aggregate-to-admin: "true"}}
rules: [{apiGroups: [metrics.k8s.io], resources: [pods, nodes], verbs: [get, list, watch]}]
---
apiVersion: v1
kind: Service
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {k8s-app: metrics-server}
  ports: [{name: https, port: 443, targetPort: 10250}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.metrics.k8s.io}
spec:
  service: {name: metrics-server, namespace: kube-system}
  group: metrics.k8s.io
  version: v1beta1
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: metrics-server, namespace: kube-system}
spec:
  selector: {matchLabels: {k8s-app: metrics-server}}
  template:
    metadata: {labels: {k8s-app: metrics-server}}
    spec:
      serviceAccountName: metrics-server
      containers:
      - name: metrics-server
        image: "localhost/metrics-server:dev"
        imagePullPolicy: Never
        args: [--cert-dir=/tmp, --secure-port=10250, --kubelet-insecure-tls, --kubelet-preferred-address-types=InternalIP, --metric-resolution=10s, --kubelet-request-timeout=5s]
        readinessProbe: {httpGet: {path: /readyz, port: 10250, scheme: HTTPS}, periodSeconds: 2}
`

// testMembers: a user of the hub reaches pods of a push member (g2) and of a pull member (g1),
// whose API server the hub cannot reach, through the hub, and only those of the namespace that is
// hers. A Deployment made there is taken to the hub without a restart.
func testMembers(t *testing.T, s *clusterset) {
	ctx := t.Context()
	s.installMetricsServer(t)
	s.closeInbound(t)
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
		s.kubectl(t, cluster, "-n", "members", "wait", "--for=condition=Ready", "pod/reader", walk.WaitFlag)
		s.attaches(t, as("attach", "members", "reader", "-i")...)
		took := within(t, func() error { // two rounds of measurements after the pod's start
			out, err := s.Pelago(ctx, as("top", "members", "pods")...)
			if err == nil && !regexp.MustCompile(`(?m)^`+pod+` +\d+m +\d+Mi *$`).MatchString(out) {
				err = fmt.Errorf("top prints %q, want processor time and memory of %s", out, pod)
			}
			return err
		})
		t.Logf("%s: top shows the pod after %.1f s", cluster, took.Seconds())
		if out, err := s.Pelago(ctx, as("top", "kube-system", "pods")...); err == nil || !strings.Contains(out+err.Error(), `User "alice" cannot list`) {
			t.Errorf("%s: top of another namespace: %s %v", cluster, out, err)
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
	out, end := s.started(t, nil, args...)
	defer end()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("port-forward ends: %w", err)
	}
	// Forwarding from 127.0.0.1:12345 -> 80
	address, _, _ := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " ")
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/", nil)
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

// installMetricsServer makes metrics.k8s.io available in both clusters.
func (s *clusterset) installMetricsServer(t *testing.T) {
	t.Helper()
	program, err := binaries.MetricsServer(t.Context(), func(line string) { t.Log(line) })
	must(t, err)
	archive := filepath.Join(s.Dir, "metrics-server.tar")
	_, err = images.MetricsServerImage(program).Write(archive)
	must(t, err)
	must(t, s.Lab.LoadImage(t.Context(), archive, "g1", "g2"))
	must(t, os.Remove(archive))
	for _, cluster := range []string{"g1", "g2"} {
		s.applyQuietly(t, cluster, metricsServer)
	}
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "wait", "--for=condition=Available", "apiservice/v1beta1.metrics.k8s.io", walk.WaitFlag)
	}
}

// closeInbound lets the router drop what the hub opens to g1, as a NAT does, until the test has
// ended.
func (s *clusterset) closeInbound(t *testing.T) {
	t.Helper()
	config, err := s.Lab.RESTConfig("hub")
	must(t, err)
	hub, err := url.Parse(config.Host)
	must(t, err)
	s.node(t, "router", "nft", fmt.Sprintf("add table ip closed; add chain ip closed forward { type filter hook forward priority 0; }; "+
		"add rule ip closed forward ip saddr %s ip daddr %s ct state new counter drop", hub.Hostname(), s.underlay(t, "g1")))
	t.Cleanup(func() {
		_, err := s.Lab.Exec(context.Background(), "router", "nft", "delete table ip closed")
		must(t, err)
	})
	g1, err := s.Lab.RESTConfig("g1")
	must(t, err)
	if out, err := s.Lab.Exec(t.Context(), "hub", "curl", "-sk", "--connect-timeout", "2", g1.Host+"/version"); err == nil {
		t.Fatalf("the hub reaches the API server of g1: %s", out)
	}
}

// attaches runs attach, types a line and waits for the pod's answer.
func (s *clusterset) attaches(t *testing.T, args ...string) {
	t.Helper()
	in, typed, err := os.Pipe()
	must(t, err)
	defer typed.Close()
	out, end := s.started(t, in, args...)
	defer end()
	_, err = typed.WriteString("a line\n")
	must(t, errors.Join(err, in.Close()))
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if lines.Text() == "read a line" {
			return
		}
	}
	t.Errorf("pelago %s ends without the pod's answer", strings.Join(args, " "))
}

// started runs a pelago command that does not end by itself. end kills it.
func (s *clusterset) started(t *testing.T, in io.Reader, args ...string) (out io.Reader, end func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), walk.Patience)
	cmd := exec.CommandContext(ctx, filepath.Join(s.Bin, "pelago"), args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+s.Lab.Kubeconfig())
	cmd.Stdin, cmd.Stderr = in, t.Output()
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	return out, func() {
		cancel()
		_ = cmd.Wait() // it was killed
	}
}
