//go:build linux

package natt

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// assess returns the result at now.
func (t *track) assess(now time.Time) Reachability {
	v := Reachability{State: t.state(now)}
	if t.inbound(now) {
		v.Source, v.In = t.source, t.in
	}
	switch v.State {
	case Confirmed:
		c := t.candidates[t.used]
		v.Address, v.Seen, v.Out = c.at.Addr(), c.report.seen, c.report.rewriting()
	case Probing:
		v.Address = t.before
	case Unreachable:
		v.Address = t.fallback()
	}
	v.Private = v.Address.IsValid() && v.Address == t.peer.Private
	v.Reason = t.reason(v)
	return v
}

func (t *track) state(now time.Time) State {
	silence := now.Sub(t.silentSince)
	switch {
	case t.used >= 0:
		return Confirmed
	case t.peer.BehindLB && silence < t.limit():
		return Probing
	case t.peer.BehindLB:
		return Unreachable // not Waiting: the peer behind the load balancer is the one that listens
	case t.inbound(now) && (len(t.candidates) == 0 || t.calls(now)):
		return Waiting
	case silence < t.limit() && len(t.candidates) > 0:
		return Probing
	}
	return Unreachable
}

// calls reports whether the peer's requests arrive while it leaves ours unanswered, for long enough
// to have probed its addresses. Requests from before the silence do not count: the peer may be
// dead.
func (t *track) calls(now time.Time) bool {
	return !t.lastInbound.Before(t.silentSince) && min(now.Sub(t.silentSince), now.Sub(t.inboundSince)) >= failedAfter*t.timing.Probe
}

// fallback is the address if none is confirmed: the last confirmed one if it is still published,
// else the public one, else the private one.
func (t *track) fallback() netip.Addr {
	if t.before.IsValid() && (t.before == t.peer.Private || t.before == t.peer.Public) {
		return t.before
	}
	return cmp.Or(t.peer.Public, t.peer.Private)
}

func (t *track) reason(v Reachability) string {
	switch {
	case v.State == Confirmed && v.Private:
		return fmt.Sprintf("answers at its private address %s", v.Address)
	case v.State == Confirmed && t.peer.Private.IsValid():
		return fmt.Sprintf("answers at its public address %s, not at its private one %s", v.Address, t.peer.Private)
	case v.State == Confirmed:
		return fmt.Sprintf("answers at its public address %s", v.Address)
	case v.State == Probing:
		return fmt.Sprintf("waiting for the first answer from UDP %s", t.probed())
	case v.State == Waiting && len(t.candidates) == 0:
		return fmt.Sprintf("publishes no address, but calls from %s: the connection opens when it calls", v.Source)
	case v.State == Waiting:
		return fmt.Sprintf("does not answer at UDP %s, but calls from %s: it cannot be reached from outside, the connection opens when it calls", t.probed(), v.Source)
	case len(t.candidates) == 0:
		return "publishes no address and does not call: set gateway.submariner.io/public-ip at its node"
	case t.peer.BehindLB:
		return fmt.Sprintf("does not answer at UDP %s; %s is used unconfirmed: pass this port on at its load balancer to have it checked", t.probed(), v.Address)
	case t.foreignMAC:
		return fmt.Sprintf("does not answer at UDP %s, packets with another key come from there: has its cluster the same PSK (Secret submariner-ipsec-psk)?", t.probed())
	}
	return fmt.Sprintf("does not answer at UDP %s and does not call: if a firewall is between, open UDP %d and the port of the cable; "+
		"if both sides are behind NAT, forward these ports on one side and set gateway.submariner.io/public-ip there", t.probed(), t.peer.Port)
}

// probed lists the addresses that requests are sent to, for Reason.
func (t *track) probed() string {
	var all []string
	for _, c := range t.candidates {
		kind := "public"
		if c.private {
			kind = "private"
		}
		if c.problem != "" {
			kind += ", " + c.problem
		}
		all = append(all, fmt.Sprintf("%s (%s)", c.at, kind))
	}
	return strings.Join(all, " and ")
}
