package status

import (
	"fmt"
	"math"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/liveness"
)

const (
	// steady is how long probes must be answered without a gap before a path is reported as
	// connected again. Packets do not wait for it.
	steady = 3 * time.Second
	// firstAnswer bounds how long a path without any answer is reported as connecting.
	firstAnswer = 10 * time.Second
	// forgetOutage bounds how long after an outage the measured loss may still be due to the
	// outage.
	forgetOutage = 30 * time.Second
	// rttSamples is the length of the window of latencyRTT.
	rttSamples = 1000
)

// damped is a condition with hysteresis: it becomes bad at once, and good again only after steady.
type damped struct {
	bad  bool
	good time.Time // when it became good again; zero: it has not
}

func (d *damped) update(bad, good bool, now time.Time) {
	switch {
	case bad:
		*d = damped{bad: true}
	case !d.bad:
	case !good:
		d.good = time.Time{}
	case d.good.IsZero():
		d.good = now
	case now.Sub(d.good) >= steady:
		*d = damped{}
	}
}

// trackedPath is the path to one gateway as it is reported.
type trackedPath struct {
	first    time.Time // of the first observation
	answered bool      // ever
	path     liveness.Path
	dead     damped
	lossy    damped
	loss     float64   // the last that was too high, 0 to 1
	outage   time.Time // until when probes of an outage may be part of the loss; zero: none are
	rtt      rttWindow
	status   submarinerv1.ConnectionStatus
	since    time.Time // of the status
	size     liveness.Size
	overhead int // of the wire, on the uplinks
}

// update records the path; known: the kernel has it, which it has not while no tunnel leads there.
func (s *trackedPath) update(p liveness.Path, known bool, now time.Time) {
	if s.first.IsZero() {
		s.first = now
	}
	s.path = p
	s.answered = s.answered || p.Replies > 0
	answers := known && p.Replies > 0 && !p.Suspect()
	lost := !known || p.Dead()
	s.dead.update(lost && (s.answered || now.Sub(s.first) >= firstAnswer), answers && p.Ready, now)
	switch {
	case s.dead.bad:
		s.outage = now.Add(forgetOutage)
	case !p.Degraded() || now.After(s.outage):
		s.outage = time.Time{}
	}
	if p.Degraded() {
		s.loss = p.Loss
	}
	s.lossy.update(known && p.Degraded() && s.outage.IsZero(), answers && !p.Degraded() || !s.outage.IsZero(), now)
	s.rtt.update(p)
	if status := s.current(); status != s.status {
		s.status, s.since = status, now
	}
}

// shown is what is reported of a path at once: all but numbers.
type shown struct {
	status          submarinerv1.ConnectionStatus
	lossy, measured bool
	size            liveness.Size
}

func (s *trackedPath) shown() shown { return shown{s.status, s.lossy.bad, s.rtt.n > 0, s.size} }

func (s *trackedPath) current() submarinerv1.ConnectionStatus {
	switch {
	case s.dead.bad && s.dead.good.IsZero():
		return submarinerv1.ConnectionError
	case s.dead.bad || !s.answered || !s.path.Ready:
		return submarinerv1.Connecting
	}
	return submarinerv1.Connected
}

// message explains the status; flow is the UDP port and address to check.
func (s *trackedPath) message(flow string) string {
	switch {
	case s.dead.bad && !s.dead.good.IsZero():
		return fmt.Sprintf("answers again; connected after %s without a gap", steady)
	case s.dead.bad && s.answered:
		return "probes are not answered any more: does the node run, and does " + flow + " pass?"
	case s.dead.bad:
		return "no probe was ever answered: does " + flow + " pass in both directions?"
	case !s.answered:
		return "waiting for the first answer to a probe"
	case !s.path.Ready:
		return "answers, but its tables are not complete yet"
	case s.lossy.bad:
		degraded := fmt.Sprintf("degraded: %.0f %% of the probes are lost", 100*s.loss)
		if lost := s.largeLost(); lost != "" {
			degraded += "; " + lost
		}
		return degraded
	}
	return s.largeLost()
}

// largeLost describes which large packets are lost; empty if none are.
func (s *trackedPath) largeLost() string {
	hole, firewall := s.blackHole(), s.gsoLost()
	if hole != "" && firewall != "" {
		return hole + "; " + firewall
	}
	return hole + firewall
}

// gsoLost describes that merged packets from the peer do not pass this node's stack; empty if they
// do.
func (s *trackedPath) gsoLost() string {
	if !s.size.GSOLost {
		return ""
	}
	return fmt.Sprintf("large TCP transfers from there to pods of this node stall: its firewall drops UDP %d of packets that the network card or GRO has merged "+
		"(condition %s of its NodeIndex)", dataplane.OverlayPort, pelagov1alpha1.NodeFirewall)
}

// lossPercent is the share of the probes that are lost while the path is degraded; else 0.
func (s *trackedPath) lossPercent() int32 {
	if !s.lossy.bad {
		return 0
	}
	return int32(math.Round(100 * s.loss))
}

// rttWindow summarizes round-trip times (deviation by Welford's method), rttSamples at a time.
type rttWindow struct {
	replies         uint64 // of the path at the last update
	n               float64
	last, low, high time.Duration
	mean, squares   float64
}

// update records the last reply, if there is a new one. The first counts even if an earlier process
// sent its probe.
func (w *rttWindow) update(p liveness.Path) {
	if p.Replies != w.replies && p.Replies > 0 {
		w.replies = p.Replies
		w.add(p.RTT)
	}
}

func (w *rttWindow) add(rtt time.Duration) {
	if w.n == rttSamples {
		*w = rttWindow{replies: w.replies}
	}
	if w.n == 0 || rtt < w.low {
		w.low = rtt
	}
	w.high, w.last = max(w.high, rtt), rtt
	w.n++
	delta := float64(rtt) - w.mean
	w.mean += delta / w.n
	w.squares += delta * (float64(rtt) - w.mean)
}

func (w *rttWindow) spec() *submarinerv1.LatencyRTTSpec {
	if w == nil || w.n == 0 {
		return nil
	}
	deviation := time.Duration(0)
	if w.n > 1 {
		deviation = time.Duration(math.Sqrt(w.squares / (w.n - 1)))
	}
	text := func(d time.Duration) string { return d.Round(time.Microsecond).String() }
	return &submarinerv1.LatencyRTTSpec{
		Last: text(w.last), Min: text(w.low), Average: text(time.Duration(w.mean)), Max: text(w.high), StdDev: text(deviation),
	}
}

// blackHole describes that large packets are lost on the path, and the remedy; empty if none are.
func (s *trackedPath) blackHole() string {
	size, overhead := s.size, s.overhead
	if !size.BlackHole() {
		return ""
	}
	return fmt.Sprintf("packets of more than %d bytes are lost on the way (with headers %d; the uplinks allow %d), so pods are told to send none: "+
		"let packets of %d bytes pass on every link between the nodes, or set the MTU of the uplinks to %d",
		size.Passes, size.Passes+overhead, size.Full+overhead, size.Full+overhead, size.Passes+overhead)
}
