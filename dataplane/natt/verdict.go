package natt

import (
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// judge says what is known at now.
func (t *track) judge(now time.Time) Verdict {
	v := Verdict{State: t.state(now)}
	if t.calls(now) {
		v.Caller, v.In = t.caller, t.in
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
	silence := now.Sub(t.quiet)
	switch {
	case t.used >= 0:
		return Confirmed
	case t.peer.BehindLB && silence < t.limit():
		return Probing
	case t.peer.BehindLB:
		return Unreachable // and not Waiting: nobody would call where the one behind the load balancer is the server
	case t.calls(now) && len(t.candidates) == 0:
		return Waiting
	case t.calls(now) && min(silence, now.Sub(t.calling)) >= failedAfter*t.timing.Probe: // its addresses were asked meanwhile
		return Waiting
	case silence < t.limit() && len(t.candidates) > 0:
		return Probing
	}
	return Unreachable
}

// fallback is the address to try where nothing is confirmed: the one that worked last if it is still published, else the
// public one, else the private one.
func (t *track) fallback() netip.Addr {
	if t.before.IsValid() && (t.before == t.peer.Private || t.before == t.peer.Public) {
		return t.before
	}
	if t.peer.Public.IsValid() {
		return t.peer.Public
	}
	return t.peer.Private
}

func (t *track) reason(v Verdict) string {
	switch {
	case v.State == Confirmed && v.Private:
		return fmt.Sprintf("answers at its private address %s", v.Address)
	case v.State == Confirmed && t.peer.Private.IsValid():
		return fmt.Sprintf("answers at its public address %s, not at its private one %s", v.Address, t.peer.Private)
	case v.State == Confirmed:
		return fmt.Sprintf("answers at its public address %s", v.Address)
	case v.State == Probing:
		return fmt.Sprintf("waiting for the first answer from UDP %s", t.asked())
	case v.State == Waiting && len(t.candidates) == 0:
		return fmt.Sprintf("publishes no address, but calls from %s: the connection opens when it calls", v.Caller)
	case v.State == Waiting:
		return fmt.Sprintf("does not answer at UDP %s, but calls from %s: it cannot be reached from outside, the connection opens when it calls", t.asked(), v.Caller)
	case len(t.candidates) == 0:
		return "publishes no address and does not call: set gateway.submariner.io/public-ip at its node"
	case t.peer.BehindLB:
		return fmt.Sprintf("does not answer at UDP %s; %s is used unconfirmed: pass this port on at its load balancer to have it checked", t.asked(), v.Address)
	case t.foreign:
		return fmt.Sprintf("does not answer at UDP %s, packets with another key come from there: has its cluster the same PSK (Secret submariner-ipsec-psk)?", t.asked())
	}
	return fmt.Sprintf("does not answer at UDP %s and does not call: if a firewall is between, open UDP %d and the port of the cable; "+
		"if both sides are behind NAT, forward these ports on one side and set gateway.submariner.io/public-ip there", t.asked(), t.peer.Port)
}

// asked lists the addresses that are asked, for people.
func (t *track) asked() string {
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
