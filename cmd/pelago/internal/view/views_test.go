package view

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	clientfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/clusterdns"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/dump"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// testMember is a member with two gateways, joined to g2, of which one gateway answers.
func testMember(t *testing.T) Member {
	t.Helper()
	scheme, err := manifests.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	remote := func(host, ip string) submarinerv1.EndpointSpec {
		return submarinerv1.EndpointSpec{ClusterID: "g2", Hostname: host, PrivateIP: ip, Backend: "vxlan", Subnets: []string{"120.2.0.0/24"},
			BackendConfig: map[string]string{submarinerv1.BackendUDPPort: "4500"}}
	}
	gateway := func(name string, connections ...submarinerv1.Connection) *submarinerv1.Gateway {
		return &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: manifests.SystemNamespace},
			Status: submarinerv1.GatewayStatus{Version: "v1", HAStatus: submarinerv1.HAStatusActive, Connections: connections}}
	}
	up := submarinerv1.Connection{Status: submarinerv1.Connected, Endpoint: remote("g2-n1", "192.0.2.21"), UsingIP: "192.0.2.21",
		LatencyRTT: &submarinerv1.LatencyRTTSpec{Average: "1.2ms"}}
	down := submarinerv1.Connection{Status: submarinerv1.ConnectionError, StatusMessage: "no answer for 3 s", Endpoint: remote("g2-n2", "192.0.2.22"),
		UsingIP: "198.51.100.22", UsingNAT: true}
	endpoint := func(id string, spec submarinerv1.EndpointSpec) *submarinerv1.Endpoint {
		spec.ClusterID = id
		return &submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: id + "-" + spec.Hostname, Namespace: manifests.SystemNamespace}, Spec: spec}
	}
	workload := func(name string) (metav1.ObjectMeta, corev1.PodTemplateSpec) {
		return metav1.ObjectMeta{Name: name, Namespace: manifests.SystemNamespace},
			corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: name, Image: "registry.example:5000/pelago:v2"}}}}
	}
	deployment := func(name string) *appsv1.Deployment {
		meta, template := workload(name)
		return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Template: template}}
	}
	meta, template := workload(manifests.NodeDaemonSet)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{Architecture: "amd64"}}}
	pod := func(name, image string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: manifests.SystemNamespace, Labels: map[string]string{"app": manifests.NodeDaemonSet}},
			Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Image: image}}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	}
	var objs []client.Object
	public := func(node string, ip pelagov1alpha1.PublicIP) *pelagov1alpha1.NodeIndex {
		return &pelagov1alpha1.NodeIndex{ObjectMeta: metav1.ObjectMeta{Name: node}, Status: pelagov1alpha1.NodeIndexStatus{PublicIP: &ip}}
	}
	objs = append(objs, public("n1", pelagov1alpha1.PublicIP{Address: "203.0.113.1", Source: "external-ip:203.0.113.1"}),
		public("n2", pelagov1alpha1.PublicIP{Address: "203.0.113.2", Source: "api:ip.example.org", Message: "http: timeout"}))
	objs = append(objs, gateway("n2"), gateway("n1", down, up), endpoint("g2", remote("g2-n1", "192.0.2.21")),
		endpoint("g1", submarinerv1.EndpointSpec{Hostname: "n1", PrivateIP: "192.0.2.11", PublicIP: "203.0.113.1", Backend: "vxlan", Subnets: []string{"120.1.0.0/24"}}))
	return Member{
		Client: clientfake.NewClientBuilder().WithScheme(scheme).WithObjects(objs...).Build(),
		Typed: fake.NewClientset(node, &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Template: template}},
			deployment(manifests.AgentDeployment), deployment(manifests.DNSDeployment),
			&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "kindnet", Namespace: "kube-system"}},
			pod("a", "registry.example:5000/pelago:v2"), pod("b", "registry.example:5000/pelago:v1")),
	}
}

