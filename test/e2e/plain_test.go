package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestWithoutGlobalnet is the main path of two clusters with ranges of their own.
func TestWithoutGlobalnet(t *testing.T) {
	s := newClusterset(t, lab.Options{Name: *labName + "pl", Nodes: 3}, walk.Walk{Gateways: 2, Plain: true, Wire: "vxlan"})
	s.run(t, "the walk-through", testWalkThrough)
	s.run(t, "conntrack translates nothing", testNoTranslationByConntrack)
	s.run(t, "nodes", testFabric)
	s.run(t, "what is not exported", testNotExported)
	s.run(t, "hosts outside the clusters", testExternal)
	s.run(t, "a daemon that is killed", testDaemonKilled)
}

// testFabric: processes of a node use its fabric address as their source and are reached at it; a
// host-network pod is a backend like any other.
func testFabric(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	if err := s.ReachesAll(ctx, l.host, l.web.String(), 4); err != nil {
		t.Errorf("from a pod in the network of its node: %v", err)
	}
	server := s.last(t, "g2")
	fabric, err := s.Fabric(ctx, "g2", server)
	must(t, err)
	for _, from := range []walk.Pod{l.client, l.host} {
		if _, err := s.ShowIn(ctx, from, "ping", "-c", "3", "-W", "60", fabric.String()); err != nil {
			t.Errorf("ping from pod %s to node %s: %v", from.Name, server, err)
		}
	}
	must(t, s.Apply(ctx, "g2", fmt.Sprintf(inNode, server)))
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/in-node", walk.WaitFlag)
	for _, service := range []string{"in-node", "in-node-pods"} {
		_, err := s.Pelago(ctx, "export", "service", "--context", "g2", "--namespace", loadNamespace, service)
		must(t, err)
	}
	for _, name := range []string{"in-node", "in-node.g2.in-node-pods"} {
		host := name + "." + loadNamespace + ".svc.clusterset.local:8088"
		within(t, func() error {
			a, err := s.Ask(ctx, l.client, host)
			if err == nil && a.Pod != "in-node" {
				err = fmt.Errorf("%s is answered by %s", host, a.Pod)
			}
			return err
		})
	}
}

// inNode takes a node.
const inNode = `
apiVersion: v1
kind: Pod
metadata: {name: in-node, namespace: load, labels: {app: in-node}}
spec:
  nodeName: %s
  hostNetwork: true
  terminationGracePeriodSeconds: 1
  containers:
  - name: http
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    args: ["-listen", ":8088"]
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    readinessProbe: {httpGet: {path: /healthz, port: 8088}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: in-node, namespace: load}
spec:
  selector: {app: in-node}
  ports: [{port: 8088}]
---
apiVersion: v1
kind: Service
metadata: {name: in-node-pods, namespace: load}
spec:
  clusterIP: None
  selector: {app: in-node}
  ports: [{port: 8088}]
`

// testNotExported: pods are reached under their addresses; the ClusterIP of a service that is not
// exported is unreachable.
func testNotExported(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	pod := netip.MustParseAddr(s.kubectl(t, "g2", "-n", loadNamespace, "get", "pod", "sink", "-o", "jsonpath={.status.podIP}"))
	out, err := s.In(ctx, l.client, "whereami", "ping", "-rate", "10", "-duration", "1s", pod.String()+":7")
	must(t, err)
	if p := decode[pings](t, out); p.Lost > 0 {
		t.Errorf("%d of %d datagrams to pod %s are lost", p.Lost, p.Sent, pod)
	}
	hidden := s.kubectl(t, "g2", "-n", "default", "get", "service", "kubernetes", "-o", "jsonpath={.spec.clusterIP}")
	dropped := func() (n uint64) {
		for _, gateway := range []string{"g2-n1", "g2-n2"} {
			n += s.counter(t, "g2", gateway, "uplink-in", "drop-not-own")
		}
		return n
	}
	before := dropped()
	if !s.refused(ctx, l.client, hidden+":443") {
		t.Error("a service of g2 that is not exported answers")
	}
	if dropped() == before {
		t.Error("nothing was counted as drop-not-own at g2's gateways")
	}
}
