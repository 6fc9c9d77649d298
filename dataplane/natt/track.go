//go:build linux

package natt

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// failedAfter is the number of unanswered requests after which an address has failed in this
	// round.
	failedAfter = 3
	// inboundFor is the number of Recheck intervals after which the peer's last confirmation
	// expires.
	inboundFor = 3
)

// track is the discovery of one peer: a state machine without sockets and clock. Requests are sent
// in rounds: a round probes each address of the peer every Timing.Probe until there is a decision;
// the next one follows after Timing.Recheck.
type track struct {
	peer         Peer
	timing       Timing
	candidates   []candidate // at most two, the private one first
	used         int         // index of the confirmed candidate; -1: none
	before       netip.Addr  // last confirmed address; zero: none
	open         bool        // a round is in progress
	again        bool        // another one follows it soon
	next         time.Time   // start of the next round if none is in progress
	silentSince  time.Time   // creation, or the first request after the last answer
	lastInbound  time.Time   // last confirmation by the peer; zero: none
	inboundSince time.Time   // first confirmation since none was valid, or since silentSince
	source       netip.AddrPort
	in           Rewriting
	foreignMAC   bool // packets with the MAC of another key came from an address of the peer
}

// candidate is a published address of the peer.
type candidate struct {
	at       netip.AddrPort
	private  bool
	nonce    nonce     // of the outstanding request, if pending
	pending  bool      // a request is outstanding
	sent     time.Time // last request of this round; zero: none
	tries    int       // requests in this round
	answered time.Time // in this round; zero: not
	report   report    // of the last answer
	problem  string    // error of the last request
}

// report holds the addresses of a request at both ends.
type report struct {
	local, seen    netip.AddrPort // source as sent, and as received
	asked, arrived netip.AddrPort // destination as sent, and as received
}

func (r report) rewriting() Rewriting {
	return Rewriting{
		SourceIP: r.local.Addr() != r.seen.Addr(), SourcePort: r.local.Port() != r.seen.Port(), Destination: r.asked != r.arrived,
	}
}

// probe is a request to be sent.
type probe struct {
	peer  string
	to    netip.AddrPort
	nonce nonce
}

func newTrack(p Peer, t Timing, now time.Time) *track {
	tr := &track{timing: t, used: -1, silentSince: now, next: now}
	tr.set(p, now)
	return tr
}

// set updates the peer and starts a round. A confirmed address stays confirmed if it is still
// published; else it remains in before until another one is confirmed.
func (t *track) set(p Peer, now time.Time) {
	var addresses []candidate
	if p.Private.IsValid() {
		addresses = append(addresses, candidate{at: netip.AddrPortFrom(p.Private, p.Port), private: true})
	}
	if p.Public.IsValid() && p.Public != p.Private {
		addresses = append(addresses, candidate{at: netip.AddrPortFrom(p.Public, p.Port)})
	}
	used := -1
	if t.used >= 0 {
		old := t.candidates[t.used]
		t.before = old.at.Addr()
		used = slices.IndexFunc(addresses, func(c candidate) bool { return c.at == old.at && c.private == old.private })
		if used >= 0 {
			addresses[used].report = old.report
		}
	}
	t.peer, t.candidates, t.used, t.foreignMAC = p, addresses, used, false
	t.silentSince = now
	t.begin(now)
}

// recheck makes the next step begin a round. One in progress may have sent its requests too early,
// so another one follows it soon.
func (t *track) recheck(now time.Time) {
	t.again = t.open
	if !t.open {
		t.next = now
	}
}

func (t *track) begin(now time.Time) {
	t.open, t.again = true, false
	if t.used >= 0 { // it has answered in the last round
		t.silentSince = now
	}
	for i := range t.candidates {
		c := &t.candidates[i]
		c.sent, c.tries, c.answered, c.pending = time.Time{}, 0, time.Time{}, false
	}
}

// step advances to now and returns the requests to be sent. interval returns the time until the
// next round.
func (t *track) step(now time.Time, draw func() nonce, interval func() time.Duration) []probe {
	if !t.open {
		if now.Before(t.next) {
			return nil
		}
		t.begin(now)
	}
	if t.decide(now) {
		t.open, t.next = false, now.Add(interval())
		if t.again {
			t.next = now.Add(t.timing.Probe)
		}
		return nil
	}
	var out []probe
	for i := range t.candidates {
		c := &t.candidates[i]
		if !c.answered.IsZero() || (!c.sent.IsZero() && now.Sub(c.sent) < t.timing.Probe) {
			continue
		}
		c.nonce, c.pending, c.sent, c.problem = draw(), true, now, ""
		c.tries++
		out = append(out, probe{t.peer.Name, c.at, c.nonce})
	}
	return out
}

