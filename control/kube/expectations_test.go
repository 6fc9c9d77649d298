package kube_test

import (
	"github.com/pelago-net/pelago/control/kube"
	"testing"
	"time"
)

func TestVersions(t *testing.T) {
	var v kube.Expectations[string]
	now := time.Now()
	if v.Stale("a", "1", now) {
		t.Error("behind what was never written")
	}
	v.Expect("a", "10", now)
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
		if got := v.Stale(tt.key, tt.cached, now.Add(tt.after)); got != tt.want {
			t.Errorf("%s at %s after %v: %v", tt.key, tt.cached, tt.after, got)
		}
	}
	if !v.OwnWrite("a", "10") || v.OwnWrite("a", "11") || v.OwnWrite("b", "") {
		t.Error("10 is our own version of a, 11 is not, and there is none of b")
	}
	if !v.LastWrite("a").Equal(now) || !v.LastWrite("b").IsZero() {
		t.Errorf("last writes %v and %v", v.LastWrite("a"), v.LastWrite("b"))
	}
	v.Forget("a")
	if v.Stale("a", "9", now) {
		t.Error("what is gone is waited for")
	}
}

func TestOlder(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"9", "10", true}, {"10", "9", false}, {"10", "10", false}, {"", "10", false}, {"a", "b", false}} {
		if got := kube.OlderVersion(tt.a, tt.b); got != tt.want {
			t.Errorf("%q, %q: %v", tt.a, tt.b, got)
		}
	}
}
