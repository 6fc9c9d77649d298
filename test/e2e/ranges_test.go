package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/pelago-net/pelago/test/e2e/walk"
	"github.com/pelago-net/pelago/test/lab"
)

// TestRanges: without globalnet, g2 joins while it has one node, with the range of that node alone,
// as is discovered on k3s without its annotations.
func TestRanges(t *testing.T) {
	s := bringUp(t, lab.Options{Name: *labName + "rng", Nodes: 3}, walk.Walk{Plain: true, Gateways: 2, Wire: "vxlan"})
	if *keep && s.joined(t) {
		_, err := s.Pelago(t.Context(), "deploy-broker", "--context", "hub", "--auto-accept") // writes broker-info.subm
		must(t, err)
	} else {
		s.joinOneNode(t)
	}
	must(t, s.Connected(t.Context()))
	s.run(t, "a cluster grows", testGrowth)
	s.run(t, "ranges with what a cluster needs", testNeededAddresses)
}

// firstRange is the pod range of g2's first node.
const firstRange = "10.8.1.0/24"

func (s *clusterset) joinOneNode(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, image := range []string{"pelago.tar", "whereami.tar"} {
		must(t, s.Lab.LoadImage(ctx, filepath.Join(s.Images, image)))
	}
	for _, node := range []string{"g2-n2", "g2-n3"} {
		s.retire(t, node)
	}
	s.kubectl(t, "g2", "-n", "kube-system", "rollout", "status", "deployment/coredns", walk.WaitFlag)
	_, err := s.Pelago(ctx, "deploy-broker", "--context", "hub", "--auto-accept")
	must(t, err)
	must(t, s.Join(ctx, "g1"))
	must(t, s.joinRanges(ctx, firstRange))
}

// joinRanges joins g2 with pod ranges, also if they lack running pods.
func (s *clusterset) joinRanges(ctx context.Context, ranges ...string) error {
	_, err := s.Pelago(ctx, "join", "broker-info.subm", "--context", "g2", "--clusterid", "g2", "--clustercidr", strings.Join(ranges, ","),
		"--gateway-node", "g2-n1", "--cable-driver", "vxlan", "--yes")
	return err
}

// grownServices are services over the pods of new nodes, and one of g1.
const grownServices = `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: load}
spec:
  selector: {of: load}
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: %[1]s-pods, namespace: load}
spec:
  clusterIP: None
  selector: {of: load}
  ports: [{port: 80}]
`

