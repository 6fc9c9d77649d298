package node

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane"
)

var comparable = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

// world is cluster g1 with a gateway n1 and a plain node n2, joined to g2, seen from node `from`.
func world(from string) (Objects, Host) {
	objs := Objects{
		Name: from,
		Config: config.Config{
			ClusterID: "g1", ClusterIndex: 1, CablePort: 4500, CableDriver: "vxlan",
			GlobalCIDRs: []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")},
		},
		Nodes: []corev1.Node{node("n1", "172.31.1.11", true), node("n2", "172.31.1.12", false)},
		NodeIndexes: []pelagov1alpha1.NodeIndex{
			{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1}, Status: pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true}},
			{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 2}, Status: pelagov1alpha1.NodeIndexStatus{Ready: true}},
		},
		Peers: []pelagov1alpha1.Peer{peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)},
		PortBlocks: []pelagov1alpha1.PortBlock{
			block("120.1.0.1", 1024, "n1", pelagov1alpha1.BlockActive), block("120.1.0.2", 1024, "n2", pelagov1alpha1.BlockActive),
			block("120.1.0.2", 1280, "n2", pelagov1alpha1.BlockPending),
		},
		ClusterEgress: &submarinerv1.ClusterGlobalEgressIP{
			ObjectMeta: metav1.ObjectMeta{Name: submarinerv1.ClusterGlobalEgressIPName},
			Status:     submarinerv1.GlobalEgressIPStatus{AllocatedIPs: []string{"120.1.0.1", "120.1.0.2"}},
		},
		Services: map[types.NamespacedName]*corev1.Service{},
		Slices:   map[types.NamespacedName][]discoveryv1.EndpointSlice{},
		Pods:     []corev1.Pod{pod("web-1", from, "10.7.2.5")},
	}
	host := Host{
		Hops: map[netip.Addr]dataplane.Hop{
			ip("172.31.1.11"): {Address: ip("172.31.1.11"), Next: ip("172.31.1.11"), Ifindex: 2},
			ip("172.31.1.12"): {Address: ip("172.31.1.12"), Next: ip("172.31.1.12"), Ifindex: 2},
			ip("172.31.2.11"): {Address: ip("172.31.2.11"), Next: ip("172.31.1.1"), Ifindex: 2},
		},
		Devices:   map[netip.Addr]uint32{ip("10.7.2.5"): 3},
		Addresses: []netip.Addr{ip("10.7.2.1")},
		Overlay:   dataplane.Tokens{Current: 7}, Cable: dataplane.Tokens{Current: 9}, MTU: 1450,
	}
	return objs, host
}

func node(name, address string, gateway bool) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}
	if gateway {
		n.Labels[submarinerv1.LabelGateway] = "true"
	}
	return n
}

func peer(name string, accepted metav1.ConditionStatus, reason string) pelagov1alpha1.Peer {
	return pelagov1alpha1.Peer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: pelagov1alpha1.PeerSpec{
			ClusterIndex: 2, Subnets: []string{"120.2.0.0/24"},
			Gateways: []pelagov1alpha1.PeerGateway{{Name: name + "-n1", Address: "172.31.2.11", Port: 4500, Wire: "vxlan", NodeIndex: 1}},
		},
		Status: pelagov1alpha1.PeerStatus{Conditions: []metav1.Condition{{Type: pelagov1alpha1.PeerAccepted, Status: accepted, Reason: reason}}},
	}
}

func block(address string, first int32, owner string, state pelagov1alpha1.BlockState) pelagov1alpha1.PortBlock {
	name := strings.ReplaceAll(address, ".", "-") + "-" + owner
	return pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("block-" + string(state))},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: address, FirstPort: first, Node: owner, NodeUID: "uid-" + owner, State: state,
			Pool: pelagov1alpha1.EgressPool{Name: submarinerv1.ClusterGlobalEgressIPName},
		},
	}
}

