package main

import (
	"context"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// cluster is the size of what the daemon sees. All services are exported, and have a ClusterSetIP
// that sharing other clusters serve, too. The latency is measured with changes of the
// first, whose endpoints are on the measured node; the load changes the others.
type cluster struct {
	nodes, services, clusters int
}

const (
	endpointsPerNode    = 50
	endpointsPerService = 100 // of one EndpointSlice, the most that Kubernetes' controller puts into it
	gatewaysPerCluster  = 4
	sharing             = 3
	// mostClusters joins a cluster of mostNodes: with four gateways each, they have 1,016.
	mostClusters, mostNodes = 254, 5000
	writers                 = 16
	namespace               = "bench"
	self                    = "node-0000"
)

func clusterOf(nodes int) cluster {
	return cluster{nodes: nodes, services: max(2, nodes*endpointsPerNode/endpointsPerService), clusters: max(1, min(mostClusters, nodes*mostClusters/mostNodes))}
}

func scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, submarinerv1.AddToScheme, pelagov1alpha1.AddToScheme, mcs.Install} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("register API types: %w", err)
		}
	}
	return s, nil
}

func newClient(c *rest.Config) (client.Client, error) {
	s, err := scheme()
	if err != nil {
		return nil, err
	}
	c = rest.CopyConfig(c)
	c.QPS = -1
	cl, err := client.New(c, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("set up the API client: %w", err)
	}
	return cl, nil
}

// Addresses. Own nodes are in nodeRange, own pods in podRange; other clusters have a global /16
// each.
var (
	nodeRange   = netip.MustParseAddr("172.16.0.0")
	peerRange   = netip.MustParseAddr("172.31.0.0")
	podRange    = netip.MustParseAddr("10.128.0.0")
	globalRange = netip.MustParseAddr("242.0.0.0")
	vipRange    = netip.MustParseAddr("243.0.0.0")
)

// at is the nth address after a.
func at(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)})
}

func nodeName(i int) string     { return fmt.Sprintf("node-%04d", i) }
func serviceName(i int) string  { return fmt.Sprintf("service-%04d", i) }
func clusterName(i int) string  { return fmt.Sprintf("cluster-%03d", i) }
func globalOf(cluster int) int  { return cluster << 16 }
func ingressIP(service int) int { return globalOf(1) + 1024 + service }

const blocksPerIP = (65536 - 1024) / 256

// objects are created in this order; those with a status are written twice.
func (c cluster) objects(gateway bool) []client.Object {
	conf := config.Config{
		ClusterID: clusterName(1), ClusterIndex: 1, GlobalCIDRs: []netip.Prefix{netip.PrefixFrom(at(globalRange, globalOf(1)), 16)},
		GlobalRange: netip.PrefixFrom(globalRange, 8), PodCIDRs: []netip.Prefix{netip.PrefixFrom(podRange, 10)},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.64.0.0/12")}, FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"),
		Mode: config.ModeSubmariner, ClusterSetIPs: true, ClusterSetIPRange: netip.PrefixFrom(vipRange, 8),
		ClusterSetIPCIDRs: []netip.Prefix{netip.PrefixFrom(vipRange, 16)}, CableDriver: config.CableVXLAN, CablePort: 4500, NoNAT: true,
		HubID: "bench", HubServer: "https://hub.example:6443", BrokerNamespace: config.DefaultBrokerNamespace,
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: config.SystemNamespace}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: config.SystemNamespace, Name: config.ConfigMapName}, Data: conf.Data()},
	}
	egress := &submarinerv1.ClusterGlobalEgressIP{ObjectMeta: metav1.ObjectMeta{Name: submarinerv1.ClusterGlobalEgressIPName}}
	for i := range max(8, (c.nodes+blocksPerIP-1)/blocksPerIP) {
		egress.Status.AllocatedIPs = append(egress.Status.AllocatedIPs, at(globalRange, globalOf(1)+1+i).String())
	}
	egress.Spec.NumberOfIPs = ptr.To(len(egress.Status.AllocatedIPs))
	objects = append(objects, egress)
	for i := range c.nodes {
		objects = append(objects, c.node(i, gateway && i == 0), nodeIndex(i), portBlock(i, len(egress.Status.AllocatedIPs), egress.Status.AllocatedIPs))
	}
	for i := 2; i < 2+c.clusters; i++ {
		objects = append(objects, peer(i))
	}
	for i := range c.services {
		objects = append(objects, c.service(i)...)
	}
	return objects
}

// node has the list of images that a busy kubelet reports (its limit is 50).
func (c cluster) node(i int, gateway bool) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName(i), Labels: map[string]string{corev1.LabelHostname: nodeName(i), corev1.LabelTopologyZone: "zone-a"}}}
	n.Spec.PodCIDR = netip.PrefixFrom(at(podRange, i*256), 24).String()
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at(nodeRange, 10+i).String()}, {Type: corev1.NodeHostName, Address: nodeName(i)}}
	n.Status.NodeInfo.BootID = fmt.Sprintf("boot-%d", i)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	for k := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example/team/image-%d@sha256:%064d", k, k), fmt.Sprintf("registry.example/team/image-%d:v1", k)}, SizeBytes: 1 << 26,
		})
	}
	if gateway {
		n.Labels[submarinerv1.LabelGateway] = "true"
	}
	return n
}

func nodeIndex(i int) *pelagov1alpha1.NodeIndex {
	return &pelagov1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName(i)}, Spec: pelagov1alpha1.NodeIndexSpec{Index: int32(i + 1), NodeUID: "unknown"},
		Status: pelagov1alpha1.NodeIndexStatus{Ready: true},
	}
}