// testGrowth: under traffic, two nodes join g2 with pods outside of the registered range. They are
// reported, and not published at a node's address, until a join with a range that contains all.
func testGrowth(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoadOn(t, "g1-n3", "g2-n1")
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")
	for _, node := range []string{"g2-n2", "g2-n3"} {
		must(t, s.register(ctx, node, ""))
		s.boot(t, node)
	}
	grown := []walk.Pod{s.serve(t, "grown-2", "g2-n2"), s.serve(t, "grown-3", "g2-n3")}
	s.serve(t, "back", "g1-n2")
	for cluster, service := range map[string]string{"g2": "grown", "g1": "back"} {
		s.applyQuietly(t, cluster, fmt.Sprintf(grownServices, service))
		for _, name := range []string{service, service + "-pods"} {
			_, err := s.Pelago(ctx, "export", "service", "--context", cluster, "--namespace", loadNamespace, name)
			must(t, err)
		}
	}
	addresses := map[string]string{}
	for _, pod := range grown {
		node := strings.Replace(pod.Name, "grown-", "g2-n", 1)
		addresses[pod.Name] = s.kubectl(t, "g2", "-n", loadNamespace, "get", "pod", pod.Name, "-o", "jsonpath={.status.podIP}")
		if netip.MustParsePrefix(firstRange).Contains(netip.MustParseAddr(addresses[pod.Name])) {
			t.Fatalf("pod %s on %s has %s, of the range of the first node", pod.Name, node, addresses[pod.Name])
		}
		within(t, func() error {
			condition := s.kubectl(t, "g2", "get", "nodeindex", node, "-o", `jsonpath={.status.conditions[?(@.type=="PodRanges")]}`)
			if !strings.Contains(condition, `"Outgrown"`) || !strings.Contains(condition, firstRange) || !strings.Contains(condition, "--clustercidr") {
				return fmt.Errorf("condition of %s: %s", node, condition)
			}
			events := s.kubectl(t, "g2", "-n", loadNamespace, "get", "events", "--field-selector", "reason=NotConnected,involvedObject.name="+pod.Name,
				"-o", "jsonpath={.items[*].message}")
			if !strings.Contains(events, "--clustercidr") {
				return fmt.Errorf("Events on pod %s: %q", pod.Name, events)
			}
			return nil
		})
	}
	within(t, func() error {
		conditions := s.kubectl(t, "g2", "-n", loadNamespace, "get", "serviceexport", "grown-pods", "-o", "jsonpath={.status.conditions[*].message}")
		if !strings.Contains(conditions, "is outside the cluster's pod ranges") {
			return fmt.Errorf("conditions of the export of the new pods: %q", conditions)
		}
		return nil
	})
	if got := s.kubectl(t, "g1", "-n", loadNamespace, "get", "endpointslices", "-l", "multicluster.kubernetes.io/service-name=grown-pods",
		"-o", "jsonpath={.items[*].endpoints[*].addresses[*]}"); got != "" {
		t.Errorf("g1 has the addresses %s of pods that it does not reach", got)
	}
	// A range that lacks the former one is refused, and changes nothing.
	if err := s.joinRanges(ctx, "10.8.2.0/23"); err == nil || !strings.Contains(err.Error(), firstRange) {
		t.Errorf("join with a range without the former one: %v, want an error that names %s", err, firstRange)
	}

	begin := time.Now()
	must(t, s.joinRanges(ctx, s.Pods("g2")))
	t.Logf("join with %s took %.1f s", s.Pods("g2"), time.Since(begin).Seconds())
	for pod, address := range addresses {
		took := within(t, func() error {
			a, err := s.Ask(ctx, l.client, address)
			if err == nil && (a.Pod != pod || a.Source.String() == "") {
				err = fmt.Errorf("%s is answered by %s", address, a.Pod)
			}
			return err
		})
		t.Logf("pod %s is reached %.1f s after the join has ended", pod, took.Seconds())
	}
	ip := s.kubectl(t, "g2", "-n", loadNamespace, "get", "service", "grown", "-o", "jsonpath={.spec.clusterIP}")
	must(t, s.ReachesAll(ctx, l.client, ip, len(grown)))
	within(t, func() error {
		got := s.kubectl(t, "g1", "-n", loadNamespace, "get", "endpointslices", "-l", "multicluster.kubernetes.io/service-name=grown-pods",
			"-o", "jsonpath={.items[*].endpoints[*].addresses[*]}")
		for pod, address := range addresses {
			if !strings.Contains(got, address) {
				return fmt.Errorf("g1 has the addresses %q, without %s of %s", got, address, pod)
			}
		}
		return nil
	})
	back := s.kubectl(t, "g1", "-n", loadNamespace, "get", "service", "back", "-o", "jsonpath={.spec.clusterIP}")
	for _, pod := range grown {
		must(t, s.ReachesAll(ctx, pod, back, 1))
	}
	for _, node := range s.nodes(t, "g2") {
		within(t, func() error {
			if status := s.kubectl(t, "g2", "get", "nodeindex", node, "-o", `jsonpath={.status.conditions[?(@.type=="PodRanges")].status}`); status != "True" {
				return fmt.Errorf("condition PodRanges of %s is %q", node, status)
			}
			return nil
		})
	}
	s.pass(t, 2000)
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}

var (
	clustersKind  = schema.GroupVersionResource{Group: "submariner.io", Version: "v1", Resource: "clusters"}
	endpointsKind = schema.GroupVersionResource{Group: "submariner.io", Version: "v1", Resource: "endpoints"}
)

// neededBinding is the binding of the hub's policy about ranges with needed addresses.
const neededBinding = "pelago-clusters-needed"

// forged is the cluster whose objects are forged; unknownGateway is where its gateway would be.
const forged, unknownGateway = "g9", "172.31.200.11"