// decide selects the address by the answers and reports whether the round is complete.
func (t *track) decide(now time.Time) bool {
	best := slices.IndexFunc(t.candidates, func(c candidate) bool { return !c.answered.IsZero() })
	if best >= 0 { // the private one is first
		if best > 0 {
			other := t.candidates[0]
			grace := now.Sub(t.candidates[best].answered) < t.timing.Grace
			if grace || t.used == 0 && !other.failed(now, t.timing) {
				return false
			}
		}
		t.used = best
		return true
	}
	if now.Sub(t.silentSince) < t.limit() {
		return len(t.candidates) == 0
	}
	if t.used >= 0 {
		t.before, t.used = t.candidates[t.used].at.Addr(), -1
	}
	return !slices.ContainsFunc(t.candidates, func(c candidate) bool { return !c.failed(now, t.timing) })
}

func (c candidate) failed(now time.Time, t Timing) bool {
	return c.tries >= failedAfter && now.Sub(c.sent) >= t.Probe
}

// limit is how long a peer may be silent. A confirmed address is not given up sooner behind a load
// balancer.
func (t *track) limit() time.Duration {
	if t.peer.BehindLB && t.used < 0 {
		return t.timing.TotalLB
	}
	return t.timing.Total
}

// answer processes an authenticated answer of the peer and returns what becomes of it: answers if
// it is valid.
func (t *track) answer(now time.Time, from netip.AddrPort, n nonce, r report) outcome {
	i := slices.IndexFunc(t.candidates, func(c candidate) bool { return c.pending && c.nonce == n })
	if i < 0 || now.Sub(t.candidates[i].sent) > t.timing.Probe {
		return replayed // or late, or a duplicate
	}
	c := &t.candidates[i]
	if c.at != from {
		return fromElsewhere
	}
	c.pending, c.answered, c.report = false, now, r
	t.foreignMAC = false
	return answers
}

// confirm processes a valid confirmation by the peer. If it is the first one, or the first since
// the peer fell silent, or its source has changed, the peer may be reachable again: the next step
// starts a round.
func (t *track) confirm(now time.Time, source netip.AddrPort, in Rewriting) {
	known := t.inbound(now)
	first := !known || t.lastInbound.Before(t.silentSince)
	if first {
		t.inboundSince = now
	}
	if first && t.used < 0 || known && source.Addr() != t.source.Addr() {
		t.recheck(now)
	}
	t.source, t.in, t.lastInbound, t.foreignMAC = source, in, now, false
}

// foreignKey records a packet with the MAC of another key. Its source may be spoofed, so it is only
// a hint for Reason.
func (t *track) foreignKey(from netip.Addr) {
	if t.used < 0 && slices.ContainsFunc(t.candidates, func(c candidate) bool { return c.at.Addr() == from }) {
		t.foreignMAC = true
	}
}

// unsent records why a request could not be sent.
func (t *track) unsent(n nonce, problem string) {
	for i := range t.candidates {
		if t.candidates[i].nonce == n {
			t.candidates[i].problem = problem
		}
	}
}

// inbound reports whether requests of the peer arrive here.
func (t *track) inbound(now time.Time) bool {
	return now.Sub(t.lastInbound) < inboundFor*t.timing.Recheck
}

// due is when step has to be called next; it is after now if step was called with now.
func (t *track) due(now time.Time) time.Time {
	times := []time.Time{
		t.silentSince.Add(t.limit()), t.silentSince.Add(failedAfter * t.timing.Probe),
		t.lastInbound.Add(inboundFor * t.timing.Recheck), t.inboundSince.Add(failedAfter * t.timing.Probe),
	}
	if !t.open {
		times = append(times, t.next)
	} else {
		for _, c := range t.candidates {
			if c.answered.IsZero() {
				times = append(times, c.sent.Add(t.timing.Probe))
			} else {
				times = append(times, c.answered.Add(t.timing.Grace))
			}
		}
	}
	soonest := now.Add(t.timing.Recheck)
	for _, at := range times {
		if at.After(now) && at.Before(soonest) {
			soonest = at
		}
	}
	return soonest
}
