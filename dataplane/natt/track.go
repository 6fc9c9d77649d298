package natt

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// failedAfter unanswered probes in a row an address counts as silent in this round.
	failedAfter = 3
	// callsFor so many times Recheck after its last call a peer counts as calling.
	callsFor = 3
)

// track is the search for one peer: a value that is stepped through time and told what came in. It knows no socket
// and no clock. Probes go out in rounds: a round asks each address of the peer every Timing.Probe until enough is known;
// rounds follow each other after Timing.Recheck.
type track struct {
	peer       Peer
	timing     Timing
	candidates []candidate // none, or one, or the private one before the public one
	used       int         // index of the candidate that was confirmed last; -1: none
	before     netip.Addr  // address that was confirmed before used became -1; zero: none
	open       bool        // a round is going on
	again      bool        // another one is to follow it soon
	next       time.Time   // when it is not: the start of the next one
	quiet      time.Time   // since when nobody answers: creation, or the first probe after the last answer
	called     time.Time   // last call; zero: never
	calling    time.Time   // first of the calls that came without a longer break
	caller     netip.AddrPort
	in         Rewriting
	foreign    bool // packets with another key came from an address of the peer
}

// candidate is an address under which the peer may be reached.
type candidate struct {
	at       netip.AddrPort
	private  bool
	nonce    nonce     // of the probe that is out; meaningless if !waiting
	waiting  bool      // a probe is out
	sent     time.Time // last probe of this round; zero: none
	tries    int       // probes in this round
	answered time.Time // in this round; zero: not
	report   report    // of the last answer
	problem  string    // why the last probe could not be sent
}

// report is what an answer says about the way of the request that it answers.
type report struct {
	local, seen    netip.AddrPort // source as we sent it, and as the peer saw it
	asked, arrived netip.AddrPort // destination as we sent it, and as the peer saw it
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
	tr := &track{timing: t, used: -1, quiet: now, next: now}
	tr.set(p, now)
	return tr
}

// set takes over what has changed about the peer and starts a round. What was confirmed stays so as long as its
// address is among the new ones; else the old address is kept until a new one is found.
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
	t.peer, t.candidates, t.used, t.foreign = p, addresses, used, false
	t.quiet = now
	t.begin(now)
}

// recheck makes the next step begin a round. One that is going on may have asked too early, so another one follows it soon.
func (t *track) recheck(now time.Time) {
	t.again = t.open
	if !t.open {
		t.next = now
	}
}

func (t *track) begin(now time.Time) {
	t.open, t.again = true, false
	if t.used >= 0 { // until now it answered
		t.quiet = now
	}
	for i := range t.candidates {
		c := &t.candidates[i]
		c.sent, c.tries, c.answered, c.waiting = time.Time{}, 0, time.Time{}, false
	}
}

// step brings the search to now and returns the requests to be sent now. pause is drawn for the time to the next round.
func (t *track) step(now time.Time, draw func() nonce, pause func() time.Duration) []probe {
	if !t.open && !now.Before(t.next) {
		t.begin(now)
	}
	if !t.open {
		return nil
	}
	if t.decide(now) {
		t.open, t.next = false, now.Add(pause())
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
		c.nonce, c.waiting, c.sent, c.problem = draw(), true, now, ""
		c.tries++
		out = append(out, probe{t.peer.Name, c.at, c.nonce})
	}
	return out
}

// decide chooses the address by what has come in and says whether the round is over.
func (t *track) decide(now time.Time) bool {
	best := slices.IndexFunc(t.candidates, func(c candidate) bool { return !c.answered.IsZero() })
	if best >= 0 { // the private one stands first
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
	if now.Sub(t.quiet) < t.limit() {
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

// limit is after how long a silence is believed. What was confirmed once is not given up sooner because of a load balancer.
func (t *track) limit() time.Duration {
	if t.peer.BehindLB && t.used < 0 {
		return t.timing.TotalLB
	}
	return t.timing.Total
}

// How an answer was judged.
type judgement int

const (
	accepted  judgement = iota
	stale               // nothing of this nonce is out: late, repeated, or replayed
	elsewhere           // it comes from an address that was not asked
)

// answer takes in an authenticated answer of the peer.
func (t *track) answer(now time.Time, from netip.AddrPort, n nonce, r report) judgement {
	i := slices.IndexFunc(t.candidates, func(c candidate) bool { return c.waiting && c.nonce == n })
	if i < 0 || now.Sub(t.candidates[i].sent) > t.timing.Probe {
		return stale
	}
	c := &t.candidates[i]
	if c.at != from {
		return elsewhere
	}
	c.waiting, c.answered, c.report = false, now, r
	t.foreign = false
	return accepted
}

// call takes in a proven call of the peer. If it begins to call, or calls from another address, it may be reachable again:
// the next step looks.
func (t *track) call(now time.Time, from netip.AddrPort, in Rewriting) {
	begins := !t.calls(now)
	if begins {
		t.calling = now
	}
	if begins && t.used < 0 || !begins && from.Addr() != t.caller.Addr() {
		t.recheck(now)
	}
	t.caller, t.in, t.called, t.foreign = from, in, now, false
}

// foreignKey notes that a packet with another key came from an address. It is only a hint: anybody can send it.
func (t *track) foreignKey(from netip.Addr) {
	if t.used < 0 && slices.ContainsFunc(t.candidates, func(c candidate) bool { return c.at.Addr() == from }) {
		t.foreign = true
	}
}

// unsent notes why a probe could not be sent.
func (t *track) unsent(n nonce, problem string) {
	for i := range t.candidates {
		if t.candidates[i].nonce == n {
			t.candidates[i].problem = problem
		}
	}
}

// calls says whether the peer called lately.
func (t *track) calls(now time.Time) bool {
	return !t.called.IsZero() && now.Sub(t.called) < callsFor*t.timing.Recheck
}

// due is when step has to be called next; it is after now if step was called with now.
func (t *track) due(now time.Time) time.Time {
	times := []time.Time{t.quiet.Add(t.limit()), t.quiet.Add(failedAfter * t.timing.Probe)}
	if !t.called.IsZero() {
		times = append(times, t.called.Add(callsFor*t.timing.Recheck), t.calling.Add(failedAfter*t.timing.Probe))
	}
	if !t.open {
		times = append(times, t.next)
	}
	for _, c := range t.candidates {
		switch {
		case !t.open:
		case !c.answered.IsZero():
			times = append(times, c.answered.Add(t.timing.Grace))
		default:
			times = append(times, c.sent.Add(t.timing.Probe))
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