func TestTables(t *testing.T) {
	c := config.Config{ClusterID: "g1", ClusterIndex: 1, Mode: config.ModeSubmariner, PodCIDRs: prefixes("10.7.0.0/16"),
		ExternalCIDRs: prefixes("192.0.2.0/25"), ServiceCIDRs: prefixes("10.77.0.0/16"), GlobalCIDRs: prefixes("120.1.0.0/24"), FabricCIDR: prefixes("241.0.0.0/8")[0]}
	for name, want := range map[string]string{
		"connections": "" +
			"GATEWAY   CLUSTER   REMOTE IP       NAT   CABLE DRIVER   SUBNETS        STATUS      RTT avg.   LOCAL GATEWAY   MESSAGE\n" +
			"g2-n1     g2        192.0.2.21      no    vxlan          120.2.0.0/24   connected   1.2ms      n1              \n" +
			"g2-n2     g2        198.51.100.22   yes   vxlan          120.2.0.0/24   error                  n1              no answer for 3 s\n\n",
		"endpoints": "" +
			"CLUSTER   ENDPOINT IP   PUBLIC IP     CABLE DRIVER   TYPE     HOSTNAME   PORT   TUNNELS   SUBNETS\n" +
			"g1        192.0.2.11    203.0.113.1   vxlan          local    n1                          120.1.0.0/24\n" +
			"g2        192.0.2.21                  vxlan          remote   g2-n1      4500             120.2.0.0/24\n\n",
		"networks": "" +
			"NETWORK PLUGIN   SERVICE CIDRS   CLUSTER CIDRS   GLOBAL CIDR    CLUSTERSET CIDR   CLUSTER INDEX   MODE         FABRIC CIDR   EXTERNAL CIDRS\n" +
			"kindnet          10.77.0.0/16    10.7.0.0/16     120.1.0.0/24                     1               submariner   241.0.0.0/8   192.0.2.0/25\n\n",
		"gateways": "" +
			"NODE   HA STATUS   SUMMARY                                  PUBLIC IP     SOURCE                               VERSION   FAILURE\n" +
			"n1     active      1 connections out of 2 are established   203.0.113.1   external-ip:203.0.113.1              v1        \n" +
			"n2     active      There are no connections                 203.0.113.2   api:ip.example.org (http: timeout)   v1        \n\n",
		"versions": "" +
			"COMPONENT      REPOSITORY                     CONFIGURED   RUNNING   ARCH\n" +
			"pelago-node    registry.example:5000/pelago   v2           v1, v2    amd64\n" +
			"pelago-agent   registry.example:5000/pelago   v2                     \n" +
			"pelago-dns     registry.example:5000/pelago   v2                     \n\n",
	} {
		for _, v := range Views {
			if v.Name != name {
				continue
			}
			tab, err := v.read(context.Background(), testMember(t), c)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := tab.Print(&out, true); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, out.String()); diff != "" {
				t.Errorf("%s: -want +got\n%s", name, diff)
			}
		}
	}
}

func TestOnlyGateway(t *testing.T) {
	m := testMember(t)
	if err := m.Client.Delete(t.Context(), &submarinerv1.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: "n2"}}); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(Views, func(v View) bool { return v.Name == "gateways" })
	table, err := Views[i].read(t.Context(), m, config.Config{ClusterID: "g1"})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := table.Print(&out, false); err != nil || !strings.Contains(out.String(), "it is the only one") {
		t.Errorf("with one gateway: %v\n%s", err, out.String())
	}
}

