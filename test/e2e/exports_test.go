package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

const (
	manyNamespace = "many"
	manyExports   = 100
	leaseName     = "pelago-agent"
)

// manyPod is the backend of all services.
const manyPod = `---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: many, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: http, image: localhost/whereami:dev, imagePullPolicy: IfNotPresent}
`

// testManyExports: the leading agent is killed repeatedly while it exports services. All are
// exported in the end, no address is allocated twice, and un-exporting removes everything.
func testManyExports(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	namespace := "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + manyNamespace + "}\n"
	services := namespace + manyPod
	for n := range manyExports {
		services += fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: web-%d, namespace: %s}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n", n, manyNamespace)
	}
	s.applyQuietly(t, "g1", namespace)
	s.applyQuietly(t, "g2", services)

	start := time.Now()
	for kill := range *kills {
		exports := ""
		for n := kill * manyExports / *kills; n < (kill+1)*manyExports / *kills; n++ {
			exports += fmt.Sprintf("---\napiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: web-%d, namespace: %s}\n", n, manyNamespace)
		}
		leader := s.agentThatLeads(t)
		s.applyQuietly(t, "g2", exports)
		time.Sleep(rand.N(500 * time.Millisecond)) // somewhere in its work
		s.killAgent(t, leader)
	}
	t.Logf("%d exports made and %d agents killed in %.1f s", manyExports, *kills, time.Since(start).Seconds())
	took := within(t, func() error {
		ready := strings.Fields(s.kubectl(t, "g2", "-n", manyNamespace, "get", "serviceexports",
			"-o", `jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}`))
		if n := strings.Count(strings.Join(ready, " "), "True"); n != manyExports {
			return fmt.Errorf("%d of %d exports are Ready", n, manyExports)
		}
		return nil
	})
	t.Logf("all are Ready %.1f s after the last kill", took.Seconds())
	s.checkAddressesUnique(t, manyExports)
	took = within(t, func() error { return s.countOf(t.Context(), manyExports) })
	t.Logf("all are imported in both clusters %.1f s later", took.Seconds())
	name := fmt.Sprintf("web-%d.%s.svc.clusterset.local", manyExports-1, manyNamespace)
	_, err := s.Resolve(t.Context(), l.client, name, 1, walk.GlobalCIDR2)
	must(t, err)

	_, err = s.Pelago(t.Context(), "unexport", "service", "--context", "g2", "--namespace", manyNamespace, "web-0")
	must(t, err)
	s.kubectl(t, "g2", "-n", manyNamespace, "delete", "serviceexports", "--all", "--wait=false")
	took = within(t, func() error {
		if err := s.countOf(t.Context(), 0); err != nil {
			return err
		}
		out, err := s.In(t.Context(), l.client, "nslookup", name)
		if err == nil || !strings.Contains(out, "NXDOMAIN") {
			return fmt.Errorf("%s still resolves: %s", name, out)
		}
		return nil
	})
	t.Logf("nothing of %d un-exported services is left after %.1f s", manyExports, took.Seconds())
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "delete", "namespace", manyNamespace, "--wait=false")
	}
}

func (s *clusterset) applyQuietly(t *testing.T, cluster, manifest string) {
	t.Helper()
	quiet := s.Walk
	quiet.Out = new(strings.Builder)
	must(t, quiet.Apply(t.Context(), cluster, manifest))
}

// agentThatLeads waits until an agent of g2 holds the lease, and returns its pod.
func (s *clusterset) agentThatLeads(t *testing.T) (pod string) {
	t.Helper()
	within(t, func() error {
		holder, err := s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", "g2", "-n", "pelago-system", "get", "lease", leaseName, "-o", "jsonpath={.spec.holderIdentity}")
		if err != nil || holder == "" {
			return fmt.Errorf("lease %s has no holder: %w", leaseName, err)
		}
		pod, _, _ = strings.Cut(holder, "_")
		_, err = s.Quietly(t.Context(), s.Lab.Kubectl(), "--context", "g2", "-n", "pelago-system", "get", "pod", pod, "-o", "name")
		return err // the holder's pod may be deleted
	})
	return pod
}