func pod(name, nodeName, address string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: nodeName},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// export gives a service of two pods, one on each node, an ingress IP.
func export(objs *Objects, allocated metav1.ConditionStatus) {
	name := types.NamespacedName{Namespace: "sample", Name: "web"}
	objs.Services[name] = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	objs.Slices[name] = []discoveryv1.EndpointSlice{{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			endpointOf("web-1", "n2", "10.7.2.5", true), endpointOf("web-2", "n1", "10.7.1.5", true), endpointOf("web-3", "n1", "10.7.1.6", false),
		},
	}}
	objs.IngressIPs = append(objs.IngressIPs, submarinerv1.GlobalIngressIP{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web", UID: "ingress-web"},
		Spec:       submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.ClusterIPService, ServiceRef: &corev1.LocalObjectReference{Name: "web"}},
		Status: submarinerv1.GlobalIngressIPStatus{
			AllocatedIP: "120.1.0.9", Conditions: []metav1.Condition{{Type: submarinerv1.ConditionAllocated, Status: allocated}},
		},
	})
}

func endpointOf(podName, nodeName, address string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, NodeName: ptr.To(nodeName), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: podName},
	}
}

func TestPlainNode(t *testing.T) {
	objs, host := world("n2")
	export(&objs, metav1.ConditionTrue)
	r := Desired(objs, host)
	want := dataplane.State{
		Settings: dataplane.Settings{
			Address: ip("172.31.1.12"), CableAddress: ip("172.31.1.12"), Node: 2, Cluster: 1, MSS: 1410, Ready: true,
			Overlay: dataplane.Tokens{Current: 7}, Cable: dataplane.Tokens{Current: 9},
		},
		Routes:   map[netip.Prefix]uint16{netip.MustParsePrefix("120.2.0.0/24"): 2},
		Nodes:    map[uint16]dataplane.Hop{1: host.Hops[ip("172.31.1.11")]},
		Gateways: []uint16{1},
		Clusters: map[uint16][]dataplane.RemoteGateway{}, // a gateway's business
		Peers:    map[netip.Addr]dataplane.Peer{ip("172.31.1.11"): {Kind: dataplane.PeerNode, Node: 1}},
		Sources: map[netip.Addr]dataplane.Source{
			ip("10.7.2.5"):    {Egress: ip("120.1.0.2"), Ifindex: 3},
			ip("10.7.2.1"):    {Egress: ip("120.1.0.2"), Host: true},
			ip("172.31.1.12"): {Egress: ip("120.1.0.2"), Host: true},
		},
		Egresses: map[netip.Addr][]uint16{ip("120.1.0.2"): {1024}}, // the pending block is not used
		Globals: map[netip.Addr]dataplane.Global{
			ip("120.1.0.1"): {Kind: dataplane.GlobalEgress}, ip("120.1.0.2"): {Kind: dataplane.GlobalEgress}, ip("120.1.0.9"): {Kind: dataplane.GlobalService},
		},
		Blocks: map[dataplane.BlockKey]uint16{},
		Services: map[dataplane.ServiceKey]dataplane.Service{
			{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}: {Backends: []netip.AddrPort{netip.MustParseAddrPort("10.7.2.5:8080")}},
		},
	}
	if diff := cmp.Diff(want, r.State, comparable); diff != "" {
		t.Errorf("state -want +got\n%s", diff)
	}
	if r.Gateway || len(r.Acks) > 0 || len(r.Problems) > 0 {
		t.Errorf("gateway %t, acks %v, problems %v; want a plain node without either", r.Gateway, r.Acks, r.Problems)
	}
}

