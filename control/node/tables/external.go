package tables

import (
	"net/netip"
	"slices"

	"k8s.io/utils/ptr"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
)

// Backends that are on no node, and hosts outside the cluster (`join --external-cidr`): the
// gateways are their edge. The gateway that receives a new flow keeps it, and translates the source
// by the node's own conntrack, so that replies come back to it.

// ExternalAddresses lists the addresses outside the cluster of which Host.External is to hold the
// device: endpoints without a node, and one address of each range of hosts.
func ExternalAddresses(objs Objects) []netip.Addr {
	var out []netip.Addr
	for _, p := range objs.Config.ExternalCIDRs {
		out = append(out, inside(p))
	}
	for _, list := range objs.Slices {
		for _, slice := range list {
			for _, e := range slice.Endpoints {
				if e.NodeName != nil {
					continue
				}
				if a, ok := endpointAddress(slice, e); ok {
					out = append(out, a)
				}
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// inside is an address in a range by which the route to the range is looked up.
func inside(p netip.Prefix) netip.Addr {
	if p.Bits() < 31 {
		return p.Addr().Next()
	}
	return p.Addr()
}

// externals enters the ranges outside the cluster. Without globalnet, their hosts are reached under
// their own addresses. The source of flows that they open is translated to the gateway's fabric
// address and a port: replies to the host's own address would arrive at any gateway.
func (b *builder) externals() {
	s := &b.out.State
	if !s.Settings.Gateway {
		return
	}
	src := dataplane.Source{External: true}
	if b.objs.Config.Globalnet() {
		node := s.Sources[s.Settings.Address]
		src.Egress, src.Mapped, src.Open = node.Egress, node.Mapped, node.Open
	} else {
		// flatNodes has reported the problem
		src.Egress, _ = b.objs.Config.FabricAddress(s.Settings.Cluster, b.self)
		src.Routed = true
	}
	s.Externals = map[netip.Prefix]dataplane.Source{}
	for _, p := range b.objs.Config.ExternalCIDRs {
		device, ok := b.host.External[inside(p)]
		if !ok {
			b.problem("node %s has no route to %s (join --external-cidr): as a gateway it connects no host of it; add the route", b.objs.Name, p)
			continue
		}
		src.Ifindex = device
		s.Externals[p] = src
	}
	if src.Routed && len(s.Externals) > 0 && src.Egress.IsValid() {
		for first := 1024; first <= 65535; first += dataplane.BlockPorts {
			s.Egresses[src.Egress] = append(s.Egresses[src.Egress], uint16(first))
		}
	}
	if b.objs.Config.RouteServiceCIDR && !b.objs.Config.Globalnet() {
		for _, p := range b.objs.Config.ServiceCIDRs {
			if p.Addr().Is4() {
				s.Externals[p] = dataplane.Source{Routed: true}
			}
		}
	}
}

// edgeOf is the index of the node that serves an endpoint, as far as this node knows: that of the
// pod, or of the node with the address; for any other this node, if it is a gateway. 0: none.
func (b *builder) edgeOf(node string, address netip.Addr) uint16 {
	if node != "" {
		return b.index[node]
	}
	for i := range b.objs.Nodes {
		if a, ok := InternalIP(&b.objs.Nodes[i]); ok && a == address {
			return b.index[b.objs.Nodes[i].Name]
		}
	}
	if b.external(address) {
		return b.self
	}
	return 0
}

// external enters an endpoint outside the cluster at a gateway.
func (b *builder) external(address netip.Addr) bool {
	s := &b.out.State
	if !s.Settings.Gateway {
		return false
	}
	_, known := s.Sources[address]
	if _, local := b.out.Owners[address]; known || local {
		return true
	}
	if len(s.Sources)-len(b.hosts) >= dataplane.MaxSources { // limitSources removes the rest
		b.problem("endpoint %s is on no node, and gateway %s has %d local addresses already: it does not serve it; use fewer endpoints", address, b.objs.Name, dataplane.MaxSources)
		return false
	}
	for p, cluster := range s.Routes {
		if p.Contains(address) {
			b.problem("endpoint %s without a node is in %s, which is routed to another cluster (index %d): it serves nothing; "+
				"use an address of this cluster's network", address, p, cluster)
			return false
		}
	}
	device, ok := b.host.External[address]
	if !ok {
		b.problem("node %s has no route to endpoint %s, which is on no node: as a gateway it cannot serve it; add the route", b.objs.Name, address)
		return false
	}
	src, _ := s.Source(address)
	src.External, src.Ifindex = true, device
	s.Sources[address] = src
	return true
}

// headlessEndpoint maps all ports of ip to an endpoint of a headless service without selector.
func (b *builder) headlessEndpoint(g *submarinerv1.GlobalIngressIP, ip netip.Addr) bool {
	address, err := netip.ParseAddr(g.Annotations[submarinerv1.AnnotationEndpointIP])
	if err != nil || g.Spec.ServiceRef == nil {
		return false
	}
	for _, slice := range b.objs.Slices[named(g.Namespace, g.Spec.ServiceRef.Name)] {
		for _, e := range slice.Endpoints {
			if a, ok := endpointAddress(slice, e); !ok || a != address {
				continue
			}
			name := ptr.Deref(e.NodeName, "")
			switch node := b.edgeOf(name, address); {
			case node == 0 && (b.out.State.Settings.Gateway || name != ""):
				return false
			case node == 0:
				b.out.State.Globals[ip] = dataplane.Global{Kind: dataplane.GlobalExternal}
			case b.out.State.Sources[address].External:
				b.out.State.Globals[ip] = dataplane.Global{Kind: dataplane.GlobalExternal, Pod: address}
			default:
				b.pod(ip, node, address)
			}
			b.restrict(ip, named(g.Namespace, g.Spec.ServiceRef.Name))
			return true
		}
	}
	return false
}