// testNeededAddresses: under traffic, ranges with addresses of g1's API server, resolver and node
// are refused to g2 by join and the hub, and to a forged cluster by g1.
func testNeededAddresses(t *testing.T, s *clusterset) {
	ctx := t.Context()
	l := s.needLoadOn(t, "g1-n3", "g2-n1")
	g1, err := s.Lab.Plan().Cluster("g1")
	must(t, err)
	node, err := s.Lab.Plan().Node("g1-n3")
	must(t, err)
	needed := map[string]netip.Addr{"API server": g1.ControlPlane, "resolver": g1.Router, "node": node.Address}
	config, err := s.Lab.RESTConfig("hub")
	must(t, err)
	admin, err := dynamic.NewForConfig(config)
	must(t, err)
	member, err := dynamic.NewForConfig(s.atHub(t, "g2"))
	must(t, err)
	at := func(c dynamic.Interface, kind schema.GroupVersionResource) dynamic.ResourceInterface {
		return c.Resource(kind).Namespace(brokerNamespace)
	}
	registered := func() string {
		return s.kubectl(t, "hub", "-n", brokerNamespace, "get", "clusters.submariner.io", "g2", "-o", "jsonpath={.spec.cluster_cidr}")
	}
	connections := s.hold(t, l.client, 100, l.web.String()+":80")
	datagrams := s.ping(t, l.client, 1000, l.sink.String()+":7")

	must(t, s.Join(ctx, "g1")) // as an upgrade does: it publishes what the nodes have reported meanwhile
	before := registered()
	for what, address := range needed {
		bad := address.String() + "/32"
		if err := s.joinRanges(ctx, s.Pods("g2"), bad); err == nil || !strings.Contains(err.Error(), address.String()) || !strings.Contains(err.Error(), "g1") {
			t.Errorf("join with the address of a %s of g1: %v, want an error that names %s and g1", what, err, address)
		}
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"cluster_cidr": []string{s.Pods("g2"), bad}}})
		must(t, err)
		for who, c := range map[string]dynamic.Interface{"an administrator": admin, "g2": member} {
			_, err := at(c, clustersKind).Patch(ctx, "g2", "application/merge-patch+json", patch, metav1.PatchOptions{})
			if err == nil || !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%s sets the address of a %s of g1 as a range of g2: %v, want a refusal", who, what, err)
			}
		}
	}
	if after := registered(); after != before {
		t.Fatalf("the hub has the ranges %s of g2 after joins that were refused, want %s", after, before)
	}

	endpoints, err := at(admin, endpointsKind).List(ctx, metav1.ListOptions{LabelSelector: "submariner-io/clusterID=g2"})
	must(t, err)
	if len(endpoints.Items) != 1 {
		t.Fatalf("the hub has %d Endpoints of g2, want 1", len(endpoints.Items))
	}
	// An Endpoint of g2 itself, with g2's credential: of its own ranges only.
	own := endpoints.Items[0].DeepCopy()
	must(t, unstructured.SetNestedStringSlice(own.Object, []string{s.Pods("g2"), g1.ControlPlane.String() + "/32"}, "spec", "subnets"))
	if _, err := at(member, endpointsKind).Update(ctx, own, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("g2 publishes a range with g1's API server in its Endpoint: %v, want 403", err)
	}
	ranges := []string{netip.PrefixFrom(g1.ControlPlane, 29).Masked().String(), node.Address.String() + "/32"}
	if err := s.forge(t, at(member, clustersKind), at(member, endpointsKind), endpoints.Items[0], ranges); !apierrors.IsForbidden(err) {
		t.Errorf("g2 creates the Cluster %s: %v, want 403", forged, err)
	}

	// Past the policy.
	t.Cleanup(func() {
		ctx := context.Background()
		s.removeForged(t)
		if _, err := s.Pelago(ctx, "deploy-broker", "--context", "hub", "--auto-accept"); err != nil {
			t.Error(err)
		}
	})
	s.kubectl(t, "hub", "delete", "validatingadmissionpolicybinding", neededBinding)
	// A range in the Cluster of g2 itself, which g1 has accepted before: it is used without that.
	claim := func(ranges ...string) {
		t.Helper()
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"cluster_cidr": ranges}})
		must(t, err)
		within(t, func() error { // the API server reads policies from a cache
			_, err := at(admin, clustersKind).Patch(ctx, "g2", "application/merge-patch+json", patch, metav1.PatchOptions{})
			return err
		})
	}
	peerIs := func(words ...string) {
		t.Helper()
		within(t, func() error {
			condition := s.peerCondition(t, "g2")
			for _, w := range words {
				if !strings.Contains(condition, w) {
					return fmt.Errorf("condition of Peer g2 in g1 lacks %s: %s", w, condition)
				}
			}
			return nil
		})
	}
	claim(s.Pods("g2"), node.Address.String()+"/32")
	peerIs(`"True"`, `"RangeLeftOut"`, node.Address.String()+"/32")
	t.Logf("g1: %s", s.peerCondition(t, "g2"))
	s.works(t, needed)
	s.pass(t, 5000)
	claim(s.Pods("g2"))
	peerIs(`"True"`, `"Accepted"`, "gateways are used")

	// Objects of a cluster that has not joined.
	within(t, func() error {
		return s.forge(t, at(admin, clustersKind), at(admin, endpointsKind), endpoints.Items[0], ranges)
	})
	within(t, func() error {
		condition := s.peerCondition(t, forged)
		if !strings.Contains(condition, `"OverlappingCIDR"`) || !strings.Contains(condition, ranges[0]) && !strings.Contains(condition, ranges[1]) {
			return fmt.Errorf("condition of Peer %s in g1: %s", forged, condition)
		}
		return nil
	})
	t.Logf("g1: %s", s.peerCondition(t, forged))
	s.works(t, needed)
	s.pass(t, 5000)
	s.works(t, needed)

	// As if the agent had accepted it: the nodes protect themselves.
	s.kubectl(t, "g1", "-n", "pelago-system", "scale", "deployment/pelago-agent", "--replicas=0")
	s.kubectl(t, "g1", "-n", "pelago-system", "wait", "--for=delete", "pod", "-l", "app=pelago-agent", walk.WaitFlag)
	t.Cleanup(func() {
		if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "g1", "-n", "pelago-system", "scale", "deployment/pelago-agent", "--replicas=2"); err != nil {
			t.Error(err)
		}
	})
	s.kubectl(t, "g1", "patch", "peer", forged, "--subresource=status", "--type=merge", "-p",
		`{"status":{"conditions":[{"type":"Accepted","status":"True","reason":"Accepted","message":"forged","lastTransitionTime":"2026-11-29T00:00:00Z"}]}}`)
	for _, n := range s.nodes(t, "g1") {
		within(t, func() error { // a part of the range without what the node needs
			if len(s.routesInto(t, n, g1.Subnet)) == 0 {
				return fmt.Errorf("%s routes nothing of %s", n, ranges)
			}
			return nil
		})
	}
	for _, n := range s.nodes(t, "g1") {
		t.Logf("%s routes %s", n, s.routesInto(t, n, g1.Subnet))
	}
	s.works(t, needed)
	s.pass(t, 5000)
	s.works(t, needed)

	// The forged objects are deleted.
	s.removeForged(t)
	s.kubectl(t, "g1", "-n", "pelago-system", "scale", "deployment/pelago-agent", "--replicas=2")
	took := within(t, func() error {
		if peers := s.kubectl(t, "g1", "get", "peers", "-o", "jsonpath={.items[*].metadata.name}"); peers != "g2" {
			return fmt.Errorf("g1 has the Peers %s", peers)
		}
		for _, n := range s.nodes(t, "g1") {
			if routes := s.routesInto(t, n, g1.Subnet); len(routes) > 0 {
				return fmt.Errorf("%s routes %s to another cluster", n, routes)
			}
		}
		return nil
	})
	t.Logf("g1 has no trace of %s %.1f s after the agent's start", forged, took.Seconds())
	s.works(t, needed)
	onlyBrokenOf(t, connections)
	nothingLost(t, datagrams)
}

