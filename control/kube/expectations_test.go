package kube_test

import (
	"errors"
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
		wrote(t, &v, own)
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
	wrote(t, &v, made("10"))
	if v.Observed("a", "9") || !v.Observed("a", "10") || v.Observed("a", "10") {
		t.Error("10 is observed once, 9 is not our own")
	}
	if got := v.Latest("a", nil, now); got != nil {
		t.Errorf("what was observed is not expected any more: %v", got)
	}
}

func wrote(t *testing.T, v *kube.Expectations[string], o client.Object) {
	t.Helper()
	if others, err := v.Write("a", o, func() error { return nil }); others || err != nil {
		t.Fatalf("others %t, %v", others, err)
	}
}

// A watch may show what a write made before the server has answered it, and what others made
// meanwhile.
func TestWrite(t *testing.T) {
	failed := errors.New("no answer")
	for name, tt := range map[string]struct {
		seen     []string // "": the end of the object
		err      error
		others   bool
		expected bool
	}{
		"nothing is seen":            {nil, nil, false, true},
		"its own version":            {[]string{"10"}, nil, false, false},
		"an older one, then its own": {[]string{"9", "10"}, nil, true, false},
		"its own, then a newer one":  {[]string{"10", "11"}, nil, true, false},
		"an older one":               {[]string{"9"}, nil, true, true},
		"the end":                    {[]string{""}, nil, true, false},
		"it failed":                  {nil, failed, false, false},
		"it failed, and it is shown": {[]string{"10"}, failed, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			var v kube.Expectations[string]
			own := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "8"}}
			others, err := v.Write("a", own, func() error {
				own.ResourceVersion = "10"
				for _, s := range tt.seen {
					if s == "" {
						v.Forget("a")
					} else if !v.Observed("a", s) {
						t.Errorf("%s causes a reconcile during the write", s)
					}
				}
				return tt.err
			})
			if others != tt.others || !errors.Is(err, tt.err) {
				t.Errorf("others %t, %v", others, err)
			}
			if got := v.Latest("a", nil, time.Now()); (got != nil) != tt.expected {
				t.Errorf("it is expected: %v", got)
			}
			if v.Observed("a", "12") {
				t.Error("a later version is taken for its own")
			}
		})
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
