package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

const loadNamespace = "load"

// load are the servers and clients of the traffic that tests count: in g2 the service web (HTTP,
// four pods on any node) and the service sink (UDP echo on port 7, iperf3 on 5201; one pod on the
// last node, which is no gateway); in g1, on the last node, which is no gateway either, three
// clients.
type load struct {
	client walk.Pod // an ordinary pod
	other  walk.Pod // another one
	host   walk.Pod // in the node's network

	clientNode, sinkNode string
	// web and sink are the services' global ingress IPs, or without globalnet their ClusterIPs.
	web, sink netip.Addr
}

const loadServers = `
apiVersion: v1
kind: Namespace
metadata: {name: load}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: load}
spec:
  replicas: 4
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: http
        image: localhost/whereami:dev
        imagePullPolicy: IfNotPresent
        env:
        - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        readinessProbe: {httpGet: {path: /healthz, port: 80}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: load}
spec:
  selector: {app: web}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Pod
metadata: {name: sink, namespace: load, labels: {app: sink}}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 1
  # Each duplicate is reported at once: kernels from 6.7 on otherwise merge some reports while iperf3 reads.
  initContainers:
  - name: answers
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [sh, -c, "for s in tcp_backlog_ack_defer tcp_comp_sack_nr; do f=/proc/sys/net/ipv4/$s; [ ! -e $f ] || echo 0 > $f; done"]
    securityContext: {privileged: true}
  containers:
  - name: echo
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [whereami, echo]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
  - {name: iperf, image: localhost/whereami:dev, imagePullPolicy: IfNotPresent, command: [iperf3, --server]}
---
apiVersion: v1
kind: Service
metadata: {name: sink, namespace: load}
spec:
  selector: {app: sink}
  ports:
  - {name: echo, port: 7, protocol: UDP}
  - {name: iperf, port: 5201}
`

const loadClients = `
apiVersion: v1
kind: Namespace
metadata: {name: load}
`

// loadClient takes name, node and whether it is in the node's network.
const loadClient = `---
apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: load}
spec:
  nodeName: %s
  hostNetwork: %t
  terminationGracePeriodSeconds: 1
  containers:
  - name: client
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    command: [sleep, infinity]
    securityContext: {capabilities: {add: [NET_ADMIN]}}
`

// needLoad creates the workload on the last nodes and exports its services, once in a clusterset.
func (s *clusterset) needLoad(t *testing.T) load {
	t.Helper()
	return s.needLoadOn(t, s.last(t, "g1"), s.last(t, "g2"))
}

// needLoadOn is needLoad with the nodes of the clients and of the sink.
func (s *clusterset) needLoadOn(t *testing.T, clientNode, sinkNode string) load {
	t.Helper()
	if s.load.client.Name != "" {
		return *s.load
	}
	ctx := t.Context()
	l := s.makeLoad(t, clientNode, sinkNode)
	for _, service := range []string{"web", "sink"} {
		_, err := s.Pelago(ctx, "export", "service", "--context", "g2", "--namespace", loadNamespace, service)
		must(t, err)
		s.kubectl(t, "g2", "-n", loadNamespace, "wait", "serviceexport/"+service, "--for=condition=Ready", walk.WaitFlag)
	}
	l.web, l.sink = s.serviceIP(t, "web"), s.serviceIP(t, "sink")
	for _, client := range []walk.Pod{l.client, l.other, l.host} {
		within(t, func() error {
			_, err := s.Ask(ctx, client, l.web.String())
			return err
		})
	}
	*s.load = l
	return l
}

// makeLoad creates the pods and services, with nothing exported.
func (s *clusterset) makeLoad(t *testing.T, clientNode, sinkNode string) load {
	t.Helper()
	ctx := t.Context()
	pod := func(name string) walk.Pod { return walk.Pod{Cluster: "g1", Namespace: loadNamespace, Name: name} }
	l := load{client: pod("client"), other: pod("other"), host: pod("host"), clientNode: clientNode, sinkNode: sinkNode}
	must(t, s.Apply(ctx, "g2", fmt.Sprintf(loadServers, l.sinkNode)))
	clients := loadClients
	for _, p := range []walk.Pod{l.client, l.other, l.host} {
		clients += fmt.Sprintf(loadClient, p.Name, l.clientNode, p == l.host)
	}
	must(t, s.Apply(ctx, "g1", clients))
	s.kubectl(t, "g2", "-n", loadNamespace, "rollout", "status", "deployment/web", walk.WaitFlag)
	s.kubectl(t, "g2", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/sink", walk.WaitFlag)
	s.kubectl(t, "g1", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod", "--all", walk.WaitFlag)
	return l
}

// last is the last node of a cluster.
func (s *clusterset) last(t *testing.T, cluster string) string {
	t.Helper()
	nodes := s.nodes(t, cluster)
	return nodes[len(nodes)-1]
}

// serviceIP is the address of a service of the load for the other cluster.
func (s *clusterset) serviceIP(t *testing.T, service string) netip.Addr {
	t.Helper()
	from := []string{"globalingressip", service, "-o", "jsonpath={.status.allocatedIP}"}
	if s.Plain {
		from = []string{"service", service, "-o", "jsonpath={.spec.clusterIP}"}
	}
	text := s.kubectl(t, "g2", append([]string{"-n", loadNamespace, "get"}, from...)...)
	a, err := netip.ParseAddr(text)
	must(t, err)
	return a
}

// podsOf are the names of the running pods with a label, in g2's part of the load.
func (s *clusterset) podsOf(t *testing.T, label string) []string {
	t.Helper()
	return strings.Fields(s.kubectl(t, "g2", "-n", loadNamespace, "get", "pods", "-l", label,
		"--field-selector", "status.phase=Running", "-o", "jsonpath={.items[*].metadata.name}"))
}

// refused reports whether a request from a pod gets no answer.
func (s *clusterset) refused(ctx context.Context, from walk.Pod, host string) bool {
	_, err := s.Ask(ctx, from, host)
	return err != nil
}

// needHeadless makes the walk-through's headless service in g2 and returns the addresses of its
// pods for g1.
func (s *clusterset) needHeadless(t *testing.T, from walk.Pod) []netip.Addr {
	t.Helper()
	must(t, s.Workload(t.Context(), "g2"))
	must(t, s.Export(t.Context(), "g2", walk.HeadlessName))
	addresses, err := s.Resolve(t.Context(), from, "g2."+walk.HeadlessName+".sample.svc.clusterset.local", 3, s.ShownPods("g2"))
	must(t, err)
	return addresses
}
