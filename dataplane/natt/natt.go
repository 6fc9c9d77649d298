// Package natt finds out under which address a remote gateway is reached, and whether somebody on the way rewrites
// addresses. Gateways ask each other on UDP 4490 in messages that only holders of the clusterset's key can make. The node
// daemon tells a Discovery which peers there are and carries its verdicts into the wire. The package sends nothing but
// these messages, and touches no device, route or firewall.
//
// Rules of precedence and time-outs are those of Submariner's NAT discovery, so that its users find what they know;
// messages are our own.
package natt

import (
	"net/netip"
	"time"
)

// DefaultPort is the UDP port of NAT discovery where the peer names no other one (natt-discovery-port).
const DefaultPort = 4490

// Peer is a remote gateway as its Endpoint describes it. It is comparable: a changed one is searched anew.
type Peer struct {
	// Name is the name under which the peer opened its own Discovery (Config.Name).
	Name string
	// Private and Public may be zero, or the same.
	Private, Public netip.Addr
	// Port is the UDP port of the peer's discovery.
	Port uint16
	// BehindLB says that Public belongs to a load balancer. Many pass only the cable on, so silence says little.
	BehindLB bool
}

// State says how much is known about the way to a peer.
type State uint8

// States.
const (
	// Probing: the search has begun and nothing is known yet.
	Probing State = iota
	// Confirmed: the peer itself has answered from Address.
	Confirmed
	// Waiting: the peer does not answer, but calls: it cannot be reached from outside and must open the connection.
	Waiting
	// Unreachable: the peer neither answers nor calls.
	Unreachable
)

func (s State) String() string {
	switch s {
	case Probing:
		return "probing"
	case Confirmed:
		return "confirmed"
	case Waiting:
		return "waiting"
	}
	return "unreachable"
}

// Rewriting says what is changed in packets of one direction on their way.
type Rewriting struct {
	SourceIP, SourcePort, Destination bool
}

// Any says whether there is NAT on the way.
func (r Rewriting) Any() bool { return r.SourceIP || r.SourcePort || r.Destination }

// Verdict is what is known about the way to a peer.
type Verdict struct {
	State State
	// Address is where the wire sends to. It is zero while Probing, unless the peer was Confirmed before its addresses
	// changed, and while Waiting: then the wire waits for the peer to call. When Unreachable it is the address to go
	// on trying, because discovery may be blocked where the cable is not.
	Address netip.Addr
	// Private says that Address is the peer's private one.
	Private bool
	// Out is about packets to the peer (known when Confirmed), In about packets from it (known when it calls).
	Out, In Rewriting
	// Seen is the source of our packets as the peer sees it; zero unless Confirmed.
	Seen netip.AddrPort
	// Caller is the source of the peer's packets as we see it; zero if it does not call. The port is that of
	// discovery, not of the cable.
	Caller netip.AddrPort
	// Reason explains the State to a person.
	Reason string
}

// NAT says whether addresses or ports are rewritten between the two gateways, in either direction.
func (v Verdict) NAT() bool { return v.Out.Any() || v.In.Any() }

// Timing holds all periods; zero fields take the values of DefaultTiming.
type Timing struct {
	// Probe is how long an answer may take, and the time between two probes to one address.
	Probe time.Duration
	// Grace is how long a private answer may come after a public one and still win.
	Grace time.Duration
	// Total is after how long without any answer a search is given up, and a confirmed address as well.
	Total time.Duration
	// TotalLB is Total for a peer behind a load balancer.
	TotalLB time.Duration
	// Recheck is the longest pause between two checks of a verdict; each is up to a fifth shorter. Less than the 30 s
	// for which NAT boxes keep a quiet mapping (Linux: nf_conntrack_udp_timeout).
	Recheck time.Duration
}

// DefaultTiming is what production uses.
var DefaultTiming = Timing{
	Probe: 2 * time.Second, Grace: time.Second, Total: 60 * time.Second, TotalLB: 6 * time.Second, Recheck: 30 * time.Second,
}

func (t Timing) withDefaults() Timing {
	set := func(d *time.Duration, value time.Duration) {
		if *d <= 0 {
			*d = value
		}
	}
	set(&t.Probe, DefaultTiming.Probe)
	set(&t.Grace, DefaultTiming.Grace)
	set(&t.Total, DefaultTiming.Total)
	set(&t.TotalLB, DefaultTiming.TotalLB)
	set(&t.Recheck, DefaultTiming.Recheck)
	return t
}
