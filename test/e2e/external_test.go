package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/pelago-net/pelago/test/e2e/walk"
)

// testExternal: a process on the hub's host, outside both clusters, is the only backend of two
// services of g2 without selector. Pods of g1 reach it by name; it sees the gateway of g2 that has
// the connection. With globalnet a host outside g2 reaches g1 by a gateway.
func testExternal(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoad(t)
	hub, err := s.Lab.Plan().Cluster("hub")
	must(t, err)
	two, err := s.Lab.Plan().Cluster("g2")
	must(t, err)
	must(t, s.Lab.Daemon("hub", "beside", "env", "POD_NAME=beside", filepath.Join(s.Images, "bin", "whereami"), "-listen", ":8089"))
	defer func() { must(t, s.Lab.EndDaemon("hub", "beside", syscall.SIGKILL)) }()
	must(t, s.Apply(ctx, "g2", fmt.Sprintf(besideServices, hub.ControlPlane, hub.ControlPlane)))
	names := []string{"beside.load.svc.clusterset.local:8089"}
	if !s.Plain { // without globalnet its range must have been declared when the cluster joined
		names = append(names, "vm.g2.beside-hosts.load.svc.clusterset.local:8089")
	}
	for _, name := range names {
		service := strings.TrimPrefix(strings.TrimSuffix(name, ".load.svc.clusterset.local:8089"), "vm.g2.")
		_, err := s.Pelago(ctx, "export", "service", "--context", "g2", "--namespace", loadNamespace, service)
		must(t, err)
		s.kubectl(t, "g2", "-n", loadNamespace, "wait", "serviceexport/"+service, "--for=condition=Ready", walk.WaitFlag)
	}
	gateways := []netip.Addr{two.Nodes[0].Address, two.Nodes[1].Address}
	reach := func(from walk.Pod, host string) error {
		a, err := s.Ask(ctx, from, host)
		if err == nil && (a.Pod != "beside" || !slices.Contains(gateways, a.Source)) {
			err = fmt.Errorf("%s is answered by %s, which sees %s; want beside to see one of %v", host, a.Pod, a.Source, gateways)
		}
		return err
	}
	for _, name := range names {
		host, _, _ := strings.Cut(name, ":")
		_, err := s.Resolve(ctx, l.client, host, 1, s.ShownServices("g2"))
		must(t, err)
		within(t, func() error { return reach(l.client, name) })
		for n := range 20 {
			if err := reach(l.client, name); err != nil {
				t.Errorf("connection %d: %v", n, err)
			}
		}
	}
	// The resolver of a node does not know the names.
	must(t, reach(l.host, netip.AddrPortFrom(s.serviceIP(t, "beside"), 8089).String()))
	if !s.Plain {
		s.externalHostReaches(t, two.ControlPlane, two.Nodes[0].Address)
	}
}

// externalHostReaches: g2 joins again with the range of a host, which reaches a service of g1 by a
// gateway and is shown as an egress IP.
func (s *clusterset) externalHostReaches(t *testing.T, host, gateway netip.Addr) {
	t.Helper()
	ctx := t.Context()
	must(t, s.Apply(ctx, "g1", nearService))
	s.kubectl(t, "g1", "-n", loadNamespace, "wait", "--for=condition=Ready", "pod/near", walk.WaitFlag)
	_, err := s.Pelago(ctx, "export", "service", "--context", "g1", "--namespace", loadNamespace, "near")
	must(t, err)
	s.kubectl(t, "g1", "-n", loadNamespace, "wait", "serviceexport/near", "--for=condition=Ready", walk.WaitFlag)
	address := s.kubectl(t, "g1", "-n", loadNamespace, "get", "globalingressip", "near", "-o", "jsonpath={.status.allocatedIP}")
	s.node(t, "g2", "ip", "route", "replace", address, "via", gateway.String())
	defer s.node(t, "g2", "ip", "route", "del", address)
	if out, err := s.Lab.Exec(ctx, "g2", "curl", "-sS", "--max-time", "3", "http://"+address+"/"); err == nil {
		t.Errorf("a host of no declared range is answered:\n%s", out)
	}
	declared := netip.PrefixFrom(host, 29).Masked().String()
	must(t, s.Join(ctx, "g2", "--external-cidr", declared))
	shown := netip.MustParsePrefix(walk.GlobalCIDR2)
	within(t, func() error {
		out, err := s.Lab.Exec(ctx, "g2", "curl", "-sS", "--max-time", "3", "http://"+address+"/")
		if err != nil {
			return err
		}
		_, source, _ := strings.Cut(out, "source: ")
		source, _, _ = strings.Cut(source, "\n")
		seen, err := netip.ParseAddrPort(source)
		if err != nil || !strings.Contains(out, "pod: near") || !shown.Contains(seen.Addr()) {
			return fmt.Errorf("%q, want pod near, which sees a source of %s", out, shown)
		}
		return nil
	})
}

// besideServices takes the address of the host, twice.
const besideServices = `
apiVersion: v1
kind: Service
metadata: {name: beside, namespace: load}
spec:
  ports: [{port: 8089}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: beside-1, namespace: load, labels: {kubernetes.io/service-name: beside}}
addressType: IPv4
ports: [{port: 8089, protocol: TCP}]
endpoints: [{addresses: [%s]}]
---
apiVersion: v1
kind: Service
metadata: {name: beside-hosts, namespace: load}
spec:
  clusterIP: None
  ports: [{port: 8089}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: beside-hosts-1, namespace: load, labels: {kubernetes.io/service-name: beside-hosts}}
addressType: IPv4
ports: [{port: 8089, protocol: TCP}]
endpoints: [{addresses: [%s], hostname: vm}]
`

const nearService = `
apiVersion: v1
kind: Pod
metadata: {name: near, namespace: load, labels: {app: near}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: http
    image: localhost/whereami:dev
    imagePullPolicy: IfNotPresent
    env:
    - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
---
apiVersion: v1
kind: Service
metadata: {name: near, namespace: load}
spec:
  selector: {app: near}
  ports: [{port: 80}]
`
