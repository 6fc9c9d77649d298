package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

const vipNamespace = "vip"

// vipWorkload is a service of two ports with a client pod, exported with a ClusterSetIP.
const vipWorkload = `apiVersion: v1
kind: Namespace
metadata: {name: vip}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: vip}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: localhost/whereami:dev
        imagePullPolicy: IfNotPresent
        readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
        env:
        - {name: NODE_NAME, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: vip}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: client, namespace: vip}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: client, image: localhost/whereami:dev, imagePullPolicy: IfNotPresent}
---
apiVersion: v1
kind: Pod
metadata: {name: host, namespace: vip}
spec:
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - {name: client, image: localhost/whereami:dev, imagePullPolicy: IfNotPresent, command: [sleep, infinity]}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: web, namespace: vip, annotations: {lighthouse.submariner.io/use-clusterset-ip: "true"}}
`

// testClusterSetIP: two clusters export a service with a ClusterSetIP. It is the same in both,
// leads to the own cluster while that has a ready backend, to the other one if not, by weights if
// there are some, and stays while one cluster exports the service.
func testClusterSetIP(t *testing.T, s *clusterset) {
	for _, cluster := range []string{"g1", "g2"} {
		s.applyQuietly(t, cluster, vipWorkload)
	}
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "-n", vipNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
		s.kubectl(t, cluster, "-n", vipNamespace, "wait", "--for=condition=Ready", "pod/client", "pod/host", walk.WaitFlag)
	}
	imported := func(cluster string) string {
		out, err := s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", cluster, "-n", vipNamespace, "get", "serviceimport", "web", "--ignore-not-found", "-o", "jsonpath={.spec.ips[0]}")
		must(t, err)
		return strings.TrimSpace(out)
	}
	var vip string
	within(t, func() error {
		one, two := imported("g1"), imported("g2")
		if one == "" || one != two {
			return fmt.Errorf("ClusterSetIP %q in g1, %q in g2", one, two)
		}
		vip = one
		return nil
	})
	if a, err := netip.ParseAddr(vip); err != nil || !netip.MustParsePrefix("243.0.0.0/8").Contains(a) {
		t.Fatalf("ClusterSetIP %s is not in 243.0.0.0/8", vip)
	}
	client := func(cluster string) walk.Pod {
		return walk.Pod{Cluster: cluster, Namespace: vipNamespace, Name: "client"}
	}
	// serving returns the cluster whose pod answers.
	serving := func(cluster string) (string, error) {
		a, err := s.Ask(t.Context(), client(cluster), vip)
		if err != nil {
			return "", err
		}
		of, _, _ := strings.Cut(a.Node, "-")
		return of, nil
	}
	served := func(from, by string) time.Duration {
		t.Helper()
		return within(t, func() error {
			for range 3 {
				if of, err := serving(from); err != nil || of != by {
					return fmt.Errorf("a request from %s is answered by %q (%v), want %s", from, of, err, by)
				}
			}
			return nil
		})
	}
	served("g1", "g1")
	served("g2", "g2")
	// A process of a node goes straight to a pod, not through a gateway under an egress IP.
	within(t, func() error {
		a, err := s.Ask(t.Context(), walk.Pod{Cluster: "g1", Namespace: vipNamespace, Name: "host"}, vip)
		if of, _, _ := strings.Cut(a.Node, "-"); err != nil || of != "g1" || netip.MustParsePrefix("120.0.0.0/8").Contains(a.Source) {
			return fmt.Errorf("a request from the host network of g1 is answered by %q, which sees the source %s (%v)", a.Node, a.Source, err)
		}
		return nil
	})
	_, err := s.Resolve(t.Context(), client("g1"), "web.vip.svc.clusterset.local", 1, vip+"/32")
	must(t, err)

	s.overflow(t, client("g1"), vip)
	served("g1", "g2")
	s.kubectl(t, "g1", "-n", vipNamespace, "scale", "deployment/web", "--replicas=2")
	t.Logf("with backends in g1 again, g1 answers after %.1f s", served("g1", "g1").Seconds())

	s.kubectl(t, "g1", "-n", vipNamespace, "annotate", "serviceimport", "web", "--overwrite",
		"lighthouse-lb-weight.submariner.io/g1=3", "lighthouse-lb-weight.submariner.io/g2=1")
	const requests = 400
	counts := map[string]int{}
	within(t, func() error { // until the weights are in use
		of, err := serving("g1")
		if err == nil && of != "g2" {
			err = fmt.Errorf("answered by %s", of)
		}
		return err
	})
	out, err := s.In(t.Context(), client("g1"), "sh", "-c", fmt.Sprintf("for i in $(seq %d); do curl -sS --max-time 3 http://%s/ | grep ^node; done", requests, vip))
	must(t, err)
	for line := range strings.Lines(out) {
		of, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "node: "), "-")
		counts[of]++
	}
	// Five standard deviations of a binomial share.
	if n := float64(counts["g1"]) - 0.75*requests; n*n > 25*0.75*0.25*requests || counts["g1"]+counts["g2"] != requests {
		t.Errorf("%v of %d requests; want three to one", counts, requests)
	}
	t.Logf("with weights 3 and 1: %v", counts)
	s.kubectl(t, "g1", "-n", vipNamespace, "annotate", "serviceimport", "web", "lighthouse-lb-weight.submariner.io/g1-", "lighthouse-lb-weight.submariner.io/g2-")

	// The owner of the address goes; the address stays.
	s.kubectl(t, "g1", "-n", vipNamespace, "delete", "serviceexport", "web")
	served("g1", "g2")
	if got := imported("g1"); got != vip {
		t.Errorf("after g1 has un-exported it the ClusterSetIP is %q; want %s", got, vip)
	}
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "delete", "namespace", vipNamespace, "--wait=false")
	}
	within(t, func() error {
		if got := imported("g1"); got != "" {
			return fmt.Errorf("nobody exports it, and it still has %s", got)
		}
		return nil
	})
}

