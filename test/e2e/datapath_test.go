package e2e

import (
	"context"
	"errors"
	"fmt"
	"testing"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// allPods is a policy that selects every pod and allows everything: a policy engine may still want
// to see their connections.
const allPods = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: e2e-datapath, namespace: ` + loadNamespace + `}
spec: {podSelector: {}, ingress: [{}], egress: [{}], policyTypes: [Ingress, Egress]}
`

// testDatapaths: the label of a namespace, and a NetworkPolicy, change the way of packets between
// its pods and the other cluster under load; nothing is lost or broken.
func testDatapaths(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	const label = pelagov1alpha1.LabelDatapath
	t.Cleanup(func() {
		for _, args := range [][]string{
			{"delete", "networkpolicy", "e2e-datapath", "-n", loadNamespace, "--ignore-not-found"}, {"label", "namespace", loadNamespace, label + "-"},
		} {
			for _, cluster := range []string{"g1", "g2"} {
				if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), append([]string{"--context", cluster}, args...)...); err != nil {
					t.Error(err)
				}
			}
		}
	})
	set := func(datapath string) {
		t.Helper()
		for _, cluster := range []string{"g1", "g2"} {
			s.kubectl(t, cluster, "label", "--overwrite", "namespace", loadNamespace, label+"="+datapath)
		}
	}
	// bypass waits until at least so many percent of what the client's node sends bypasses its
	// stack, or none of it.
	bypass := func(datapath string, want bool) {
		t.Helper()
		count := func() (past, through uint64) {
			return s.counter(t, "g1", l.clientNode, "pod-out", "sent"), s.counter(t, "g1", l.clientNode, "edge-out", "sent")
		}
		past, through := count()
		within(t, func() error {
			p, q := count()
			a, b := p-past, q-through
			past, through = p, q
			if a+b < 20 {
				return errors.New("hardly a packet was sent")
			}
			if (a > 4*b) != want || !want && a > 0 {
				return fmt.Errorf("datapath %s: %d packets bypassed the stack, %d took it", datapath, a, b)
			}
			t.Logf("datapath %s: %d packets bypassed the stack, %d took it", datapath, a, b)
			return nil
		})
	}
	connections := s.hold(t, l.client, 20, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 200, l.sink.String()+":7")
	set("hybrid")
	bypass("hybrid", true)
	set("fast")
	bypass("fast", true)
	for _, cluster := range []string{"g1", "g2"} {
		s.applyQuietly(t, cluster, allPods)
	}
	// that is hybrid: the engine sees one packet a second of each connection
	bypass("fast, selected by a policy", true)
	set("strict")
	bypass("strict", false)
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}