// works fails the test if a node of g1 is not Ready, or routes a needed address to another cluster.
func (s *clusterset) works(t *testing.T, needed map[string]netip.Addr) {
	t.Helper()
	must(t, s.allReady(t, "g1"))
	for _, n := range s.nodes(t, "g1") {
		for what, address := range needed {
			if route := s.node(t, n, "ip", "route", "get", address.String()); strings.Contains(route, "pelago0") {
				t.Errorf("%s reaches the %s by %s", n, what, route)
			}
		}
	}
}

// routesInto are the destinations inside a prefix that a node routes to other clusters.
func (s *clusterset) routesInto(t *testing.T, node string, prefix netip.Prefix) (to []string) {
	t.Helper()
	for line := range strings.Lines(s.node(t, node, "ip", "route", "show", "table", "4800")) {
		address, _, _ := strings.Cut(strings.Fields(line)[0], "/")
		if a, err := netip.ParseAddr(address); err == nil && prefix.Contains(a) {
			to = append(to, strings.Fields(line)[0])
		}
	}
	return to
}

func (s *clusterset) peerCondition(t *testing.T, peer string) string {
	t.Helper()
	return s.kubectl(t, "g1", "get", "peer", peer, "--ignore-not-found", "-o", `jsonpath={.status.conditions[?(@.type=="Accepted")]}`)
}

