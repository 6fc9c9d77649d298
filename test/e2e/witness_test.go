package e2e

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// closedFor is how long a node's port stays closed; verdicts of former versions took 5 s.
const closedFor = 10 * time.Second

// testClosedPort: UDP 4800 of the agent's node, which is no gateway, is closed. In the rest of the
// cluster nothing changes, and the node is reported.
func testClosedPort(t *testing.T, s *clusterset) {
	const closed = "g1-n3"
	s.needLoad(t)
	s.moveAgent(t, closed)
	dns := s.kubectl(t, "g1", "-n", "kube-system", "get", "service", "kube-dns", "-o", "jsonpath={.spec.clusterIP}")
	healthy := func() error {
		ready := s.kubectl(t, "g1", "-n", loadNamespace, "get", "endpointslices", "-l", "multicluster.kubernetes.io/source-cluster=g2",
			"-o", "jsonpath={.items[*].endpoints[*].conditions.ready}")
		if ready == "" || strings.Contains(ready, "false") {
			return fmt.Errorf("endpoints of g2 are ready: %q", ready)
		}
		out, err := s.Lab.Exec(t.Context(), "g1-n1", "dig", "+short", "+time=5", "+tries=3", "@"+dns, "web."+loadNamespace+".svc.clusterset.local")
		if err != nil || strings.TrimSpace(out) == "" {
			return fmt.Errorf("the name of a service of g2 on g1-n1 is %q: %w", out, err)
		}
		connections, err := s.Quietly(t.Context(), s.Bin+"/pelago", "show", "connections", "--contexts", "g1")
		if err != nil || strings.Contains(connections, "none") {
			return fmt.Errorf("connections of the gateways, %w:\n%s", err, connections)
		}
		return nil
	}
	within(t, healthy)
	table := "table bridge closed"
	nft := func(ctx context.Context, rules string) error {
		plan := s.Lab.Plan()
		cmd := exec.CommandContext(ctx, "ip", "netns", "exec", plan.Name+"-g1-switch", "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	must(t, nft(t.Context(), table+` {
	chain forward {
		type filter hook forward priority 0; policy accept
		iifname "n3" udp dport 4800 drop
		oifname "n3" udp dport 4800 drop
	}
}
`))
	open := func() {
		if err := nft(context.Background(), table+"\ndelete "+table+"\n"); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(open)
	begin := time.Now()
	within(t, func() error { return s.metricIs(t.Context(), closed, "pelago_node_isolated", 1) })
	t.Logf("the node knows after %.1f s", time.Since(begin).Seconds())
	for time.Since(begin) < closedFor {
		must(t, healthy())
	}
	within(t, func() error {
		events := s.kubectl(t, "g1", "get", "events", "-A", "--field-selector", "reason=NoGatewayAnswers,involvedObject.name="+closed, "-o", "jsonpath={.items[*].message}")
		if !strings.Contains(events, "check that UDP 4800 passes in both directions between it and g1-n1, g1-n2") {
			return fmt.Errorf("Events on the Node: %q", events)
		}
		return nil
	})
	open()
	took := within(t, func() error { return s.metricIs(t.Context(), closed, "pelago_node_isolated", 0) })
	t.Logf("open again: the node knows after %.1f s", took.Seconds())
}

// moveAgent makes the agent of g1 run on a node.
func (s *clusterset) moveAgent(t *testing.T, to string) {
	t.Helper()
	for _, node := range []string{"g1-n1", "g1-n2", "g1-n3"} {
		if node != to {
			s.kubectl(t, "g1", "cordon", node)
			defer s.kubectl(t, "g1", "uncordon", node)
		}
	}
	s.kubectl(t, "g1", "-n", "pelago-system", "delete", "pods", "-l", "app=pelago-agent")
	within(t, func() error {
		holder := s.kubectl(t, "g1", "-n", "pelago-system", "get", "lease", leaseName, "-o", "jsonpath={.spec.holderIdentity}")
		leader, _, _ := strings.Cut(holder, "_")
		if leader == "" {
			return fmt.Errorf("Lease %s is released", leaseName)
		}
		if at := s.kubectl(t, "g1", "-n", "pelago-system", "get", "pod", leader, "--ignore-not-found", "-o", "jsonpath={.spec.nodeName}"); at != to {
			return fmt.Errorf("agent %s runs on %q", leader, at)
		}
		return nil
	})
}

// testDeadGateway: one of g2's two gateways loses its power. A service that is exported then, and
// an egress IP, are usable 5 s after a witness has reported it.
func testDeadGateway(t *testing.T, s *clusterset) {
	const dead, namespace = "g2-n2", "dead-gateway"
	s.applyQuietly(t, "g2", `apiVersion: v1
kind: Namespace
metadata: {name: dead-gateway}
---
apiVersion: v1
kind: Pod
metadata: {name: web, namespace: dead-gateway, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 0
  nodeName: g2-n1
  containers: [{name: web, image: localhost/whereami:dev, imagePullPolicy: Never}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: dead-gateway}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
`)
	t.Cleanup(func() {
		ctx := context.Background()
		if err := s.Lab.Heal(ctx, dead); err != nil {
			t.Error(err)
		}
		if _, err := s.Quietly(ctx, s.Lab.Kubectl(), "--context", "g2", "delete", "namespace", namespace, "--wait=false"); err != nil {
			t.Error(err)
		}
	})
	// The lease of an agent that dies with the gateway expires after 15 s: that is not measured here.
	within(t, func() error {
		leader := s.agentThatLeads(t)
		if node := s.kubectl(t, "g2", "-n", "pelago-system", "get", "pod", leader, "-o", "jsonpath={.spec.nodeName}"); node == dead {
			s.killAgent(t, leader)
			return fmt.Errorf("the agent that leads is on %s", node)
		}
		return nil
	})
	must(t, s.Lab.Kill(t.Context(), dead))
	killed := time.Now()
	within(t, func() error {
		silent := s.kubectl(t, "g2", "-n", "pelago-system", "get", "routeagents.submariner.io", "g2-n1", "-o", `jsonpath={.metadata.annotations.pelago\.io/silent-gateways}`)
		if silent != dead {
			return fmt.Errorf("g2-n1 gets no answer from %q, want %s", silent, dead)
		}
		return nil
	})
	known := time.Now()
	t.Logf("a witness reports it after %.1f s", known.Sub(killed).Seconds())
	s.applyQuietly(t, "g2", `apiVersion: submariner.io/v1
kind: GlobalEgressIP
metadata: {name: web, namespace: dead-gateway}
spec: {numberOfIPs: 1, podSelector: {matchLabels: {app: web}}}
---
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {name: web, namespace: dead-gateway}
`)
	within(t, func() error {
		ready := s.kubectl(t, "g2", "-n", namespace, "get", "serviceexport", "web", "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		egress := s.kubectl(t, "g2", "-n", namespace, "get", "globalegressip", "web", "-o", `jsonpath={.status.conditions[?(@.type=="Allocated")].reason}`)
		blocks := s.kubectl(t, "g2", "get", "portblocks", "-o", `jsonpath={.items[?(@.spec.pool.namespace=="dead-gateway")].spec.state}`)
		if ready != "True" || egress != "Success" || blocks == "" || strings.Contains(blocks, "Pending") {
			return fmt.Errorf("export %q, egress IP %q, port blocks %q", ready, egress, blocks)
		}
		return nil
	})
	took := time.Since(known)
	t.Logf("export and egress IP are usable %.1f s after that", took.Seconds())
	if took > 5*time.Second {
		t.Errorf("export and egress IP are usable %.1f s after a witness has reported the dead gateway; want at most 5 s", took.Seconds())
	}
}
