package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

const gatewayLabel = "submariner.io/gateway"

// testGatewayLeaves: in each cluster one of two gateways loses its label, and gets it back, while
// connections run.
func testGatewayLeaves(t *testing.T, s *clusterset) {
	l := s.needLoad(t)
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	leaving := map[string]string{"g1": "g1-n1", "g2": "g2-n1"}
	for cluster, node := range leaving {
		t.Cleanup(func() { // also after a failure: other parts want both gateways
			if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", cluster, "label", "node", node, gatewayLabel+"=true", "--overwrite"); err != nil {
				t.Error(err)
			}
		})
		if n := s.switched(t, cluster, node); n == 0 {
			t.Errorf("gateway %s has switched no packet: it would not be missed", node)
		}
	}
	for cluster, node := range leaving {
		s.kubectl(t, cluster, "label", "node", node, gatewayLabel+"-")
	}
	took := within(t, func() error { return s.gatewaysAre("g1-n2", "g2-n2") })
	t.Logf("the Endpoints are gone everywhere after %.1f s", took.Seconds())
	left := time.Now()
	before := map[string]uint64{}
	within(t, func() error { // the other gateways do all the work
		for cluster, node := range leaving {
			before[node] = s.switched(t, cluster, node)
		}
		s.pass(t, 2000)
		for cluster, node := range leaving {
			if n := s.switched(t, cluster, node) - before[node]; n > 0 {
				return fmt.Errorf("%s still switches: %d packets while 2000 passed", node, n)
			}
		}
		return nil
	})
	// A node without the label forwards until it has drained; traffic must not depend on it then.
	for _, node := range leaving {
		within(t, func() error { return s.metricIs(t.Context(), node, `pelago_gateway_state{state="none"}`, 1) })
	}
	t.Logf("drained %.1f s after the Endpoints were gone", time.Since(left).Seconds())
	s.pass(t, 2000)
	for cluster, node := range leaving {
		if n := s.switched(t, cluster, node) - before[node]; n > 0 {
			t.Errorf("%s switches again: %d packets", node, n)
		}
	}
	for cluster, node := range leaving {
		s.kubectl(t, cluster, "label", "node", node, gatewayLabel+"=true")
	}
	took = within(t, func() error { return s.gatewaysAre("g1-n1", "g1-n2", "g2-n1", "g2-n2") })
	t.Logf("both gateways are back everywhere after %.1f s", took.Seconds())
	for cluster, node := range leaving {
		within(t, func() error {
			if s.switched(t, cluster, node) == before[node] {
				return fmt.Errorf("%s is back but switches nothing", node)
			}
			return nil
		})
	}
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}

// switched is the number of packets that a gateway has passed between overlay and cable.
func (s *clusterset) switched(t *testing.T, cluster, node string) uint64 {
	t.Helper()
	return s.counter(t, cluster, node, "uplink-in", "switched")
}

// pass waits until the gateways of g1 have switched so many packets more: traffic has gone on under
// what was changed before.
func (s *clusterset) pass(t *testing.T, packets uint64) {
	t.Helper()
	sum := func() uint64 { return s.switched(t, "g1", "g1-n1") + s.switched(t, "g1", "g1-n2") }
	want := sum() + packets
	within(t, func() error {
		if now := sum(); now < want {
			return fmt.Errorf("the gateways of g1 have switched %d packets, want %d", now, want)
		}
		return nil
	})
}

// counter reads a row of `pelago nat stats -o json`; a row that is missing is 0.
func (s *clusterset) counter(t *testing.T, cluster, node, hook, verdict string) uint64 {
	t.Helper()
	out, err := s.Quietly(t.Context(), s.Bin+"/pelago", "nat", "stats", "--context", cluster, "--node", node, "-o", "json")
	must(t, err)
	type row struct {
		Hook    string `json:"hook"`
		Verdict string `json:"verdict"`
		Packets uint64 `json:"packets"`
	}
	for _, r := range decode[[]row](t, out) {
		if r.Hook == hook && r.Verdict == verdict {
			return r.Packets
		}
	}
	return 0
}

// gatewaysAre reports whether the hub and both clusters have exactly the Endpoints of these nodes.
func (s *clusterset) gatewaysAre(nodes ...string) error {
	want := map[string]bool{}
	for _, name := range nodes {
		n, err := s.Lab.Plan().Node(name)
		if err != nil {
			return err
		}
		want[n.Address.String()] = true
	}
	for cluster, namespace := range map[string]string{"hub": "submariner-k8s-broker", "g1": "pelago-system", "g2": "pelago-system"} {
		out, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", cluster, "-n", namespace, "get", "endpoints.submariner.io",
			"-o", "jsonpath={.items[*].spec.private_ip}")
		if err != nil {
			return err
		}
		have := strings.Fields(out)
		for _, ip := range have {
			if !want[ip] {
				return fmt.Errorf("%s still has an Endpoint with %s", cluster, ip)
			}
		}
		if len(have) != len(want) {
			return fmt.Errorf("%s has the Endpoints %v, want %v", cluster, have, nodes)
		}
	}
	return nil
}