// overflow scales the backends in g1 to 0 under requests from there, until 20 in a row are answered
// by g2. What fails meanwhile went to a pod that was removed.
func (s *clusterset) overflow(t *testing.T, client walk.Pod, vip string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), walk.Patience)
	defer cancel()
	asked := make(chan string, 1)
	go func() {
		out, err := s.In(ctx, client, "sh", "-c", fmt.Sprintf(`row=0; while [ $row -lt 20 ]; do
			at=$(cut -d' ' -f1 /proc/uptime); of=$(curl -sS --max-time 2 http://%s/ 2>&1 | grep -e ^node -e ^curl); echo $at $of
			case $of in "node: g2-"*) row=$((row + 1));; *) row=0;; esac
		done`, vip))
		if err != nil {
			out = err.Error()
		}
		asked <- out
	}()
	time.Sleep(time.Second) // of requests that g1 answers
	s.kubectl(t, "g1", "-n", vipNamespace, "scale", "deployment/web", "--replicas=0")
	raw, err := os.ReadFile("/proc/uptime")
	must(t, err)
	uptime := func(s string) time.Duration {
		first, _, _ := strings.Cut(s, " ")
		d, err := time.ParseDuration(first + "s")
		must(t, err)
		return d
	}
	scaled := uptime(string(raw))
	var until time.Duration
	var local, failed int
	var failure string
	for line := range strings.Lines(<-asked) {
		at, of, _ := strings.Cut(strings.TrimSpace(line), " ")
		after := uptime(at) - scaled
		switch {
		case strings.HasPrefix(of, "node: g2-"):
			continue
		case strings.HasPrefix(of, "node: g1-"):
			local++
		default:
			failed, failure = failed+1, of
		}
		until = after
	}
	if local == 0 {
		t.Error("g1 answered no request while it had backends")
	}
	t.Logf("without a backend in g1 all requests go to g2 after %d ms; %d failed before: %s", until.Milliseconds(), failed, failure)
}
