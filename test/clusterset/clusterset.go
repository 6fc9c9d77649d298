// Package clusterset has the objects and host facts of a small clusterset, as read by a node
// daemon, for tests of control/node.
package clusterset

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/node/tables"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

// Comparable lets cmp compare addresses.
var Comparable = cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})

// IP parses an address.
func IP(s string) netip.Addr { return netip.MustParseAddr(s) }

// Globalnet is cluster g1 with a gateway n1 and a plain node n2, joined to g2, as node from sees
// it.
func Globalnet(from string) (tables.Objects, tables.Host) {
	objs := tables.Objects{
		Name: from,
		Config: config.Config{
			ClusterID: "g1", ClusterIndex: 1, CablePort: 4500, CableDriver: "vxlan",
			GlobalCIDRs: []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")},
		},
		Nodes: []corev1.Node{Node("n1", "172.31.1.11", true), Node("n2", "172.31.1.12", false)},
		NodeIndexes: []pelagov1alpha1.NodeIndex{
			{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 1}, Status: pelagov1alpha1.NodeIndexStatus{Ready: true, Gateway: true}},
			{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: pelagov1alpha1.NodeIndexSpec{Index: 2}, Status: pelagov1alpha1.NodeIndexStatus{Ready: true}},
		},
		Peers: []pelagov1alpha1.Peer{Peer("g2", metav1.ConditionTrue, pelagov1alpha1.ReasonAccepted)},
		PortBlocks: []pelagov1alpha1.PortBlock{
			Block("120.1.0.1", 1024, "n1", pelagov1alpha1.BlockActive), Block("120.1.0.2", 1024, "n2", pelagov1alpha1.BlockActive),
			Block("120.1.0.2", 1280, "n2", pelagov1alpha1.BlockPending),
		},
		ClusterEgress: &submarinerv1.ClusterGlobalEgressIP{
			ObjectMeta: metav1.ObjectMeta{Name: submarinerv1.ClusterGlobalEgressIPName},
			Status:     submarinerv1.GlobalEgressIPStatus{AllocatedIPs: []string{"120.1.0.1", "120.1.0.2"}},
		},
		Services: map[types.NamespacedName]*corev1.Service{},
		Slices:   map[types.NamespacedName][]discoveryv1.EndpointSlice{},
		Pods:     []corev1.Pod{Pod("web-1", from, "10.7.2.5")},
	}
	host := tables.Host{
		Hops: map[netip.Addr]dataplane.Hop{
			IP("172.31.1.11"): {Address: IP("172.31.1.11"), Next: IP("172.31.1.11"), Ifindex: 2},
			IP("172.31.1.12"): {Address: IP("172.31.1.12"), Next: IP("172.31.1.12"), Ifindex: 2},
			IP("172.31.2.11"): {Address: IP("172.31.2.11"), Next: IP("172.31.1.1"), Ifindex: 2},
		},
		Devices:   map[netip.Addr]uint32{IP("10.7.2.5"): 3},
		Addresses: []netip.Addr{IP("10.7.2.1")},
		Overlay:   dataplane.Tokens{Current: 7}, Cable: dataplane.Tokens{Current: 9}, MTU: 1450,
	}
	return objs, host
}

// Node is one with an InternalIP.
func Node(name, address string, gateway bool) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: address}}
	if gateway {
		n.Labels[submarinerv1.LabelGateway] = "true"
	}
	return n
}

// Peer is a cluster with one gateway.
func Peer(name string, accepted metav1.ConditionStatus, reason string) pelagov1alpha1.Peer {
	return pelagov1alpha1.Peer{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: pelagov1alpha1.PeerSpec{
			ClusterIndex: 2, Subnets: []string{"120.2.0.0/24"},
			Gateways: []pelagov1alpha1.PeerGateway{{Name: name + "-n1", Address: "172.31.2.11", Port: 4500, Wire: "vxlan", NodeIndex: 1}},
		},
		Status: pelagov1alpha1.PeerStatus{Conditions: []metav1.Condition{{Type: pelagov1alpha1.PeerAccepted, Status: accepted, Reason: reason}}},
	}
}

// Block is a port block of an egress IP.
func Block(address string, first int32, owner string, state pelagov1alpha1.BlockState) pelagov1alpha1.PortBlock {
	name := strings.ReplaceAll(address, ".", "-") + "-" + owner
	return pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("block-" + string(state))},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: address, FirstPort: first, Node: owner, NodeUID: "uid-" + owner, State: state,
			Pool: pelagov1alpha1.EgressPool{Name: submarinerv1.ClusterGlobalEgressIPName},
		},
	}
}

