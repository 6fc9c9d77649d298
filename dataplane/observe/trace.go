package observe

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// Trace answers a request by the tables of this node and the routes of its stack.
func Trace(l *loader.Loader, r trace.Request) (trace.Answer, error) {
	tables, err := l.Tables()
	if err != nil {
		return trace.Answer{}, err
	}
	tables.Size, tables.MTU = r.Size, deviceMTUs()
	if r.Header != nil {
		return trace.Walk(tables, r, nil), nil
	}
	source := tables.State.Sources[r.Packet.Source.Addr()]
	stack, own := routeOf(r.Packet, source, tables.State.Settings.Edge)
	if !r.Packet.Source.Addr().IsValid() {
		if !own.IsValid() {
			return trace.Answer{}, fmt.Errorf("find the source address of this node towards %s: %s", r.Packet.Destination.Addr(), cmp.Or(stack.Error, "its route has none"))
		}
		r.Packet.Source = netip.AddrPortFrom(own, r.Packet.Source.Port())
	}
	return trace.Walk(tables, r, &stack), nil
}

// routeOf asks the kernel for the route of a packet, and for the source address of the node's own.
func routeOf(p trace.Packet, source dataplane.Source, edge uint32) (s trace.Stack, own netip.Addr) {
	var opts netlink.RouteGetOptions
	if a := p.Source.Addr(); a.IsValid() {
		opts.SrcAddr = a.AsSlice()
		if source.Ifindex != 0 {
			opts.IifIndex = int(source.Ifindex)
		}
	}
	routes, err := netlink.RouteGetWithOptions(p.Destination.Addr().AsSlice(), &opts)
	if err != nil {
		return trace.Stack{Error: err.Error()}, own
	}
	r := routes[0]
	s = trace.Stack{Overlay: edge != 0 && uint32(r.LinkIndex) == edge, MTU: r.MTU}
	if link, err := netlink.LinkByIndex(r.LinkIndex); err == nil {
		s.Device, s.MTU = link.Attrs().Name, cmp.Or(s.MTU, link.Attrs().MTU)
	}
	own, _ = netip.AddrFromSlice(r.Src.To4())
	return s, own
}

// deviceMTUs are the MTUs of all devices, by index. Without them sizes are not checked.
func deviceMTUs() map[uint32]int {
	links, err := netlink.LinkList()
	if err != nil {
		return nil
	}
	out := map[uint32]int{}
	for _, l := range links {
		out[uint32(l.Attrs().Index)] = l.Attrs().MTU
	}
	return out
}
