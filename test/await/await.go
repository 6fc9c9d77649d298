// Package await polls for what a test expects of something that runs beside it: that something comes, or that it does not.
package await

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	// limit is generous: it is reached only when a test fails, and the machine may be busy.
	limit = 30 * time.Second
	pause = 20 * time.Millisecond
)

// Equal waits until got returns want, and ends the test with the difference if that takes more than 30 s.
func Equal[T any](t testing.TB, want T, got func() T) {
	t.Helper()
	diff := ""
	if !within(limit, func() bool { diff = cmp.Diff(want, got()); return diff == "" }) {
		t.Fatalf("not so within %v, -want +got:\n%s", limit, diff)
	}
}

// Never looks for d whether what may not happen does, and ends the test at once if so. d is several times what it would take to happen.
func Never(t testing.TB, d time.Duration, what string, happens func() bool) {
	t.Helper()
	if begin := time.Now(); within(d, happens) {
		t.Fatalf("after %v of %v: %s", time.Since(begin).Round(time.Millisecond), d, what)
	}
}

// True waits until what is expected holds, and ends the test if that takes more than 30 s.
func True(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !within(limit, holds) {
		t.Fatalf("not within %v: %s", limit, what)
	}
}

// within asks until holds is true, or d is over: then a last time.
func within(d time.Duration, holds func() bool) bool {
	end := time.After(d)
	for {
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