// Pod is a running pod of namespace sample.
func Pod(name, nodeName, address string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: name, UID: types.UID("uid-" + name)},
		Spec:       corev1.PodSpec{NodeName: nodeName},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// Export gives a service of two pods, one on each node, an ingress IP.
func Export(objs *tables.Objects, allocated metav1.ConditionStatus) {
	name := types.NamespacedName{Namespace: "sample", Name: "web"}
	objs.Services[name] = &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "web"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
	objs.Slices[name] = []discoveryv1.EndpointSlice{{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080))}},
		Endpoints: []discoveryv1.Endpoint{
			Endpoint("web-1", "n2", "10.7.2.5", true), Endpoint("web-2", "n1", "10.7.1.5", true), Endpoint("web-3", "n1", "10.7.1.6", false),
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

// Endpoint is that of a pod.
func Endpoint(podName, nodeName, address string, ready bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{address}, NodeName: ptr.To(nodeName), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(ready)},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: podName},
	}
}

// Import gives sample/web, which g1 has exported (Export), a ClusterSetIP that g2 serves, too.
func Import(objs *tables.Objects) {
	name := types.NamespacedName{Namespace: "sample", Name: "web"}
	objs.Config.ClusterSetIPRange = netip.MustParsePrefix("243.0.0.0/8")
	objs.Imports = map[types.NamespacedName]tables.Import{name: {IP: IP("243.0.16.1"), Ports: []tables.ImportPort{{Name: "http", Port: 80, Protocol: 6}}}}
	objs.Imported = map[types.NamespacedName][]discoveryv1.EndpointSlice{name: {
		Imported("g1", "10.77.0.9", 80), Imported("g2", "120.2.0.9", 80),
	}}
}

// Imported is the EndpointSlice of service sample/web in a member, with what a cluster has
// published.
func Imported(cluster, address string, port int32) discoveryv1.EndpointSlice {
	return discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "sample", Name: "web-" + cluster,
			Labels: map[string]string{mcs.LabelServiceName: "web", mcs.LabelSourceCluster: cluster},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(port), Protocol: ptr.To(corev1.ProtocolTCP)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
	}
}

// Encrypted is Globalnet with the wire wireguard: g2's gateways n1 and n2, of which the first
// answers.
func Encrypted(from string) (tables.Objects, tables.Host) {
	objs, host := Globalnet(from)
	objs.Config.CableDriver, objs.Config.FabricCIDR = config.CableWireGuard, netip.MustParsePrefix("241.0.0.0/8")
	gateway := objs.Peers[0].Spec.Gateways[0]
	gateway.FabricAddress, gateway.Tunnels, gateway.Identity = "241.0.128.1", 2, map[string]string{"publicKey": "a,b"}
	silent := gateway
	silent.Name, silent.Address, silent.NodeIndex, silent.FabricAddress = "g2-n2", "172.31.2.12", 2, "241.0.128.2"
	objs.Peers[0].Spec.Gateways = append(objs.Peers[0].Spec.Gateways[:0:0], gateway, silent)
	host.Wire = tables.Wire{
		Devices: []int{20, 21, 24}, Tunnels: map[netip.Addr][]int{IP("241.0.128.1"): {20, 21}}, Ports: []uint16{4500},
		Identity: map[string]string{"publicKey": "own"},
	}
	return objs, host
}

// Flat is the cluster without globalnet: sample/web is exported, sample/inside is not.
func Flat(from string) (tables.Objects, tables.Host) {
	objs, host := Globalnet(from)
	Export(&objs, metav1.ConditionTrue)
	objs.Config.GlobalCIDRs, objs.IngressIPs, objs.PortBlocks, objs.ClusterEgress = nil, nil, nil, nil
	objs.Config.FabricCIDR = netip.MustParsePrefix("241.0.0.0/8")
	objs.Peers[0].Spec.Subnets = []string{"10.8.0.0/16", "10.88.0.0/16", "241.0.128.0/18"}
	web, inside := types.NamespacedName{Namespace: "sample", Name: "web"}, types.NamespacedName{Namespace: "sample", Name: "inside"}
	objs.Exports = map[types.NamespacedName]bool{web: true}
	objs.Services[web].Spec.ClusterIPs = []string{"10.77.0.9", "fd00::9"}
	objs.Services[inside] = objs.Services[web].DeepCopy()
	objs.Services[inside].Spec.ClusterIPs = []string{"10.77.0.10"}
	if from == "n1" {
		objs.Pods = []corev1.Pod{Pod("web-2", from, "10.7.1.5")}
		host.Devices[IP("10.7.1.5")] = 4
		objs.PodNodes = map[netip.Addr]string{IP("10.7.2.5"): "n2", IP("10.7.1.5"): "n1", IP("10.7.9.9"): "n9"}
	}
	return objs, host
}

