package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestMigrateSubmariner runs `pelago migrate submariner --switch` in two clusters at the same time,
// under traffic, and reports the interruption. It needs none of Submariner's images: pods that
// sleep stand for its components, and devices and routes of the names, numbers and addresses of its
// cable driver vxlan carry the traffic until its gateway pods end.
func TestMigrateSubmariner(t *testing.T) {
	s := bringUp(t, lab.Options{Name: *labName + "mig", Nodes: 2, Masquerade: lab.MasqueradeUplink}, walk.Walk{Plain: true, Wire: "vxlan"})
	ctx := t.Context()
	for _, image := range []string{"pelago.tar", "whereami.tar"} {
		must(t, s.Lab.LoadImage(ctx, filepath.Join(s.Images, image)))
	}
	_, err := s.Pelago(ctx, "deploy-broker", "--context", "hub", "--auto-accept")
	must(t, err)
	must(t, s.Apply(ctx, "hub", s.submarinerBroker(t)))
	for _, cluster := range s.Members() {
		s.submariner(t, cluster)
	}
	l := s.makeLoad(t, s.last(t, "g1"), s.last(t, "g2"))
	l.web = s.serviceIP(t, "web")
	exports := ""
	for _, service := range []string{"web", "sink"} {
		exports += fmt.Sprintf("---\napiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\nmetadata: {name: %s, namespace: load}\n", service)
	}
	must(t, s.Apply(ctx, "g2", exports))
	pod := s.kubectl(t, "g2", "-n", loadNamespace, "get", "pod", "sink", "-o", "jsonpath={.status.podIP}")
	within(t, func() error {
		_, err := s.Ask(ctx, l.client, l.web.String())
		return err
	})

	migrate := func(cluster string, more ...string) error {
		_, err := s.Pelago(ctx, append([]string{"migrate", "submariner", "--context", cluster, "--broker-context", "hub", "--broker-namespace", oldBroker, "--hub", "broker-info.subm"}, more...)...)
		return err
	}
	for _, cluster := range s.Members() {
		must(t, migrate(cluster, "--prepare"))
	}
	datagrams := s.ping(t, l.client, 100, pod+":7")
	toService := s.hold(t, l.client, 20, l.web.String()+":80")
	toPod := s.hold(t, l.client, 20, s.kubectl(t, "g2", "-n", loadNamespace, "get", "pods", "-l", "app=web", "-o", "jsonpath={.items[0].status.podIP}")+":80")
	var all sync.WaitGroup
	for _, cluster := range s.Members() {
		all.Go(func() {
			if err := migrate(cluster, "--switch"); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	within(t, func() error {
		_, err := s.Ask(ctx, l.client, l.web.String())
		return err
	})
	nothingLost(t, s.ping(t, l.client, 100, pod+":7")) // once it has an answer
	p, service, direct := finish[pings](t, datagrams), finish[held](t, toService), finish[held](t, toPod)
	t.Logf("interruption of %.1f s: datagrams %d to %d of %d lost; of 20 connections to a ClusterIP %d broken, of 20 to a pod %d",
		p.LongestGapMs/1000, p.FirstLost, p.LastLost, p.Sent, len(service.Broken), len(direct.Broken))
	for _, cluster := range s.Members() {
		for _, node := range s.nodes(t, cluster) {
			if out := s.node(t, node, "ip", "-o", "link"); strings.Contains(out, "vx-submariner") || strings.Contains(out, "vxlan-tunnel") || !strings.Contains(out, "pelago0") {
				t.Errorf("devices of %s:\n%s", node, out)
			}
		}
	}
	must(t, s.Connected(ctx))
}

const oldBroker = "submariner-k8s-broker-old"

// submarinerBroker are the objects at Submariner's broker.
func (s *clusterset) submarinerBroker(t *testing.T) string {
	t.Helper()
	text := fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: submariner-globalnet-info, namespace: %[1]s}
data: {globalnetEnabled: "false", clusterinfo: "[]"}
`, oldBroker)
	for _, cluster := range s.Members() {
		text += fmt.Sprintf(`---
apiVersion: submariner.io/v1
kind: Cluster
metadata: {name: %[2]s, namespace: %[1]s}
spec: {cluster_id: %[2]s, color_codes: [blue], cluster_cidr: ["%[3]s"], service_cidr: ["%[4]s"], global_cidr: []}
---
apiVersion: submariner.io/v1
kind: Endpoint
metadata: {name: %[2]s-cable, namespace: %[1]s}
spec: {cluster_id: %[2]s, cable_name: cable-%[2]s, hostname: %[2]s-n1, subnets: ["%[3]s", "%[4]s"], private_ip: %[5]s, nat_enabled: false, backend: vxlan}
`, oldBroker, cluster, s.Pods(cluster), s.Services(cluster), s.address(t, cluster, 0))
	}
	return text
}

// address is that of a cluster's node on the underlay, by its index.
func (s *clusterset) address(t *testing.T, cluster string, index int) string {
	t.Helper()
	c, err := s.Lab.Plan().Cluster(cluster)
	must(t, err)
	return c.Nodes[index].Address.String()
}

// submarinerComponent takes kind, name, a label of its nodes and the image's command.
const submarinerComponent = `---
apiVersion: apps/v1
kind: %[1]s
metadata: {name: %[2]s, namespace: submariner-operator}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template:
    metadata: {labels: {app: %[2]s}}
    spec:
      hostNetwork: true
      nodeSelector: {%[3]s}
      containers:
      - name: main
        image: localhost/pelago:dev
        imagePullPolicy: IfNotPresent
        command: [sh, -c, "%[4]s"]
        securityContext: {privileged: true}
`

// submariner makes Submariner's objects in a cluster, and its data path on the nodes: a cable
// between the first nodes, an overlay from the second node to the first.
func (s *clusterset) submariner(t *testing.T, cluster string) {
	t.Helper()
	crds, err := manifests.MemberCRDs()
	must(t, err)
	var text strings.Builder
	for _, u := range crds {
		if !strings.HasSuffix(u.GetName(), ".multicluster.x-k8s.io") && !strings.HasSuffix(u.GetName(), ".submariner.io") {
			continue
		}
		line, err := json.Marshal(u)
		must(t, err)
		fmt.Fprintf(&text, "---\n%s\n", line)
	}
	definition, err := os.ReadFile(absolute(t, "../../deploy/crds/submariner.io_submariners.yaml"))
	must(t, err)
	text.Write(definition)
	text.WriteString("---\napiVersion: v1\nkind: Namespace\nmetadata: {name: submariner-operator}\n")
	const sleep = "sleep infinity & wait"
	for _, name := range []string{"submariner-operator", "submariner-lighthouse-agent"} {
		fmt.Fprintf(&text, submarinerComponent, "Deployment", name, "", sleep)
	}
	fmt.Fprintf(&text, submarinerComponent, "DaemonSet", "submariner-routeagent", "", "trap exit TERM; "+sleep)
	fmt.Fprintf(&text, submarinerComponent, "DaemonSet", "submariner-gateway", `submariner.io/gateway: "true"`, "trap 'ip link del vxlan-tunnel; exit' TERM; "+sleep)
	must(t, s.Apply(t.Context(), cluster, text.String()))
	s.kubectl(t, cluster, "wait", "--for=condition=Established", "crd", "--all", walk.WaitFlag)
	must(t, s.Apply(t.Context(), cluster, fmt.Sprintf(`
apiVersion: submariner.io/v1alpha1
kind: Submariner
metadata: {name: submariner, namespace: submariner-operator}
spec: {clusterID: %s, cableDriver: vxlan, clusterCIDR: %s, serviceCIDR: %s, natEnabled: false}
`, cluster, s.Pods(cluster), s.Services(cluster))))
	nodes := s.nodes(t, cluster)
	s.kubectl(t, cluster, "label", "node", nodes[0], "submariner.io/gateway=true")
	for _, d := range []string{"deployment/submariner-operator", "daemonset/submariner-routeagent", "daemonset/submariner-gateway"} {
		s.kubectl(t, cluster, "-n", "submariner-operator", "rollout", "status", d, walk.WaitFlag)
	}

	other := map[string]string{"g1": "g2", "g2": "g1"}[cluster]
	gateway, plain, remote := s.address(t, cluster, 0), s.address(t, cluster, 1), s.address(t, other, 0)
	ip := func(node, line string) { s.node(t, node, append([]string{"ip"}, strings.Fields(line)...)...) }
	// within is an address of Submariner's networks on its devices: the first octet of the node's
	// address is replaced.
	within := func(first, address string) string {
		_, rest, _ := strings.Cut(address, ".")
		return first + "." + rest
	}
	overlay := func(node, own, peer string) {
		ip(node, "link add vx-submariner type vxlan id 100 dstport 4800 local "+own+" remote "+peer)
		ip(node, "addr add "+within("240", own)+"/8 dev vx-submariner")
		ip(node, "link set vx-submariner up")
	}
	overlay(nodes[0], gateway, plain)
	overlay(nodes[1], plain, gateway)
	ip(nodes[0], "link add vxlan-tunnel type vxlan id 1000 dstport 4500 local "+gateway+" remote "+remote)
	ip(nodes[0], "addr add "+within("241", gateway)+"/8 dev vxlan-tunnel")
	ip(nodes[0], "link set vxlan-tunnel up")
	ip(nodes[0], "rule add from all lookup 100 pref 100")
	for _, subnet := range []string{s.Pods(other), s.Services(other)} {
		ip(nodes[0], "route add "+subnet+" via "+within("241", remote)+" dev vxlan-tunnel table 100")
		ip(nodes[1], "route add "+subnet+" via "+within("240", gateway)+" dev vx-submariner")
	}
	for _, node := range nodes {
		s.node(t, node, "sysctl", "-qw", "net.ipv4.conf.vx-submariner.rp_filter=2")
	}
	s.node(t, nodes[0], "sysctl", "-qw", "net.ipv4.conf.vxlan-tunnel.rp_filter=2")
}