func portBlock(i, ips int, addresses []string) *pelagov1alpha1.PortBlock {
	first := int32(1024 + 256*(i/ips))
	return &pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("block-%04d", i)},
		Spec: pelagov1alpha1.PortBlockSpec{EgressIP: addresses[i%ips], FirstPort: first, Node: nodeName(i), NodeUID: "unknown",
			Pool: pelagov1alpha1.EgressPool{Name: submarinerv1.ClusterGlobalEgressIPName}, State: pelagov1alpha1.BlockActive},
	}
}

func peer(i int) *pelagov1alpha1.Peer {
	p := &pelagov1alpha1.Peer{
		ObjectMeta: metav1.ObjectMeta{Name: clusterName(i)},
		Spec:       pelagov1alpha1.PeerSpec{ClusterIndex: int32(i), Subnets: []string{netip.PrefixFrom(at(globalRange, globalOf(i)), 16).String()}},
	}
	for g := range gatewaysPerCluster {
		p.Spec.Gateways = append(p.Spec.Gateways, pelagov1alpha1.PeerGateway{
			Name: fmt.Sprintf("gateway-%d", g), Address: at(peerRange, i*gatewaysPerCluster+g).String(), Port: 4500, Wire: config.CableVXLAN, NodeIndex: int32(g + 1),
		})
	}
	p.Status.Conditions = []metav1.Condition{condition(pelagov1alpha1.PeerAccepted, pelagov1alpha1.ReasonAccepted)}
	return p
}

func condition(kind, reason string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, LastTransitionTime: metav1.Now()}
}

// service is one of a ClusterSetIP that other clusters serve, too, and its own global IP.
func (c cluster) service(i int) []client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: serviceName(i)}
	ports := []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	ingress := &submarinerv1.GlobalIngressIP{
		ObjectMeta: meta, Spec: submarinerv1.GlobalIngressIPSpec{Target: submarinerv1.ClusterIPService, ServiceRef: &corev1.LocalObjectReference{Name: meta.Name}},
		Status: submarinerv1.GlobalIngressIPStatus{AllocatedIP: at(globalRange, ingressIP(i)).String(),
			Conditions: []metav1.Condition{condition(submarinerv1.ConditionAllocated, "Success")}},
	}
	imported := &mcs.ServiceImport{ObjectMeta: meta, Spec: mcs.ServiceImportSpec{Type: mcs.ClusterSetIP, IPs: []string{at(vipRange, 1+i).String()},
		Ports: []mcs.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: meta.Name, Labels: map[string]string{discoveryv1.LabelServiceName: meta.Name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(8080)), Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	for e := range endpointsPerService {
		pod := i*endpointsPerService + e
		on := pod % c.nodes
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{at(podRange, on*256+2+pod/c.nodes%250).String()}, NodeName: ptr.To(nodeName(on)),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", meta.Name, e), UID: types.UID(fmt.Sprint(pod))},
		})
	}
	if i == 0 {
		slice.Endpoints = canaryEndpoints()
	}
	out := []client.Object{
		&corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Ports: ports, Selector: map[string]string{"app": meta.Name}}}, slice,
		&mcs.ServiceExport{ObjectMeta: meta}, ingress, imported,
	}
	served := []int{1}
	for k := range min(sharing, c.clusters) {
		served = append(served, 2+(i+k)%c.clusters)
	}
	for _, cluster := range served {
		address := at(globalRange, globalOf(cluster)+1024+i)
		out = append(out, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("%s-%s", meta.Name, clusterName(cluster)), Labels: map[string]string{
				mcs.LabelServiceName: meta.Name, mcs.LabelSourceCluster: clusterName(cluster)}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To(int32(80)), Protocol: ptr.To(corev1.ProtocolTCP)}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address.String()}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		})
	}
	return out
}

// canaryEndpoints are two on the measured node: its own table shows a change of one.
func canaryEndpoints() (out []discoveryv1.Endpoint) {
	for e := range 2 {
		out = append(out, discoveryv1.Endpoint{
			Addresses: []string{at(podRange, 252+e).String()}, NodeName: ptr.To(self),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
		})
	}
	return out
}

// create writes the objects of the cluster.
func (c cluster) create(ctx context.Context, cl client.Client, gateway bool) error {
	var group errgroup.Group
	group.SetLimit(writers)
	for i, o := range c.objects(gateway) {
		if i < 3 { // namespaces first
			if err := write(ctx, cl, o); err != nil {
				return err
			}
			continue
		}
		group.Go(func() error { return write(ctx, cl, o) })
	}
	return group.Wait()
}

func write(ctx context.Context, cl client.Client, o client.Object) error {
	withStatus := o.DeepCopyObject().(client.Object)
	if err := cl.Create(ctx, o); err != nil {
		return fmt.Errorf("create %T %s: %w", o, o.GetName(), err)
	}
	switch o.(type) {
	case *corev1.Node, *pelagov1alpha1.NodeIndex, *pelagov1alpha1.Peer, *submarinerv1.GlobalIngressIP, *submarinerv1.ClusterGlobalEgressIP:
	default:
		return nil
	}
	withStatus.SetResourceVersion(o.GetResourceVersion())
	withStatus.SetUID(o.GetUID())
	if err := cl.Status().Update(ctx, withStatus); err != nil {
		return fmt.Errorf("write the status of %T %s: %w", o, o.GetName(), err)
	}
	return nil
}
