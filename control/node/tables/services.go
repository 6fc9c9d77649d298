package tables

import (
	"iter"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
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
	affinity := sessionAffinity(service.Spec.SessionAffinity, service.Spec.SessionAffinityConfig)
	// the clusters have agreed on one (KEP-1645)
	if merged, ok := b.objs.Imports[name]; ok && b.objs.Exports[name] {
		affinity = merged.Affinity
	}
	for _, port := range service.Spec.Ports {
		proto, ok := protocolNumber(port.Protocol)
		if !ok {
			b.problem("service %s: port %d has protocol %s, which is not carried between clusters", name, port.Port, port.Protocol)
			continue
		}
		backing := b.host.Slices.backing(b, name, port, proto)
		v := dataplane.Service{Affinity: affinity, Backends: backing.local}
		if s.Settings.Gateway {
			if backing.table == nil {
				backing.table = b.host.Maglev.Table(backing.weights)
			}
			v.Table = backing.table
		}
		s.Serve(dataplane.ServiceKey{Address: ip, Port: uint16(port.Port), Protocol: proto}, v)
	}
}

// backing is what serves a port of a Service.
type backing struct {
	weights map[uint16]int // backends by node
	local   []netip.AddrPort
	table   []uint16 // Maglev's, on gateways; nil: not built yet
}

// backing collects what serves a port of a Service.
func (b *builder) backing(name types.NamespacedName, port corev1.ServicePort, proto uint8) (v backing, onNodes bool) {
	v, onNodes = backing{weights: map[uint16]int{}}, true
	for e := range b.host.Slices.backendEndpoints(b.objs.Slices[name], port.Name) {
		onNodes = onNodes && e.node != ""
		node := b.edgeOf(e.node, e.address.Addr())
		if node == 0 {
			continue
		}
		if proto == sctp && int32(e.address.Port()) != port.Port {
			b.problem("service %s: SCTP port %d leads to port %d of %s, which other clusters do not reach: SCTP ports are not translated, make targetPort the same",
				name, port.Port, e.address.Port(), e.address.Addr())
			continue
		}
		v.weights[node]++
		if node == b.self {
			v.local = append(v.local, e.address)
		}
	}
	slices.SortFunc(v.local, netip.AddrPort.Compare)
	v.local = slices.Compact(v.local)
	return v, onNodes
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

// parsedEndpoint is an endpoint of an EndpointSlice, without its port.
type parsedEndpoint struct {
	node    string // empty: not on a node
	address netip.Addr
	// ready: new connections go to it. A missing condition Ready means ready, a missing Serving is
	// as Ready (EndpointConditions in discovery.k8s.io/v1).
	ready bool
	// serving: it terminates, but still serves.
	serving bool
}

// SliceCache caches parsed EndpointSlices, and the backends collected from them by port of a
// Service and by ServiceImport, between reconciles: most do not change. A nil cache stores nothing.
// It is not safe for concurrent use.
type SliceCache struct {
	endpoints dataplane.Generations[sliceVersion, []parsedEndpoint]
	backings  dataplane.Generations[portName, *cachedBacking]
	vips      dataplane.Generations[types.NamespacedName, *cachedVIPs]
	vipInputs vipInputs // of vips
}

type sliceVersion struct{ namespace, name, resourceVersion string }

type portName struct {
	service types.NamespacedName
	port    string
}

// cachedBacking is a backing, and what it was collected from.
type cachedBacking struct {
	backing
	slices []sliceVersion
	// nodes is the list of NodeIndexes, which is replaced when one changes.
	nodes *pelagov1alpha1.NodeIndex
}

// begin starts a reconcile: what the former one did not use is dropped.
func (c *SliceCache) begin() {
	if c != nil {
		c.endpoints.Begin()
		c.backings.Begin()
	}
}

// backing returns b.backing(name, port, proto), whose maps and slices must not be changed. Where an
// endpoint is on no node, or a port may not be carried, it depends on more than is kept.
func (c *SliceCache) backing(b *builder, name types.NamespacedName, port corev1.ServicePort, proto uint8) *backing {
	if c == nil || proto == sctp {
		v, _ := b.backing(name, port, proto) // whether it may be cached
		return &v
	}
	of, nodes := b.objs.Slices[name], &b.objs.NodeIndexes[0]
	key := portName{name, port.Name}
	if old, ok := c.backings.Former(key); ok && old.nodes == nodes && sameVersions(old.slices, of) {
		c.backings.Put(key, old)
		return &old.backing
	}
	v, onNodes := b.backing(name, port, proto)
	fresh := &cachedBacking{backing: v, nodes: nodes}
	var versioned bool
	if fresh.slices, versioned = versionsOf(of); onNodes && versioned {
		c.backings.Put(key, fresh)
	}
	return &fresh.backing
}

func versionOf(s *discoveryv1.EndpointSlice) sliceVersion {
	return sliceVersion{s.Namespace, s.Name, s.ResourceVersion}
}

// versionsOf returns the versions of slices, and whether each has one.
func versionsOf(of []discoveryv1.EndpointSlice) (versions []sliceVersion, ok bool) {
	ok = true
	for i := range of {
		versions = append(versions, versionOf(&of[i]))
		ok = ok && of[i].ResourceVersion != ""
	}
	return versions, ok
}

func sameVersions(versions []sliceVersion, of []discoveryv1.EndpointSlice) bool {
	if len(versions) != len(of) {
		return false
	}
	for i := range of {
		if versions[i] != versionOf(&of[i]) {
			return false
		}
	}
	return true
}

// parse returns the endpoints with an IPv4 address, which must not be changed.
func (c *SliceCache) parse(slice *discoveryv1.EndpointSlice) []parsedEndpoint {
	if c == nil || slice.ResourceVersion == "" {
		return parseEndpoints(slice)
	}
	return c.endpoints.Get(versionOf(slice), func() []parsedEndpoint { return parseEndpoints(slice) })
}

func parseEndpoints(slice *discoveryv1.EndpointSlice) []parsedEndpoint {
	out := make([]parsedEndpoint, 0, len(slice.Endpoints))
	for _, e := range slice.Endpoints {
		address, ok := endpointAddress(*slice, e)
		if !ok {
			continue
		}
		ready := ptr.Deref(e.Conditions.Ready, true)
		out = append(out, parsedEndpoint{
			node: ptr.Deref(e.NodeName, ""), address: address, ready: ready,
			serving: !ready && ptr.Deref(e.Conditions.Terminating, false) && ptr.Deref(e.Conditions.Serving, ready),
		})
	}
	return out
}

// backendEndpoints yields the endpoints of a service port that new connections go to: the ready
// ones; if none exists, those that terminate but still serve (KEP-1669, as kube-proxy does).
func (c *SliceCache) backendEndpoints(endpointSlices []discoveryv1.EndpointSlice, portName string) iter.Seq[endpoint] {
	of := func(yield func(endpoint, bool) bool) {
		for i := range endpointSlices {
			port, ok := slicePort(&endpointSlices[i], portName)
			if !ok {
				continue
			}
			for _, e := range c.parse(&endpointSlices[i]) {
				if (e.ready || e.serving) && !yield(endpoint{node: e.node, address: netip.AddrPortFrom(e.address, port)}, e.ready) {
					return
				}
			}
		}
	}
	return func(yield func(endpoint) bool) {
		anyReady := false
		for _, ready := range of {
			if anyReady = ready; ready {
				break
			}
		}
		for e, ready := range of {
			if ready == anyReady && !yield(e) {
				return
			}
		}
	}
}

func slicePort(slice *discoveryv1.EndpointSlice, name string) (uint16, bool) {
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
