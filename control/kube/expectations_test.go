package kube_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
)

func TestExpectations(t *testing.T) {
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

func TestLatest(t *testing.T) {
	now := time.Now()
	made := func(version string) client.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: version}}
	}
	for name, tt := range map[string]struct {
		cached client.Object
		after  time.Duration
		want   string
	}{
		"the cache does not have it yet": {nil, 0, "10"},
		"the cache is older":             {made("9"), 0, "10"},
		"the cache shows it":             {made("10"), 0, "cached"},
		"the cache is newer":             {made("11"), 0, "cached"},
		"the server has been restored":   {made("9"), time.Minute, "cached"},
		"it is gone from the server":     {nil, time.Minute, "cached"},
	} {
		var v kube.Expectations[string]
		own := made("10")
		v.ExpectObject("a", own, now)
		want := tt.cached
		if tt.want == "10" {
			want = own
		}
		if got := v.Latest("a", tt.cached, now.Add(tt.after)); got != want {
			t.Errorf("%s: %v", name, got)
		}
		if got := v.Latest("b", tt.cached, now); got != tt.cached {
			t.Errorf("%s: of what was never written: %v", name, got)
		}
	}
	var v kube.Expectations[string]
	v.ExpectObject("a", made("10"), now)
	if v.Observed("a", "9") || !v.Observed("a", "10") || v.Observed("a", "10") {
		t.Error("10 is observed once, 9 is not our own")
	}
	if got := v.Latest("a", nil, now); got != nil {
		t.Errorf("what was observed is not expected any more: %v", got)
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
