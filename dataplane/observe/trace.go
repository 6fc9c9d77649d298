package observe

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// Request is a packet at a node.
type Request struct {
	// Packet: without a source address it is one of the node itself.
	Packet loader.Packet `json:"packet"`
	// Header is that of a packet which another node has sent; nil: the packet comes from a local source.
	Header *loader.Header `json:"header,omitempty"`
	// Token is the secret token of the header; nil: the right one.
	Token *uint32 `json:"token,omitempty"`
	// Size is the length of the packet in bytes; 0: that of one that opens a connection.
	Size int `json:"size,omitempty"`
}

// Answer is what the node decides about it.
type Answer struct {
	Step loader.Step `json:"step"`
	// Token is that of the header of the step.
	Token *uint32 `json:"token,omitempty"`
	// Source is the address of a local source.
	Source netip.Addr `json:"source,omitzero"`
	// Stack is what the node's stack does before the programs see a packet of a local source; nil for others.
	Stack *Stack `json:"stack,omitempty"`
	// Confirmed is how long ago the node's daemon last confirmed the tables.
	Confirmed time.Duration `json:"confirmed"`
}

// Stack is how the node routes a packet of a local source.
type Stack struct {
	// Device is the one that it leaves by; empty: Error says why there is none.
	Device string `json:"device"`
	Error  string `json:"error,omitempty"`
	// Overlay: it is pelago0.
	Overlay bool `json:"overlay"`
	// MTU of the route, bytes.
	MTU int `json:"mtu"`
}

// Trace answers a request by the tables of this node and the routes of its stack.
func Trace(l *loader.Loader, r Request) (Answer, error) {
	tables, err := l.Tables()
	if err != nil {
		return Answer{}, err
	}
	tables.Size, tables.MTU = r.Size, deviceMTUs()
	if r.Header != nil {
		return Walk(tables, r, nil), nil
	}
	source := tables.State.Sources[r.Packet.Source.Addr()]
	stack, own := routeOf(r.Packet, source, tables.State.Settings.Edge)
	if !r.Packet.Source.Addr().IsValid() {
		if !own.IsValid() {
			return Answer{}, fmt.Errorf("find the source address of this node towards %s: %s", r.Packet.Destination.Addr(), cmp.Or(stack.Error, "its route has none"))
		}
		r.Packet.Source = netip.AddrPortFrom(own, r.Packet.Source.Port())
	}
	return Walk(tables, r, &stack), nil
}

// Walk is the pure part of Trace. stack: how the node routes the packet, if that is known.
func Walk(tables loader.Tables, r Request, stack *Stack) Answer {
	a := Answer{Source: r.Packet.Source.Addr(), Stack: stack, Confirmed: tables.Confirmed}
	settings := tables.State.Settings
	switch {
	case r.Header != nil:
		h, tokens := *r.Header, settings.Overlay
		if h.Cable {
			tokens = settings.Cable
		}
		if h.Token = tokens.Current; r.Token != nil {
			h.Token = *r.Token
		}
		a.Step = tables.Receive(r.Packet, h)
	case stack != nil && stack.Overlay && stack.MTU > 0 && r.Size > stack.MTU:
		a.Step = loader.Step{Hook: "stack", Verdict: "drop-too-big", Packet: r.Packet, Used: []loader.Entry{
			{Map: "routes of the stack", Key: r.Packet.Destination.Addr().String(), Value: fmt.Sprintf("MTU %d", stack.MTU)},
		}}
	default:
		a.Step = tables.Leave(r.Packet, 0)
	}
	if h := a.Step.Header; h != nil {
		a.Token = &h.Token
	}
	return a
}

// routeOf asks the kernel for the route of a packet, and for the source address of the node's own.
func routeOf(p loader.Packet, source dataplane.Source, edge uint32) (s Stack, own netip.Addr) {
	var opts netlink.RouteGetOptions
	if a := p.Source.Addr(); a.IsValid() {
		opts.SrcAddr = a.AsSlice()
		if source.Ifindex != 0 {
			opts.IifIndex = int(source.Ifindex)
		}
	}
	routes, err := netlink.RouteGetWithOptions(p.Destination.Addr().AsSlice(), &opts)
	if err != nil {
		return Stack{Error: err.Error()}, own
	}
	r := routes[0]
	s = Stack{Overlay: edge != 0 && uint32(r.LinkIndex) == edge, MTU: r.MTU}
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