// killAgent kills an agent. Its lease is deleted, so that the test need not wait until it expires,
// and its pod is replaced, because kubelet would restart it with a growing backoff.
func (s *clusterset) killAgent(t *testing.T, pod string) {
	t.Helper()
	node := s.kubectl(t, "g2", "-n", "pelago-system", "get", "pod", pod, "-o", "jsonpath={.spec.nodeName}")
	within(t, func() error { // it may have lost its lease at this moment and ended; it is restarted
		_, err := s.Lab.Exec(t.Context(), node, "sh", "-c", `for p in $(pgrep --exact pelago-agent); do
		tr '\0' '\n' < /proc/$p/environ | grep --quiet --line-regexp POD_NAME=`+pod+` && kill -KILL $p && exit 0
	done
	echo no process of pod `+pod+` >&2
	exit 1`)
		return err
	})
	s.kubectl(t, "g2", "-n", "pelago-system", "delete", "lease", leaseName)
	s.kubectl(t, "g2", "-n", "pelago-system", "delete", "pod", pod, "--force", "--grace-period=0", "--wait=false")
}

// checkAddressesUnique: every allocated address of g2 is allocated once.
func (s *clusterset) checkAddressesUnique(t *testing.T, atLeast int) {
	t.Helper()
	owners := map[netip.Addr]string{}
	take := func(owner, text string) {
		a, err := netip.ParseAddr(text)
		must(t, err)
		if !netip.MustParsePrefix(walk.GlobalCIDR2).Contains(a) {
			t.Errorf("%s has address %s, which is not in %s", owner, a, walk.GlobalCIDR2)
		}
		if other, ok := owners[a]; ok {
			t.Errorf("%s and %s both have address %s", owner, other, a)
		}
		owners[a] = owner
	}
	for line := range strings.Lines(s.kubectl(t, "g2", "get", "globalingressips", "-A",
		"-o", `jsonpath={range .items[*]}{.metadata.namespace}/{.metadata.name} {.status.allocatedIP}{"\n"}{end}`)) {
		owner, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		take(owner, text)
	}
	ingress := len(owners)
	for text := range strings.FieldsSeq(s.kubectl(t, "g2", "get", "clusterglobalegressips", "-o", "jsonpath={.items[*].status.allocatedIPs[*]}")) {
		take("cluster egress", text)
	}
	if ingress < atLeast {
		t.Errorf("%d ingress addresses are given out, want at least %d", ingress, atLeast)
	}
	t.Logf("%d addresses are given out, each once", len(owners))
}

// countOf reports whether each kind of object that exports create exists so many times, in both
// clusters and at the hub.
func (s *clusterset) countOf(ctx context.Context, want int) error {
	for _, kind := range []struct{ cluster, what, namespace, contains string }{
		{"hub", "servicecontributions", brokerNamespace, "/g2." + manyNamespace + "."},
		{"hub", "endpointslices", brokerNamespace, "/g2.web-"},
		{"g1", "serviceimports", manyNamespace, "/web-"},
		{"g1", "endpointslices", manyNamespace, "-g2-"},
		{"g1", "serviceimports", "pelago-system", "-" + manyNamespace + "-g2"},
		{"g2", "serviceimports", manyNamespace, "/web-"},
		{"g2", "endpointslices", manyNamespace, "-g2-"},
		{"g2", "serviceimports", "pelago-system", "-" + manyNamespace + "-g2"},
		{"g2", "globalingressips", manyNamespace, "/web-"},
	} {
		out, err := s.Quietly(ctx, s.Lab.Kubectl(), "--context", kind.cluster, "-n", kind.namespace, "get", kind.what, "-o", "name")
		if err != nil {
			return err
		}
		n := 0
		for line := range strings.Lines(out) {
			if strings.Contains(line, kind.contains) {
				n++
			}
		}
		if n != want {
			return fmt.Errorf("%s has %d %s in namespace %s, want %d", kind.cluster, n, kind.what, kind.namespace, want)
		}
	}
	return nil
}