// TestClusterDNS: the states of a cluster's DNS, from nothing that can be changed to everything
// that forwards.
func TestClusterDNS(t *testing.T) {
	c := config.Config{ClusterID: "g1", CustomDomains: []string{"global.example"}, ClusterSetIPRange: prefixes("243.0.0.0/8")[0]}
	m := testMember(t)
	check := func(want string) {
		t.Helper()
		table, err := clusterDNS(t.Context(), m, c)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := table.Print(&out, true); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("-want +got\n%s", diff)
		}
	}
	make := func(obj client.Object) {
		t.Helper()
		if err := m.Client.Create(t.Context(), obj); err != nil {
			t.Fatal(err)
		}
	}
	corefile := func(name, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: name}, Data: map[string]string{"Corefile": text}}
	}
	check("No Service pelago-system/pelago-dns: install it with `pelago join`.\n\n")
	make(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: manifests.SystemNamespace, Name: manifests.DNSDeployment}, Spec: corev1.ServiceSpec{ClusterIP: "10.77.0.20"}})
	const block = "#pelago-start AUTO-GENERATED SECTION. DO NOT EDIT\nclusterset.local:53 global.example:53 243.in-addr.arpa:53 {\n    forward . 10.77.0.20\n}\n#pelago-end\n"
	check("The cluster's DNS is configured where pelago-agent does not write. In CoreDNS, add these lines to the Corefile:\n\n" + block + "\n\n")
	make(corefile("coredns", block+".:53 {\n}\n"))
	make(corefile("node-local-dns", ".:53 {\n}\n"))
	operator := clusterdns.NewOperator()
	operator.SetName(clusterdns.OperatorName)
	make(operator)
	const zones = "clusterset.local, global.example, 243.in-addr.arpa"
	check("CONFIGURATION                          NAME SERVER   FORWARDS   ZONES                                                MESSAGE\n" +
		"ConfigMap kube-system/coredns          10.77.0.20    yes        " + zones + "   \n" +
		"ConfigMap kube-system/node-local-dns   10.77.0.20    no         " + zones + "   ConfigMap kube-system/node-local-dns has no or another block: see the events of pelago-agent\n" +
		"DNS default of OpenShift               10.77.0.20    no         " + zones + "   spec.servers has no or another entry: see the events of pelago-agent\n\n")
}

func TestTunnelsShown(t *testing.T) {
	for want, e := range map[string]submarinerv1.EndpointSpec{
		"":  {Backend: "vxlan"},
		"1": {Backend: "wireguard"},
		"3": {Backend: "libreswan", BackendConfig: map[string]string{"tunnels": "3"}},
	} {
		if got := tunnels(e); got != want {
			t.Errorf("tunnels of %s: %q, want %q", e.Backend, got, want)
		}
	}
}

func TestSplitImage(t *testing.T) {
	for image, want := range map[string][2]string{
		"localhost/pelago:dev":               {"localhost/pelago", "dev"},
		"registry.example:5000/pelago":       {"registry.example:5000/pelago", "latest"},
		"registry.example:5000/pelago:v1":    {"registry.example:5000/pelago", "v1"},
		"registry.example/pelago@sha256:abc": {"registry.example/pelago", "sha256:abc"},
	} {
		repository, version := SplitImage(image)
		if got := [2]string{repository, version}; got != want {
			t.Errorf("%s: %q, want %q", image, got, want)
		}
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		out = append(out, netip.MustParsePrefix(text))
	}
	return out
}

func TestPrintServices(t *testing.T) {
	services := []Service{
		{"n1", dump.Service{Address: netip.MustParseAddrPort("120.2.0.20:80"), Protocol: "tcp", ClientIP: true,
			Weights: []dump.NodeWeight{{Node: 2, Share: 0.25}, {Node: 3, Share: 0.75}}}},
		{"n2", dump.Service{Address: netip.MustParseAddrPort("120.2.0.20:80"), Protocol: "tcp",
			Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.2.10:8080")}}},
	}
	var out bytes.Buffer
	if err := PrintServices(&out, "wide", services); err != nil {
		t.Fatal(err)
	}
	const want = `NODE   PROTO   ADDRESS         LOCAL BACKENDS   NODE WEIGHTS       AFFINITY
n1     tcp     120.2.0.20:80   -                2: 25 %, 3: 75 %   ClientIP
n2     tcp     120.2.0.20:80   10.7.2.10:8080   -                  none

`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

// A node that does not answer costs its own time only: the rows of the others come, in the order of
// the nodes, and the error names the node.
func TestEachNode(t *testing.T) {
	released := make(chan struct{})
	t.Cleanup(func() { close(released) })
	rows, err := eachNode(t.Context(), []string{"a", "b", "c", "d"}, 100*time.Millisecond, func(_ context.Context, node string) ([]string, error) {
		switch node {
		case "b":
			<-released // ignores its context
		case "c":
			return []string{"c1"}, errors.New("node c: cut off")
		}
		return []string{node + "1", node + "2"}, nil
	})
	if diff := cmp.Diff([]string{"a1", "a2", "c1", "d1", "d2"}, rows); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if err == nil || !strings.Contains(err.Error(), "node b: no answer within 100ms") || !strings.Contains(err.Error(), "node c: cut off") {
		t.Errorf("error %v", err)
	}
}
