package e2e

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

const audienceNamespace = "audience"

// testAudience: g2 exports a service, with a ClusterSetIP, to clusters that have a label. Without
// it g1 has no import, no name and no table entry, and its packets to the global IP are dropped;
// with it the service answers, and no longer once the label is gone.
func testAudience(t *testing.T, s *clusterset) {
	ctx := t.Context()
	workload, export, _ := strings.Cut(strings.ReplaceAll(vipWorkload, ": vip", ": "+audienceNamespace), "---\napiVersion: multicluster")
	export = strings.Replace("apiVersion: multicluster"+export, "annotations: {", `annotations: {pelago.io/export-to: "audience=yes", `, 1)
	label := func(value string) {
		s.kubectl(t, "hub", "-n", "submariner-k8s-broker", "label", "clusters.submariner.io", "g1", "audience"+value)
	}
	label("-") // of an earlier run
	for _, cluster := range []string{"g1", "g2"} {
		s.applyQuietly(t, cluster, workload)
	}
	s.applyQuietly(t, "g2", export)
	s.kubectl(t, "g2", "-n", audienceNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	s.kubectl(t, "g1", "-n", audienceNamespace, "wait", "--for=condition=Ready", "pod/client", walk.WaitFlag)
	s.kubectl(t, "g2", "-n", audienceNamespace, "wait", "serviceexport/web", "--for=condition=Ready", walk.WaitFlag)

	client := walk.Pod{Cluster: "g1", Namespace: audienceNamespace, Name: "client"}
	name := "web." + audienceNamespace + ".svc.clusterset.local"
	get := func(cluster string, args ...string) string {
		t.Helper()
		out, err := s.Quietly(ctx, s.Lab.Kubectl(), append([]string{"--context", cluster, "-n", audienceNamespace, "get"}, args...)...)
		must(t, err)
		return strings.TrimSpace(out)
	}
	address := get("g2", "globalingressip", "web", "-o", "jsonpath={.status.allocatedIP}")
	vip := get("g2", "serviceimport", "web", "-o", "jsonpath={.spec.ips[0]}")
	dropped := func() (n uint64) {
		for _, node := range []string{"g2-n1", "g2-n2", "g2-n3"} {
			n += s.counter(t, "g2", node, "uplink-in", "drop-not-exported")
		}
		return n
	}
	hidden := func() error {
		if objects := get("g1", "serviceimports,endpointslices", "-l", "kubernetes.io/service-name!=web", "-o", "name"); objects != "" {
			return fmt.Errorf("g1 has %s", objects)
		}
		if out, err := s.In(ctx, client, "nslookup", name); err == nil || !strings.Contains(out+err.Error(), "NXDOMAIN") {
			return fmt.Errorf("g1 resolves it: %s %v", out, err)
		}
		for _, a := range []string{address, vip} {
			if _, err := s.Ask(ctx, client, a); err == nil {
				return fmt.Errorf("it answers g1 at %s", a)
			}
		}
		return nil
	}
	reached := func() error {
		for _, a := range []string{address, vip, name} {
			if answer, err := s.Ask(ctx, client, a); err != nil || !strings.HasPrefix(answer.Node, "g2-") {
				return fmt.Errorf("at %s node %q answers (%v)", a, answer.Node, err)
			}
		}
		return nil
	}
	if _, err := netip.ParseAddr(address); err != nil {
		t.Fatal(err)
	}
	before := dropped()
	within(t, hidden)
	if dropped() == before {
		t.Errorf("nothing was counted as drop-not-exported at the nodes of g2")
	}
	label("=yes")
	t.Logf("with the label g1 reaches it after %.1f s", within(t, reached).Seconds())
	label("-")
	t.Logf("without it, no more after %.1f s", within(t, hidden).Seconds())
	for _, cluster := range []string{"g1", "g2"} {
		s.kubectl(t, cluster, "delete", "namespace", audienceNamespace, "--wait=false")
	}
}