func TestGateway(t *testing.T) {
	objs, host := world("n1")
	export(&objs, metav1.ConditionFalse)
	r := Desired(objs, host)
	s := r.State
	if !r.Gateway || !s.Settings.Gateway || s.Settings.CablePort != 4500 {
		t.Errorf("settings %+v, want a gateway with its cable", s.Settings)
	}
	wantGateways := map[uint16][]dataplane.RemoteGateway{2: {{Hop: host.Hops[ip("172.31.2.11")], Node: 1, Port: 4500}}}
	if diff := cmp.Diff(wantGateways, s.Clusters, comparable); diff != "" {
		t.Errorf("remote gateways -want +got\n%s", diff)
	}
	if got := s.Peers[ip("172.31.2.11")]; got != (dataplane.Peer{Kind: dataplane.PeerGateway, Cluster: 2, Node: 1}) {
		t.Errorf("remote gateway may send as %+v", got)
	}
	wantBlocks := map[dataplane.BlockKey]uint16{
		{Address: ip("120.1.0.1"), First: 1024}: 1, {Address: ip("120.1.0.2"), First: 1024}: 2, {Address: ip("120.1.0.2"), First: 1280}: 2,
	}
	if diff := cmp.Diff(wantBlocks, s.Blocks, comparable); diff != "" {
		t.Errorf("a gateway knows pending blocks too: -want +got\n%s", diff)
	}
	if diff := cmp.Diff([]string{"block-Pending", "ingress-web"}, r.Acks); diff != "" {
		t.Errorf("what is pending and in the tables is acknowledged: -want +got\n%s", diff)
	}
	service := s.Services[dataplane.ServiceKey{Address: ip("120.1.0.9"), Port: 80, Protocol: 6}]
	shares := map[uint16]int{}
	for _, n := range service.Table {
		shares[n]++
	}
	if len(shares) != 2 || shares[1] < len(service.Table)*2/5 || shares[2] < len(service.Table)*2/5 {
		t.Errorf("table shares %v: one ready backend on each node, so half each", shares)
	}
}

func TestHeadlessPod(t *testing.T) {
	objs, host := world("n2")
	export(&objs, metav1.ConditionTrue)
	objs.IngressIPs = []submarinerv1.GlobalIngressIP{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "pod-web-1", UID: "ingress-pod"},
		Spec: submarinerv1.GlobalIngressIPSpec{
			Target: submarinerv1.HeadlessServicePod, ServiceRef: &corev1.LocalObjectReference{Name: "web"}, PodRef: &corev1.LocalObjectReference{Name: "web-1"},
		},
		Status: submarinerv1.GlobalIngressIPStatus{
			AllocatedIP: "120.1.0.10", Conditions: []metav1.Condition{{Type: submarinerv1.ConditionAllocated, Status: metav1.ConditionTrue}},
		},
	}}
	r := Desired(objs, host)
	if got := r.State.Globals[ip("120.1.0.10")]; got != (dataplane.Global{Kind: dataplane.GlobalPod, Node: 2, Pod: ip("10.7.2.5")}) {
		t.Errorf("the pod's global IP leads to %+v", got)
	}
	if got := r.State.Sources[ip("10.7.2.5")]; got.Own != ip("120.1.0.10") || got.Egress.IsValid() {
		t.Errorf("the pod speaks from %+v, want its own global IP", got)
	}
}

func TestPeersThatAreNotAccepted(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		routed       bool
	}{
		{"without a gateway right now: routed, so that nothing leaks to the default route", pelagov1alpha1.ReasonNoGateway, true},
		{"with overlapping ranges: untouched", pelagov1alpha1.ReasonOverlappingCIDR, false},
		{"with another wire: untouched", pelagov1alpha1.ReasonWireMismatch, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := world("n1")
			objs.Peers = []pelagov1alpha1.Peer{peer("g2", metav1.ConditionFalse, tt.reason)}
			if routed := len(Desired(objs, host).State.Routes) > 0; routed != tt.routed {
				t.Errorf("routed: %t, want %t", routed, tt.routed)
			}
		})
	}
}

