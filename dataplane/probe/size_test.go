package probe

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/dataplane/liveness"
)

// way is a path as a sizing meets it: time passes by looks.
type way struct {
	sizing
	now  time.Time
	full int
	path liveness.Path
	// passes is what comes through; lose reports whether a probe that would is lost all the same.
	passes int
	lose   func() bool
	large  int // probes sent
}

func newWay(full, passes int) *way {
	return &way{
		now: time.Unix(1, 0), full: full, passes: passes, lose: func() bool { return false },
		path: liveness.Path{Replies: 1, Ready: true, Seen: 50 * time.Millisecond},
	}
}

// run lets time pass.
func (w *way) run(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(Idle) {
		if w.out != 0 {
			switch {
			case w.out <= w.passes && !w.lose():
				w.answered(w.now)
			case w.waited(w.path, w.now):
				w.missed(w.path, w.now)
			}
		}
		if size := w.due(w.full, w.path, w.now); size > 0 {
			w.large++
			w.began(size, w.now)
		}
	}
}

func (w *way) expect(t *testing.T, what string, want liveness.Size) {
	t.Helper()
	if w.size != want {
		t.Errorf("%s: %+v; want %+v", what, w.size, want)
	}
}

func TestBlackHole(t *testing.T) {
	w := newWay(1390, 2000)
	w.run(time.Second)
	w.expect(t, "all pass", liveness.Size{Full: 1390, Passes: 1390})
	w.run(time.Minute)
	if w.large > 15 {
		t.Errorf("%d large probes in a minute; want one in %s", w.large, LargeEvery)
	}
	w.passes = 1230
	w.run(time.Minute)
	w.expect(t, "packets over 1,230 bytes are lost", liveness.Size{Full: 1390, Passes: 1230})
	w.passes = 1100
	w.run(time.Minute)
	w.expect(t, "and now those over 1,100", liveness.Size{Full: 1390, Passes: 1100})
	w.passes = 1250
	w.run(time.Minute)
	w.expect(t, "a little better, which is not looked for", liveness.Size{Full: 1390, Passes: 1100})
	w.passes = 1390
	w.run(time.Minute)
	w.expect(t, "healed", liveness.Size{Full: 1390, Passes: 1390})
}

// No black hole: everything is lost, the path is suspect, no large probe was ever answered, or the
// peer is not ready.
func TestNoBlackHole(t *testing.T) {
	w := newWay(1390, 2000)
	w.run(time.Second)
	w.passes, w.path.Seen = 0, time.Hour
	w.run(time.Minute)
	w.expect(t, "the peer is dead", liveness.Size{Full: 1390, Passes: 1390})
	w.passes = 1200
	w.path.Seen = 0
	w.path.Open, w.path.OldestOpen = 5, time.Second
	w.run(time.Minute)
	w.expect(t, "the path is suspect", liveness.Size{Full: 1390, Passes: 1390})

	w = newWay(1390, 0)
	w.run(5 * time.Minute)
	w.expect(t, "the peer knows no large probes", liveness.Size{})
	if w.large > 60 {
		t.Errorf("%d large probes in five minutes to a peer that does not know them", w.large)
	}

	w = newWay(1390, 2000)
	w.path.Ready = false
	w.run(time.Minute)
	w.expect(t, "not ready", liveness.Size{})
}

// A changed MTU is probed at once; a known black hole persists until a probe refutes it.
func TestChangedMTU(t *testing.T) {
	w := newWay(1390, 1230)
	w.run(time.Minute)
	w.expect(t, "at first", liveness.Size{Full: 1390, Passes: 1230})
	w.full = 1300
	w.run(Idle)
	w.expect(t, "a smaller MTU, still too large", liveness.Size{Full: 1300, Passes: 1230})
	w.full = 1200
	w.run(time.Second)
	w.expect(t, "an MTU that passes", liveness.Size{Full: 1200, Passes: 1200})
	w.full, w.passes = 8890, 8000
	w.run(time.Minute)
	w.expect(t, "jumbo frames", liveness.Size{Full: 8890, Passes: 8000})
}

// Whatever the sizes are and whether one probe in ten is lost, the size that passes is found to the
// byte, and no hole where none exists.
func TestSizeIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		full := rapid.IntRange(least+1, 9000).Draw(t, "MTU")
		passes := rapid.IntRange(least, 9500).Draw(t, "passes")
		w := newWay(full, passes)
		if rapid.Bool().Draw(t, "lossy") {
			// A rapid source would shrink towards every probe being lost; this loses one of ten,
			// never three in a row.
			w.path.Loss = 0.1
			n := rapid.IntRange(0, 9).Draw(t, "first lost")
			w.lose = func() bool { n++; return n%10 == 0 }
		}
		w.run(2 * time.Minute)
		if want := (liveness.Size{Full: full, Passes: min(full, passes)}); w.size != want {
			t.Errorf("%+v; want %+v", w.size, want)
		}
	})
}
