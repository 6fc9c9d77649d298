// Package natt discovers the address at which a remote gateway is reachable, and NAT on the path.
// Gateways exchange messages over UDP 4490 that are authenticated with the clusterset's PSK. The
// node daemon configures the peers of a Discovery and applies its results to the wire. The package
// sends only these messages, and changes no device, route or firewall.
//
// Precedence of addresses and time-outs are those of Submariner's NAT discovery; the messages are
// not.
package natt

import (
	"cmp"
	"net/netip"
	"time"
)

// DefaultPort is the UDP port of NAT discovery unless the peer publishes another one
// (natt-discovery-port).
const DefaultPort = 4490

// Peer is a remote gateway as published in its Endpoint. It is comparable: a changed one is
// discovered again.
type Peer struct {
	// Name is the peer's own Config.Name.
	Name string
	// Private and Public may be zero, or the same.
	Private, Public netip.Addr
	// Port is the UDP port of the peer's discovery.
	Port uint16
	// BehindLB: Public is that of a load balancer, which may forward only the cable port, so
	// silence is inconclusive.
	BehindLB bool
}

// State of the discovery of a peer.
type State uint8

// States.
const (
	// Probing: no result yet.
	Probing State = iota
	// Confirmed: the peer has answered from Address.
	Confirmed
	// Waiting: the peer does not answer, but its own requests arrive: it is behind NAT or a
	// firewall and must initiate.
	Waiting
	// Unreachable: no messages arrive from the peer.
	Unreachable
)

func (s State) String() string {
	return [...]string{"probing", "confirmed", "waiting", "unreachable"}[s]
}

// Rewriting is the address translation of packets in one direction.
type Rewriting struct {
	SourceIP, SourcePort, Destination bool
}

// Any reports whether there is NAT on the path.
func (r Rewriting) Any() bool { return r.SourceIP || r.SourcePort || r.Destination }

// Reachability is the result of the discovery of a peer.
type Reachability struct {
	State State
	// Address is the underlay address for the wire. It is zero while Waiting, since the peer must
	// initiate, and while Probing, unless the peer was Confirmed before its addresses changed. If
	// Unreachable it is a fallback: UDP 4490 may be blocked where the cable is not.
	Address netip.Addr
	// Private: Address is the peer's private one.
	Private bool
	// Out applies to packets to the peer (known if Confirmed), In to packets from it (known if its
	// requests arrive).
	Out, In Rewriting
	// Seen is the source of our packets as observed by the peer; zero unless Confirmed.
	Seen netip.AddrPort
	// Source is the source of the peer's requests as observed here; zero if none arrive. The port
	// is that of discovery, not of the cable.
	Source netip.AddrPort
	// Reason explains the State to an operator.
	Reason string
}

// NAT reports whether addresses or ports are translated between the two gateways, in either
// direction.
func (v Reachability) NAT() bool { return v.Out.Any() || v.In.Any() }

// Timing holds all periods; zero fields take the values of DefaultTiming.
type Timing struct {
	// Probe is the time-out of a request, and the interval of requests to one address.
	Probe time.Duration
	// Grace is how much later than that of the public address the answer of the private one may
	// arrive and still win.
	Grace time.Duration
	// Total is the time without any answer after which a peer, or a confirmed address, is given up.
	Total time.Duration
	// TotalLB is Total for a peer behind a load balancer.
	TotalLB time.Duration
	// Recheck is the longest interval between two rounds of requests; each is up to a fifth
	// shorter. Less than the 30 s for which NAT boxes keep an idle mapping (Linux:
	// nf_conntrack_udp_timeout).
	Recheck time.Duration
}

// DefaultTiming is that of production.
var DefaultTiming = Timing{
	Probe: 2 * time.Second, Grace: time.Second, Total: 60 * time.Second, TotalLB: 6 * time.Second, Recheck: 30 * time.Second,
}

func (t Timing) withDefaults() Timing {
	return Timing{
		Probe: cmp.Or(t.Probe, DefaultTiming.Probe), Grace: cmp.Or(t.Grace, DefaultTiming.Grace), Total: cmp.Or(t.Total, DefaultTiming.Total),
		TotalLB: cmp.Or(t.TotalLB, DefaultTiming.TotalLB), Recheck: cmp.Or(t.Recheck, DefaultTiming.Recheck),
	}
}
