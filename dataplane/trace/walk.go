package trace

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/pelago-net/pelago/bpf"
)

// Request is a packet at a node.
type Request struct {
	// Packet: without a source address it is one of the node itself.
	Packet Packet `json:"packet"`
	// Header is that of a packet which another node has sent; nil: the packet comes from a local
	// source.
	Header *Header `json:"header,omitempty"`
	// Token is the secret token of the header; nil: the right one.
	Token *uint32 `json:"token,omitempty"`
	// Size is the length of the packet in bytes; 0: that of one that opens a connection.
	Size int `json:"size,omitempty"`
}

// Answer is what the node decides about it.
type Answer struct {
	Step Step `json:"step"`
	// Token is that of the header of the step.
	Token *uint32 `json:"token,omitempty"`
	// Source is the address of a local source.
	Source netip.Addr `json:"source,omitzero"`
	// Stack is what the node's stack does before the programs see a packet of a local source; nil
	// for others.
	Stack *Stack `json:"stack,omitempty"`
	// Confirmed is how long ago the node's daemon last confirmed the tables.
	Confirmed time.Duration `json:"confirmed"`
}

// Stack is how the node routes a packet of a local source.
type Stack struct {
	// Device is the one that it leaves by; empty: Error reports why none exists.
	Device string `json:"device"`
	Error  string `json:"error,omitempty"`
	// Overlay: it is pelago0.
	Overlay bool `json:"overlay"`
	// MTU of the route, bytes.
	MTU int `json:"mtu"`
}

// Walk answers a request by the tables of a node. stack: how the node routes the packet, if that is
// known.
func Walk(tables Tables, r Request, stack *Stack) Answer {
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
		a.Step = Step{Hook: "stack", Verdict: bpf.PelagoVerdictVERDICT_DROP_TOO_BIG.String(), Packet: r.Packet, Used: []Entry{
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