// forge creates a Cluster with ranges, and an Endpoint for it in the form of another.
func (s *clusterset) forge(t *testing.T, clusters, endpoints dynamic.ResourceInterface, like unstructured.Unstructured, ranges []string) error {
	t.Helper()
	cluster := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "submariner.io/v1", "kind": "Cluster",
		"metadata": map[string]any{"name": forged, "labels": map[string]any{"submariner-io/clusterID": forged}, "annotations": map[string]any{
			"pelago.io/cluster-uid": "forged", "pelago.io/cluster-index": "9", "pelago.io/fabric-cidr": "242.2.64.0/18"}},
		"spec": map[string]any{"cluster_id": forged, "color_codes": []any{}, "service_cidr": []any{}},
	}}
	must(t, unstructured.SetNestedStringSlice(cluster.Object, ranges, "spec", "cluster_cidr"))
	if _, err := clusters.Create(t.Context(), cluster, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	cable := "submariner-cable-" + forged + "-" + strings.ReplaceAll(unknownGateway, ".", "-")
	endpoint := like.DeepCopy()
	for _, field := range []string{"resourceVersion", "uid", "creationTimestamp", "generation", "managedFields", "ownerReferences"} {
		unstructured.RemoveNestedField(endpoint.Object, "metadata", field)
	}
	endpoint.SetName(forged + "-" + cable)
	endpoint.SetLabels(map[string]string{"submariner-io/clusterID": forged})
	for field, value := range map[string]string{"cluster_id": forged, "cable_name": cable, "hostname": forged + "-n1", "private_ip": unknownGateway} {
		must(t, unstructured.SetNestedField(endpoint.Object, value, "spec", field))
	}
	must(t, unstructured.SetNestedStringSlice(endpoint.Object, ranges, "spec", "subnets"))
	settings, _, err := unstructured.NestedStringMap(endpoint.Object, "spec", "backend_config")
	must(t, err)
	for key := range settings {
		switch key {
		case "cluster-index":
			settings[key] = "9"
		case "fabric-ip":
			settings[key] = "242.2.64.1"
		}
	}
	must(t, unstructured.SetNestedStringMap(endpoint.Object, settings, "spec", "backend_config"))
	if _, err := endpoints.Create(t.Context(), endpoint, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// removeForged deletes the forged objects at the hub. Clean-ups call it too.
func (s *clusterset) removeForged(t *testing.T) {
	t.Helper()
	for _, kind := range []string{"clusters.submariner.io", "endpoints.submariner.io"} {
		if _, err := s.Quietly(context.Background(), s.Lab.Kubectl(), "--context", "hub", "-n", brokerNamespace, "delete", kind, "-l", "submariner-io/clusterID="+forged); err != nil {
			t.Error(err)
		}
	}
}
