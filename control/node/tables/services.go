package tables

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
)

// ingress fills the tables of global ingress IPs: services and headless pods. An address is entered from
// its allocation on, before it is announced; that is what gateways acknowledge.
func (b *builder) ingress() {
	for i := range b.objs.IngressIPs {
		g := &b.objs.IngressIPs[i]
		ip, err := netip.ParseAddr(g.Status.AllocatedIP)
		if err != nil || !ip.Is4() {
			continue // nothing allocated
		}
		known := false
		switch g.Spec.Target {
		case submarinerv1.ClusterIPService:
			known = b.service(g, ip)
		case submarinerv1.HeadlessServicePod:
			known = b.headlessPod(g, ip)
		}
		if known && !meta.IsStatusConditionTrue(g.Status.Conditions, submarinerv1.ConditionAllocated) {
			b.acks[g.UID] = true
		}
	}
}

// service exposes every TCP and UDP port of a Service under ip.
func (b *builder) service(g *submarinerv1.GlobalIngressIP, ip netip.Addr) bool {
	if g.Spec.ServiceRef == nil {
		return false
	}
	name := types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.ServiceRef.Name}
	service := b.objs.Services[name]
	if service == nil {
		return false
	}
	b.expose(name, service, ip)
	return true
}

// expose enters the ports of a Service under an address.
func (b *builder) expose(name types.NamespacedName, service *corev1.Service, ip netip.Addr) {
	s := &b.out.State
	s.Globals[ip] = dataplane.Global{Kind: dataplane.GlobalService}
	b.restrict(ip, name)
	for _, port := range service.Spec.Ports {
		proto, ok := protocolNumber(port.Protocol)
		if !ok {
			b.problem("service %s: port %d has protocol %s, which is not carried between clusters", name, port.Port, port.Protocol)
			continue
		}
		v := dataplane.Service{ClientIP: service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP}
		weights := map[uint16]int{}
		for _, e := range readyEndpoints(b.objs.Slices[name], port.Name) {
			node := b.index[e.node]
			if node == 0 {
				continue
			}
			weights[node]++
			if node == b.self {
				v.Backends = append(v.Backends, e.address)
			}
		}
		slices.SortFunc(v.Backends, netip.AddrPort.Compare)
		v.Backends = slices.Compact(v.Backends)
		if s.Settings.Gateway {
			v.Table = b.host.Maglev.Table(weights)
		}
		s.Services[dataplane.ServiceKey{Address: ip, Port: uint16(port.Port), Protocol: proto}] = v
	}
}

// headlessPod maps all ports of ip to one pod.
func (b *builder) headlessPod(g *submarinerv1.GlobalIngressIP, ip netip.Addr) bool {
	if g.Spec.ServiceRef == nil || g.Spec.PodRef == nil {
		return false
	}
	name := types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.ServiceRef.Name}
	for _, slice := range b.objs.Slices[name] {
		for _, e := range slice.Endpoints {
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.Name != g.Spec.PodRef.Name || e.NodeName == nil {
				continue
			}
			address, ok := endpointAddress(slice, e)
			node := b.index[*e.NodeName]
			if !ok || node == 0 {
				continue
			}
			v := dataplane.Global{Kind: dataplane.GlobalPod, Node: node}
			if node == b.self {
				v.Pod = address
			}
			b.out.State.Globals[ip] = v
			b.restrict(ip, b.exportsOf(types.NamespacedName{Namespace: g.Namespace, Name: g.Spec.PodRef.Name})...)
			return true
		}
	}
	return false
}

type endpoint struct {
	node    string
	address netip.AddrPort
}

// readyEndpoints returns the ready endpoints of a service port that are on nodes.
func readyEndpoints(endpointSlices []discoveryv1.EndpointSlice, portName string) []endpoint {
	var out []endpoint
	for _, slice := range endpointSlices {
		port, ok := slicePort(slice, portName)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			// A missing condition means ready (EndpointConditions in discovery.k8s.io/v1).
			if e.NodeName == nil || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			if address, ok := endpointAddress(slice, e); ok {
				out = append(out, endpoint{node: *e.NodeName, address: netip.AddrPortFrom(address, port)})
			}
		}
	}
	return out
}

func slicePort(slice discoveryv1.EndpointSlice, name string) (uint16, bool) {
	for _, p := range slice.Ports {
		if p.Port != nil && (p.Name == nil && name == "" || p.Name != nil && *p.Name == name) {
			return uint16(*p.Port), true
		}
	}
	return 0, false
}

func endpointAddress(slice discoveryv1.EndpointSlice, e discoveryv1.Endpoint) (netip.Addr, bool) {
	if slice.AddressType != discoveryv1.AddressTypeIPv4 || len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	// The addresses of one endpoint are interchangeable; the first is used, as by kube-proxy.
	a, err := netip.ParseAddr(e.Addresses[0])
	return a, err == nil && a.Is4()
}

func protocolNumber(p corev1.Protocol) (uint8, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return 6, true
	case corev1.ProtocolUDP:
		return 17, true
	}
	return 0, false
}
