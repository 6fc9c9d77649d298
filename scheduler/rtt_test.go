package scheduler

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// reporting is a cluster that reports round-trip times to others.
func reporting(name string, rtts map[string]time.Duration) clusterv1alpha1.Cluster {
	c := clusterv1alpha1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for to, rtt := range rtts {
		p := clusterv1alpha1.NetworkPath{Cluster: to, Reachable: rtt >= 0}
		if rtt > 0 {
			p.RTT = &metav1.Duration{Duration: rtt}
		}
		c.Status.Network = append(c.Status.Network, p)
	}
	return c
}

// Each row is a report of the path a–b, every 5 s; used is what decisions use at the end.
func TestRTTTracker(t *testing.T) {
	repeat := func(n int, rtts ...time.Duration) (out []time.Duration) {
		for i := range n {
			out = append(out, rtts[i%len(rtts)])
		}
		return out
	}
	for _, c := range []struct {
		name    string
		reports []time.Duration // -1: not reachable
		used    time.Duration
		changes int
	}{
		{"the first report is used at once", repeat(1, 40*ms), 40 * ms, 1},
		{"small changes are not", repeat(100, 40*ms, 44*ms, 37*ms), 40 * ms, 1},
		{"a change is used after it has lasted", append(repeat(1, 40*ms), repeat(13, 10*ms)...), 10 * ms, 2},
		{"and not before", append(repeat(1, 40*ms), repeat(12, 10*ms)...), 40 * ms, 1},
		{"a path that changes back and forth", repeat(200, 1*ms, 60*ms), 1 * ms, 1},
		{"the change nearest to the time in use counts", append(repeat(1, 40*ms), repeat(13, 60*ms, 90*ms)...), 60 * ms, 2},
		{"one that gets shorter, then longer, than the time in use", append(repeat(1, 40*ms), append(repeat(7, 10*ms), repeat(7, 90*ms)...)...), 40 * ms, 1},
		{"a path is lost", append(repeat(1, 40*ms), repeat(13, -1)...), 0, 2},
		{"a path is lost for a moment", append(repeat(1, 40*ms), append(repeat(11, -1), 40*ms)...), 40 * ms, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tracker RTTTracker
			now, changes := time.Unix(0, 0), 0
			var used RTTs
			for _, rtt := range c.reports {
				var changed bool
				used, changed, _ = tracker.Update([]clusterv1alpha1.Cluster{reporting("a", map[string]time.Duration{"b": rtt}), reporting("b", nil)}, now)
				if changed {
					changes++
				}
				now = now.Add(5 * time.Second)
			}
			if used[pairOf("b", "a")] != c.used || changes != c.changes {
				t.Errorf("%v after %d changes, want %s after %d", used, changes, c.used, c.changes)
			}
		})
	}
}

// next is when a report that stays will be used, even if the clock is set back.
func TestRTTTrackerIsDue(t *testing.T) {
	var tracker RTTTracker
	now := time.Unix(1000, 0)
	update := func(rtt time.Duration) (bool, time.Duration) {
		_, changed, next := tracker.Update([]clusterv1alpha1.Cluster{reporting("a", map[string]time.Duration{"b": rtt})}, now)
		return changed, next
	}
	if changed, next := update(40 * ms); !changed || next != 0 {
		t.Fatalf("first report: %v, due in %s", changed, next)
	}
	if changed, next := update(5 * ms); changed || next != DefaultRTTHold {
		t.Fatalf("a change: %v, due in %s", changed, next)
	}
	now = now.Add(-time.Hour)
	if changed, next := update(5 * ms); changed || next != DefaultRTTHold {
		t.Fatalf("the clock was set back: %v, due in %s", changed, next)
	}
	now = now.Add(DefaultRTTHold)
	if changed, next := update(5 * ms); !changed || next != 0 {
		t.Fatalf("it is due: %v, due in %s", changed, next)
	}
}

// Reports that stay within Nearer of one value, in any order, never change what is used.
func TestRTTsDoNotFlap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var tracker RTTTracker
		base := time.Duration(rapid.IntRange(1, 200).Draw(t, "ms")) * ms
		now := time.Unix(0, 0)
		for i := range rapid.IntRange(1, 50).Draw(t, "reports") {
			rtt := base
			if i > 0 {
				rtt += time.Duration(rapid.IntRange(-1999, 1999).Draw(t, "µs")) * time.Microsecond
			}
			_, changed, _ := tracker.Update([]clusterv1alpha1.Cluster{reporting("a", map[string]time.Duration{"b": max(rtt, time.Microsecond)})}, now)
			if changed != (i == 0) {
				t.Fatalf("report %d, %s instead of %s: changed %v", i, rtt, base, changed)
			}
			now = now.Add(time.Duration(rapid.IntRange(0, 300).Draw(t, "s")) * time.Second)
		}
	})
}

func TestRTTsTo(t *testing.T) {
	r := ReportedRTTs([]clusterv1alpha1.Cluster{
		reporting("a", map[string]time.Duration{"b": 40 * ms, "c": 2 * ms, "d": -1}),
		reporting("b", map[string]time.Duration{"a": 38 * ms, "c": 30 * ms}),
		reporting("d", map[string]time.Duration{"d": 1 * ms, "b": 0}),
	})
	maxRTT := &metav1.Duration{Duration: 20 * ms}
	got := r.To(&policyv1alpha1.Near{Service: "shop/db", MaxRTT: maxRTT}, []string{"a", "b"})
	want := &Near{To: "service shop/db", Max: 20 * ms, Prefer: true, RTT: map[string]time.Duration{"a": 0, "b": 0, "c": 2 * ms}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

func TestLeaves(t *testing.T) {
	targets := func(names ...string) (out []workv1alpha2.TargetCluster) {
		for _, n := range names {
			out = append(out, workv1alpha2.TargetCluster{Name: n})
		}
		return out
	}
	n := &Near{To: "cluster a", Prefer: true, Max: 50 * ms,
		RTT: map[string]time.Duration{"near": 1 * ms, "alike": 2 * ms, "far": 40 * ms, "farther": 100 * ms, "beyond": 51 * ms}}
	for _, c := range []struct {
		name           string
		current, fresh []workv1alpha2.TargetCluster
		want           map[string]string
	}{
		{"a much nearer one", targets("far"), targets("near"), map[string]string{"far": "cluster far is 40ms away from cluster a, cluster near only 1ms"}},
		{"one that is hardly nearer", targets("alike"), targets("near"), map[string]string{}},
		{"it would run in both", targets("far"), targets("far", "near"), map[string]string{}},
		{"it runs in both already", targets("far", "near"), targets("near"), map[string]string{}},
		{"one that is not measured", targets("unknown"), targets("near"), map[string]string{}},
		{"one to a cluster that is not measured", targets("far"), targets("unknown"), map[string]string{}},
		{"too far, whatever else there is", targets("farther"), targets("farther"), map[string]string{"farther": "cluster farther is 100ms away from cluster a, and at most 50ms are accepted"}},
		{"hardly too far", targets("beyond"), targets("beyond"), map[string]string{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, n.Leaves(c.current, c.fresh)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
