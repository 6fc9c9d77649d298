// Package await polls for what a test expects of something that runs concurrently: that a condition
// becomes true, or stays false.
package await

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	// limit ends a test that fails. It is far above what a busy machine needs.
	limit = 3 * time.Minute
	// A condition that becomes true is polled with pauses that grow, so that a long wait costs an
	// API server little; one that must stay false with short pauses throughout.
	firstPause, longestPause, neverPause = 5 * time.Millisecond, 50 * time.Millisecond, 20 * time.Millisecond
)

// Equal waits until got returns want, and ends the test with the difference if that takes minutes.
func Equal[T any](t testing.TB, want T, got func() T) {
	t.Helper()
	diff := ""
	if !within(limit, firstPause, longestPause, func() bool { diff = cmp.Diff(want, got()); return diff == "" }) {
		t.Fatalf("not equal within %v, -want +got:\n%s", limit, diff)
	}
}

// Never polls for d, and ends the test if the condition becomes true. d is several times what it
// would take.
func Never(t testing.TB, d time.Duration, what string, happens func() bool) {
	t.Helper()
	if begin := time.Now(); within(d, neverPause, neverPause, happens) {
		t.Fatalf("after %v of %v: %s", time.Since(begin).Round(time.Millisecond), d, what)
	}
}

// True waits until the condition is true, and ends the test if that takes minutes.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !within(limit, firstPause, longestPause, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// within polls until holds returns true or d is over, and then once more. Each pause is half as
// long again as the one before, up to the longest.
func within(d, pause, longest time.Duration, holds func() bool) bool {
	end := time.After(d)
	for ; ; pause = min(pause+pause/2, longest) {
		if holds() {
			return true
		}
		select {
		case <-end:
			return holds()
		case <-time.After(pause):
		}
	}
}
