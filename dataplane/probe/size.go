package probe

import (
	"time"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

const (
	// LargeEvery is the time between two large probes of a path on which all is well.
	LargeEvery = 5 * time.Second
	// muteEvery is the retry interval for a peer that answers no large probe of any size; it may
	// not support them.
	muteEvery = 30 * time.Second
	// patience bounds the wait for a reply beyond its expected time: three probes of an idle path,
	// some of which must be answered meanwhile.
	patience = 3 * Idle
	// missing is the number of consecutive large probes that must be lost until their size counts
	// as lost; missingDegraded on a degraded path.
	missing         = 3
	missingDegraded = 6
	// healed is the number of consecutive replies that end a black hole: the path may have several
	// branches.
	healed = 3
	// least is the smallest size tried; with the headers of any wire it fits every IPv4 link (RFC
	// 791: 576 bytes).
	least = 400
)

// stage is the purpose of the next large probe.
type stage int

const (
	// watching checks that packets of full size pass.
	watching stage = iota
	// checking checks, while packets of full size are lost, that those of the known size still
	// pass.
	checking
	// searching finds the largest size that passes.
	searching
	// confirming checks, after the search, that packets of full size are still lost.
	confirming
)

// sizing is the state machine of one path's size. It is pure: the prober feeds it replies and
// losses.
type sizing struct {
	size  liveness.Size
	full  int // MTU of pelago0
	stage stage
	// low passes and high does not; searching.
	low, high int
	// lost and passed count consecutive probes of the current size.
	lost, passed int
	next         time.Time
	// out is the size of the probe that is under way, 0: none is.
	out  int
	sent time.Time
}

// due returns the size of the probe to be sent now; 0: none.
func (s *sizing) due(full int, path liveness.Path, now time.Time) int {
	if full != s.full {
		s.changed(full, now)
	}
	if s.out != 0 || full <= least || now.Before(s.next) || path.Replies == 0 || !path.Ready || path.Suspect() {
		return 0
	}
	switch s.stage {
	case checking:
		return s.size.Passes
	case searching:
		if s.low == 0 {
			return least
		}
		return (s.low + s.high) / 2
	}
	return full
}

// changed restarts with another MTU of pelago0. A known black hole persists until a probe refutes
// it.
func (s *sizing) changed(full int, now time.Time) {
	kept := liveness.Size{}
	if s.size.BlackHole() && s.size.Passes < full {
		kept = liveness.Size{Full: full, Passes: s.size.Passes}
	}
	*s = sizing{full: full, size: kept, next: now}
}

// began records that a probe was sent.
func (s *sizing) began(size int, now time.Time) { s.out, s.sent = size, now }

// waited reports whether the reply is overdue.
func (s *sizing) waited(path liveness.Path, now time.Time) bool {
	return now.Sub(s.sent) > patience+path.SRTT+4*path.RTTVar
}

// answered handles the reply to the probe in flight.
func (s *sizing) answered(now time.Time) {
	size := s.out
	s.out, s.lost, s.next = 0, 0, now
	switch s.stage {
	case watching, confirming:
		if s.passed++; !s.size.BlackHole() || s.passed >= healed {
			s.found(s.full, now)
		}
	case checking:
		s.stage, s.passed, s.next = watching, 0, now.Add(LargeEvery)
	case searching:
		s.low = size
		s.narrow()
	}
}

// missed handles the loss of the probe in flight.
func (s *sizing) missed(path liveness.Path, now time.Time) {
	if path.Seen >= now.Sub(s.sent) || path.Suspect() { // nothing comes through
		s.void(now)
		return
	}
	size := s.out
	s.out, s.passed, s.next = 0, 0, now
	need := missing
	if path.Degraded() {
		need = missingDegraded
	}
	if s.lost++; s.lost < need {
		return
	}
	s.lost = 0
	switch {
	case s.stage == watching && s.size.BlackHole():
		s.stage = checking
	case s.stage == watching || s.stage == checking:
		s.stage, s.low, s.high = searching, 0, s.full
	case s.stage == confirming:
		s.found(s.low, now)
	case s.low == 0:
		// not even the least: it does not answer large probes at all, or not at present
		s.stage, s.next = watching, now.Add(muteEvery)
	default:
		s.high = size
		s.narrow()
	}
}

// void discards the probe in flight, whose loss is no evidence of a size.
func (s *sizing) void(now time.Time) { s.out, s.lost, s.passed, s.next = 0, 0, 0, now.Add(LargeEvery) }

func (s *sizing) narrow() {
	if s.high-s.low <= 1 {
		s.stage = confirming
	}
}

func (s *sizing) found(passes int, now time.Time) {
	s.size = liveness.Size{Full: s.full, Passes: passes}
	s.stage, s.passed, s.lost, s.next = watching, 0, 0, now.Add(LargeEvery)
}