func TestProblemsAreNamed(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Objects, *Host)
		want   string
		ready  bool
	}{
		{"no index yet", func(o *Objects, _ *Host) { o.NodeIndexes = nil }, "node n1 has no NodeIndex yet", false},
		{"no address", func(o *Objects, _ *Host) { o.Nodes[1].Status.Addresses = nil }, "node n2 has no IPv4 InternalIP", true},
		{"no route to a node", func(_ *Objects, h *Host) { delete(h.Hops, ip("172.31.1.12")) }, "no route to 172.31.1.12 of node n2", true},
		{"no route to a gateway", func(_ *Objects, h *Host) { delete(h.Hops, ip("172.31.2.11")) }, "no route to 172.31.2.11, gateway g2-n1 of cluster g2", true},
		{"subnet that is none", func(o *Objects, _ *Host) { o.Peers[0].Spec.Subnets = []string{"here"} }, `peer g2: subnet "here" is no IPv4 prefix`, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			objs, host := world("n1")
			tt.change(&objs, &host)
			r := Desired(objs, host)
			if !strings.Contains(strings.Join(r.Problems, "\n"), tt.want) {
				t.Errorf("problems %q, want one with %q", r.Problems, tt.want)
			}
			if r.State.Settings.Ready != tt.ready {
				t.Errorf("ready: %t, want %t", r.State.Settings.Ready, tt.ready)
			}
		})
	}
}

func TestDrainingGatewayGoesOnSwitching(t *testing.T) {
	for name, leave := range map[string]func(*corev1.Node){
		"label taken away": func(n *corev1.Node) { delete(n.Labels, submarinerv1.LabelGateway) },
		"drained":          func(n *corev1.Node) { n.Annotations = map[string]string{pelagov1alpha1.AnnotationDrained: "true"} },
		"cordoned":         func(n *corev1.Node) { n.Spec.Unschedulable = true },
	} {
		objs, host := world("n1")
		objs.Nodes[1].Labels = map[string]string{submarinerv1.LabelGateway: "true"}
		objs.NodeIndexes[1].Status.Gateway, objs.NodeIndexes[1].Status.Serving = true, true
		objs.Answering = map[string]bool{"n2": true}
		leave(&objs.Nodes[0])
		host.Draining = true
		r := Desired(objs, host)
		if r.Gateway || slices.Contains(r.State.Gateways, r.State.Settings.Node) {
			t.Errorf("%s: the node is still offered as a gateway", name)
		}
		if !r.State.Settings.Gateway || len(r.State.Clusters) == 0 {
			t.Errorf("%s: it drops what others still send to it", name)
		}
		if !r.State.Settings.Leaving {
			t.Errorf("%s: it does not tell others to leave it", name)
		}
	}
}

func TestPodKeepsItsEgressIPWhenBlocksCome(t *testing.T) {
	objs, host := world("n2")
	before := Desired(objs, host).State.Sources[ip("10.7.2.5")].Egress
	more := block("120.1.0.2", 1536, "n2", pelagov1alpha1.BlockActive)
	objs.PortBlocks = append(objs.PortBlocks, more)
	r := Desired(objs, host)
	if got := r.State.Sources[ip("10.7.2.5")].Egress; got != before {
		t.Errorf("egress IP changed from %s to %s", before, got)
	}
	if diff := cmp.Diff([]uint16{1024, 1536}, r.State.Egresses[before]); diff != "" {
		t.Errorf("ports -want +got\n%s", diff)
	}
}

func TestDemand(t *testing.T) {
	have := map[netip.Addr][]uint16{ip("120.1.0.1"): {1024, 1280}}
	for _, tt := range []struct {
		name      string
		crowding  int
		exhausted uint64
		want      map[netip.Addr]int
	}{
		{"quiet", 10, 0, map[netip.Addr]int{ip("120.1.0.1"): 1}},
		{"what is held is still needed", 200, 0, map[netip.Addr]int{ip("120.1.0.1"): 2}},
		{"crowded: more blocks before the ports run out", 320, 0, map[netip.Addr]int{ip("120.1.0.1"): 3}},
		{"exhausted: twice as many", 500, 5, map[netip.Addr]int{ip("120.1.0.1"): 4}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var d demand
			d.update(map[netip.Addr]int{ip("120.1.0.1"): tt.crowding}, have, tt.exhausted)
			if diff := cmp.Diff(tt.want, d.blocks, comparable); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}
