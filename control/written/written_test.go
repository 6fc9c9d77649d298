package written_test

import (
	"testing"
	"time"

	"github.com/pelago-net/pelago/control/written"
)

func TestVersions(t *testing.T) {
	var v written.Versions[string]
	now := time.Now()
	if v.Behind("a", "1", now) {
		t.Error("behind what was never written")
	}
	v.Note("a", "10", now)
	for _, tt := range []struct {
		key, cached string
		after       time.Duration
		want        bool
	}{
		{"a", "9", 0, true}, // as a number, not as text
		{"a", "10", 0, false},
		{"a", "11", 0, false},
		{"b", "9", 0, false},
		{"a", "9", time.Minute, false}, // the server has been restored
	} {
		if got := v.Behind(tt.key, tt.cached, now.Add(tt.after)); got != tt.want {
			t.Errorf("%s at %s after %v: %v", tt.key, tt.cached, tt.after, got)
		}
	}
	if !v.Wrote("a", "10") || v.Wrote("a", "11") || v.Wrote("b", "") {
		t.Error("10 is our own version of a, 11 is not, and there is none of b")
	}
	if !v.Last("a").Equal(now) || !v.Last("b").IsZero() {
		t.Errorf("last writes %v and %v", v.Last("a"), v.Last("b"))
	}
	v.Forget("a")
	if v.Behind("a", "9", now) {
		t.Error("what is gone is waited for")
	}
}

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"9", "10", true}, {"10", "9", false}, {"10", "10", false}, {"", "10", false}, {"a", "b", false}} {
		if got := written.Older(tt.a, tt.b); got != tt.want {
			t.Errorf("%q, %q: %v", tt.a, tt.b, got)
		}
	}
}
