package probe

import (
	"time"

	"github.com/pelago-net/pelago/dataplane/loader"
)

// Size is what the large probes of a path have found: bytes of a pod's packet. The zero value: nothing yet.
type Size struct {
	// Full is the largest packet that this node sends, the MTU of pelago0.
	Full int
	// Passes is the largest that comes through.
	Passes int
}

// BlackHole: larger packets vanish on the way, smaller ones do not.
func (s Size) BlackHole() bool { return s.Passes < s.Full }

const (
	// LargeEvery is the time between two large probes of a path on which all is well.
	LargeEvery = 5 * time.Second
	// search again after this long where no large probe of any size was answered: the peer may not know them.
	muteEvery = 30 * time.Second
	// patience is how long an answer is waited for beyond the time that it should take: three probes of an idle path, of which
	// some must come back meanwhile.
	patience = 3 * Idle
	// missing is how many large probes of one size in a row must be lost, until packets of the size are said to be; on a path
	// that loses others as well, missingLossy.
	missing      = 3
	missingLossy = 6
	// healed is how many must pass in a row where packets of the size were lost: the way may have several branches.
	healed = 3
	// least is the smallest size that is tried. Every IPv4 link takes it, with the headers of any wire (RFC 791: 576 bytes).
	least = 400
)

// stage is what the next large probe is to show.
type stage int

const (
	// watching: that packets of full size pass.
	watching stage = iota
	// checking: with packets of full size lost, that those pass that did.
	checking
	// searching: which size passes.
	searching
	// confirming: after the search, that packets of full size are still lost.
	confirming
)

// sizing finds out which packets pass a path. It is pure: the prober tells it what was answered.
type sizing struct {
	size  Size
	full  int // MTU of pelago0
	stage stage
	// low passes and high does not; searching.
	low, high int
	// lost, passed: probes of the size in a row.
	lost, passed int
	next         time.Time
	// out is the size of the probe that is under way, 0: none is.
	out  int
	sent time.Time
}

// due is the size of the probe to be sent now; 0: none.
func (s *sizing) due(full int, path loader.Path, now time.Time) int {
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

// changed begins anew with another MTU of pelago0. Until that is known better, packets that were lost are still.
func (s *sizing) changed(full int, now time.Time) {
	kept := Size{}
	if s.size.BlackHole() && s.size.Passes < full {
		kept = Size{Full: full, Passes: s.size.Passes}
	}
	*s = sizing{full: full, size: kept, next: now}
}

// began notes that a probe was sent.
func (s *sizing) began(size int, now time.Time) { s.out, s.sent = size, now }

// waited says whether the answer would be here.
func (s *sizing) waited(path loader.Path, now time.Time) bool {
	return now.Sub(s.sent) > patience+path.SRTT+4*path.RTTVar
}

// answered takes in that the probe under way passed.
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

// missed takes in that the answer to the probe under way did not come.
func (s *sizing) missed(path loader.Path, now time.Time) {
	if path.Seen >= now.Sub(s.sent) || path.Suspect() { // nothing comes through
		s.void(now)
		return
	}
	size := s.out
	s.out, s.passed, s.next = 0, 0, now
	need := missing
	if path.Lossy() {
		need = missingLossy
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
	case s.low == 0: // not even the least: it does not answer large probes at all, or not at present
		s.stage, s.next = watching, now.Add(muteEvery)
	default:
		s.high = size
		s.narrow()
	}
}

// void takes in that the probe under way says nothing of sizes.
func (s *sizing) void(now time.Time) { s.out, s.lost, s.passed, s.next = 0, 0, 0, now.Add(LargeEvery) }

func (s *sizing) narrow() {
	if s.high-s.low <= 1 {
		s.stage = confirming
	}
}

func (s *sizing) found(passes int, now time.Time) {
	s.size = Size{Full: s.full, Passes: passes}
	s.stage, s.passed, s.lost, s.next = watching, 0, 0, now.Add(LargeEvery)
}
