package peering

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
)

// problem is a defect of an object that its owner has to fix; it becomes an Event of the object.
type problem struct {
	object  client.Object
	reason  string
	message string
}

// ownEndpoints computes this cluster's Endpoints at the hub: one for each gateway node whose data
// path is ready. A drained gateway whose node is alive withdraws itself (NodeIndex.status.gateway)
// once its probes show that another gateway is active. The agent does not decide that: until
// Kubernetes reports a crash, it would take a dead gateway for an active one. It withdraws one that
// is silent, which answers no witness, while another serves.
func (o Options) ownEndpoints(nodes []corev1.Node, indexes []v1alpha1.NodeIndex, silent map[string]bool) ([]*submarinerv1.Endpoint, []problem) {
	byNode := map[string]v1alpha1.NodeIndex{}
	for _, i := range indexes {
		byNode[i.Name] = i
	}
	byName := map[string]*corev1.Node{}
	for i := range nodes {
		byName[nodes[i].Name] = &nodes[i]
	}
	ofNode := func(node *corev1.Node) (v1alpha1.NodeIndex, bool) {
		index, ok := byNode[node.Name]
		return index, ok && index.Spec.NodeUID == string(node.UID)
	}
	wanted := topology.WantedGateways(nodes, func(name string) bool {
		node := byName[name]
		index, ok := ofNode(node)
		return ok && topology.GatewayServing(node, &index) && topology.NodeReady(node)
	})
	ready := slices.DeleteFunc(slices.Clone(indexes), func(n v1alpha1.NodeIndex) bool { return !topology.GatewayReady(&n) })
	inService := map[string]bool{}
	for _, n := range topology.InService(ready, byName, silent) {
		inService[n.Name] = true
	}
	var endpoints []*submarinerv1.Endpoint
	var problems []problem
	for i := range nodes {
		node := &nodes[i]
		index, ok := ofNode(node)
		if !ok || !topology.GatewayReady(&index) {
			continue
		}
		if decides := topology.IsGateway(node) && inService[node.Name]; !decides && (!wanted[node.Name] || silent[node.Name] && len(inService) > 0) {
			continue
		}
		private, err := privateIP(node, index)
		if err != nil {
			problems = append(problems, problem{node, "NoGatewayAddress", err.Error()})
			continue
		}
		public, refused := publicIP(node, index)
		problems = append(problems, refused...)
		wire, err := o.wireOf(index)
		if err != nil {
			problems = append(problems, problem{node, "NoWire", err.Error()})
			continue
		}
		endpoints = append(endpoints, o.endpoint(node.Name, wire, private, public))
	}
	slices.SortFunc(endpoints, func(a, b *submarinerv1.Endpoint) int { return strings.Compare(a.Name, b.Name) })
	return endpoints, problems
}

// wireOf is the backend_config of a gateway's Endpoint: the settings that its node reports and
// those of the cluster. It fails if no peer could use them.
func (o Options) wireOf(index v1alpha1.NodeIndex) (map[string]string, error) {
	fabric, err := config.FabricAddress(o.Fabric, o.ClusterIndex, uint16(index.Spec.Index))
	if err != nil {
		return nil, fmt.Errorf("the gateway cannot be published: %w", err)
	}
	if got := index.Status.FabricAddress; got != "" && got != fabric.String() {
		return nil, fmt.Errorf("the gateway cannot be published: its node uses the fabric address %s instead of %s: restart pelago-node there", got, fabric)
	}
	settings := map[string]string{}
	maps.Copy(settings, index.Status.Wire)
	maps.Copy(settings, map[string]string{
		submarinerv1.BackendClusterIndex: strconv.Itoa(int(o.ClusterIndex)),
		submarinerv1.BackendNodeIndex:    strconv.Itoa(int(index.Spec.Index)),
		submarinerv1.BackendWireVersion:  strconv.Itoa(o.WireVersion),
		submarinerv1.BackendFabricIP:     fabric.String(),
	})
	// an annotation of the node overrides the port of the cluster
	if settings[submarinerv1.BackendUDPPort] == "" {
		settings[submarinerv1.BackendUDPPort] = strconv.Itoa(int(o.CablePort))
	}
	if _, err := wire(o.CableDriver, settings); err != nil {
		return nil, fmt.Errorf("the gateway cannot be published for the cable driver %s: %w", o.CableDriver, err)
	}
	return settings, nil
}

func privateIP(node *corev1.Node, index v1alpha1.NodeIndex) (netip.Addr, error) {
	candidates := []string{index.Status.Address}
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			candidates = append(candidates, a.Address)
		}
	}
	for _, text := range candidates {
		if ip, err := netip.ParseAddr(text); err == nil && ip.Is4() {
			return ip, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("the node has no IPv4 address for its cable: neither status.address of its NodeIndex nor an InternalIP is one (%q)", candidates)
}

// publicIP is the public address that the node's daemon has found (the zero Addr if none), and the
// problems that the daemon has reported: refused settings and failed look-ups. None of them
// prevents the Endpoint: peers in the same network reach the gateway at its private address.
func publicIP(node *corev1.Node, index v1alpha1.NodeIndex) (public netip.Addr, problems []problem) {
	if c := meta.FindStatusCondition(index.Status.Conditions, v1alpha1.NodeSettings); c != nil && c.Status == metav1.ConditionFalse {
		problems = append(problems, problem{node, "InvalidGatewaySettings", c.Message})
	}
	p := index.Status.PublicIP
	if p == nil {
		return public, problems
	}
	if p.Message != "" {
		problems = append(problems, problem{node, "NoPublicIP", p.Message})
	}
	if p.Address == "" {
		return public, problems
	}
	public, err := netip.ParseAddr(p.Address)
	if err != nil || !public.Is4() {
		public = netip.Addr{}
		problems = append(problems, problem{node, "NoPublicIP", fmt.Sprintf("NodeIndex %s reports the public address %q, which is not an IPv4 address: restart pelago-node there", index.Name, p.Address)})
	}
	return public, problems
}

func (o Options) endpoint(node string, wire map[string]string, private, public netip.Addr) *submarinerv1.Endpoint {
	address := private.String()
	cable := "submariner-cable-" + o.ClusterID + "-" + strings.ReplaceAll(address, ".", "-")
	e := &submarinerv1.Endpoint{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: o.BrokerNamespace, Name: o.ClusterID + "-" + cable,
			Labels: map[string]string{submarinerv1.LabelClusterID: o.ClusterID},
		},
		Spec: submarinerv1.EndpointSpec{
			ClusterID: o.ClusterID, CableName: cable, Hostname: node,
			PrivateIP: address, Backend: o.CableDriver,
			BackendConfig: wire,
		},
	}
	for _, s := range o.Subnets {
		e.Spec.Subnets = append(e.Spec.Subnets, s.String())
	}
	if public.IsValid() {
		e.Spec.PublicIP, e.Spec.NATEnabled = public.String(), public != private && !o.NoNAT
	}
	return e
}
