package tables

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
)

// ingress fills the tables of global ingress IPs: services and headless pods. An address is entered
// from its allocation on, before it is announced; that is what gateways acknowledge.
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
		case submarinerv1.HeadlessServiceEndpoints:
			known = b.headlessEndpoint(g, ip)
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
	name := named(g.Namespace, g.Spec.ServiceRef.Name)
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
	sticky := service.Spec.SessionAffinity == corev1.ServiceAffinityClientIP
	// the clusters have agreed on one (KEP-1645)
	if merged, ok := b.objs.Imports[name]; ok && b.objs.Exports[name] {
		sticky = merged.Affinity > 0
	}
	for _, port := range service.Spec.Ports {
		proto, ok := protocolNumber(port.Protocol)
		if !ok {
			b.problem("service %s: port %d has protocol %s, which is not carried between clusters", name, port.Port, port.Protocol)
			continue
		}
		v := dataplane.Service{ClientIP: sticky}
		weights := map[uint16]int{}
		for _, e := range backendEndpoints(b.objs.Slices[name], port.Name) {
			node := b.edgeOf(e.node, e.address.Addr())
			if node == 0 {
				continue
			}
			if proto == sctp && int32(e.address.Port()) != port.Port {
				b.problem("service %s: SCTP port %d leads to port %d of %s, which other clusters do not reach: SCTP ports are not translated, make targetPort the same",
					name, port.Port, e.address.Port(), e.address.Addr())
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
	for _, slice := range b.objs.Slices[named(g.Namespace, g.Spec.ServiceRef.Name)] {
		for _, e := range slice.Endpoints {
			if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || e.TargetRef.Name != g.Spec.PodRef.Name || e.NodeName == nil {
				continue
			}
			address, ok := endpointAddress(slice, e)
			node := b.index[*e.NodeName]
			if !ok || node == 0 {
				continue
			}
			b.pod(ip, node, address)
			b.restrict(ip, b.exportsOf(named(g.Namespace, g.Spec.PodRef.Name))...)
			return true
		}
	}
	return false
}

// pod maps all ports of ip to an address on a node.
func (b *builder) pod(ip netip.Addr, node uint16, address netip.Addr) {
	v := dataplane.Global{Kind: dataplane.GlobalPod, Node: node}
	if node == b.self {
		v.Pod = address
	}
	b.out.State.Globals[ip] = v
}

func named(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

type endpoint struct {
	node    string // empty: on none
	address netip.AddrPort
}

// backendEndpoints returns the endpoints of a service port that new connections go to: the ready
// ones; if none exists, those that terminate but still serve (KEP-1669, as kube-proxy does). A
// missing condition Ready means ready, a missing Serving is as Ready (EndpointConditions in
// discovery.k8s.io/v1).
func backendEndpoints(endpointSlices []discoveryv1.EndpointSlice, portName string) []endpoint {
	var ready, terminating []endpoint
	for _, slice := range endpointSlices {
		port, ok := slicePort(slice, portName)
		if !ok {
			continue
		}
		for _, e := range slice.Endpoints {
			address, ok := endpointAddress(slice, e)
			if !ok {
				continue
			}
			v := endpoint{node: ptr.Deref(e.NodeName, ""), address: netip.AddrPortFrom(address, port)}
			isReady := ptr.Deref(e.Conditions.Ready, true)
			switch {
			case isReady:
				ready = append(ready, v)
			case ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, isReady):
				terminating = append(terminating, v)
			}
		}
	}
	if len(ready) == 0 {
		return terminating
	}
	return ready
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

// sctp is its IANA number. Its ports are not translated: the checksum covers them, and the kernel
// side does not compute it.
const sctp = 132

func protocolNumber(p corev1.Protocol) (uint8, bool) {
	switch p {
	case corev1.ProtocolTCP, "":
		return 6, true
	case corev1.ProtocolUDP:
		return 17, true
	case corev1.ProtocolSCTP:
		return sctp, true
	}
	return 0, false
}