// Config is one that config.Parse accepts.
func Config(globalnet bool) config.Config {
	c := config.Config{
		ClusterID: "g1", ClusterIndex: 1, CablePort: 4500, CableDriver: config.CableWireGuard, Mode: config.ModeSubmariner,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.77.0.0/16")},
		FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"), HubID: "hub", HubServer: "https://172.31.255.2:6443", BrokerNamespace: "broker",
	}
	if globalnet {
		c.GlobalCIDRs = []netip.Prefix{netip.MustParsePrefix("120.1.0.0/24")}
	}
	return c
}

// Full has something of every kind of object, as gateway n1 sees it.
func Full(globalnet bool) (tables.Objects, tables.Host) {
	objs, host := Globalnet("n1")
	objs.Config = Config(globalnet)
	Export(&objs, metav1.ConditionTrue)
	host.Wire = tables.Wire{Tunnels: map[netip.Addr][]int{IP("241.0.128.1"): {7}}}
	objs.Peers[0].Spec.Gateways[0].FabricAddress = "241.0.128.1"
	objs.EgressIPs = []submarinerv1.GlobalEgressIP{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "some", CreationTimestamp: metav1.Unix(1_700_000_000, 0)},
		Spec:       submarinerv1.GlobalEgressIPSpec{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
		Status:     submarinerv1.GlobalEgressIPStatus{AllocatedIPs: []string{"120.1.0.7"}},
	}}
	own := Block("120.1.0.7", 1024, "n1", pelagov1alpha1.BlockActive)
	own.Spec.Pool = pelagov1alpha1.EgressPool{Namespace: "sample", Name: "some"}
	objs.PortBlocks = append(objs.PortBlocks, own)
	for i := range objs.PortBlocks { // as the agent names them
		objs.PortBlocks[i].Name = fmt.Sprintf("%s-%d", strings.ReplaceAll(objs.PortBlocks[i].Spec.EgressIP, ".", "-"), objs.PortBlocks[i].Spec.FirstPort)
	}
	objs.Pods[0].Labels = map[string]string{"app": "web"}
	Import(&objs)
	objs.Exports = map[types.NamespacedName]bool{{Namespace: "sample", Name: "web"}: true}
	objs.ExportTo = map[types.NamespacedName]string{{Namespace: "sample", Name: "web"}: "g2"}
	objs.Services[types.NamespacedName{Namespace: "sample", Name: "web"}].Spec.ClusterIPs = []string{"10.77.0.9"}
	objs.PodNodes = map[netip.Addr]string{IP("10.7.2.9"): "n2", IP("10.7.1.9"): "n1", IP("10.7.2.8"): "n2"}
	objs.Nodes[0].Annotations = map[string]string{tables.KeyPublicIP: "ipv4:198.51.100.7"}
	objs.Nodes[1].Spec.Unschedulable = true
	objs.Nodes[0].Labels[pelagov1alpha1.LabelDatapath] = "fast"
	objs.Datapaths = map[string]string{"sample": "hybrid"}
	objs.OtherPolicies = map[string]string{"other": "CiliumNetworkPolicy"}
	objs.Policies = []networkingv1.NetworkPolicy{{
		ObjectMeta: metav1.ObjectMeta{Namespace: "sample", Name: "deny"},
		Spec:       networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}},
	}}
	return objs, host
}

// TwoGateways is Globalnet with another gateway n3.
func TwoGateways(from string) (tables.Objects, tables.Host) {
	objs, host := Globalnet(from)
	objs.Nodes = append(objs.Nodes, Node("n3", "172.31.1.13", true))
	n3 := objs.NodeIndexes[0].DeepCopy()
	n3.Name, n3.Spec.Index = "n3", 3
	objs.NodeIndexes = append(objs.NodeIndexes, *n3)
	host.Hops[IP("172.31.1.13")] = dataplane.Hop{Address: IP("172.31.1.13"), Next: IP("172.31.1.13"), Ifindex: 2}
	return objs, host
}

// Answering is a path whose probes are answered.
func Answering() liveness.Path {
	return liveness.Path{Probed: true, Probes: 9, Replies: 9, Ready: true, Seen: 10 * time.Millisecond, RTT: 1200 * time.Microsecond, SRTT: 1200 * time.Microsecond}
}

// Silent is a path without a reply for a time.
func Silent(age time.Duration) liveness.Path {
	p := Answering()
	p.Seen, p.Open, p.OldestOpen, p.Loss = age, 9, age, 1
	return p
}
