package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

// Which replicas are to move, and when they are due.
func TestUnschedulable(t *testing.T) {
	report := func(replicas, ready, pods int32, since time.Duration) workv1alpha2.AggregatedStatusItem {
		at := ago(since)
		return workv1alpha2.AggregatedStatusItem{ClusterName: "m2", Applied: true, UnschedulablePods: pods, UnschedulableSince: &at,
			Status: &runtime.RawExtension{Raw: fmt.Appendf(nil, `{"replicas": %d, "readyReplicas": %d}`, replicas, ready)}}
	}
	old := 6 * time.Minute
	stale, unread, undated := report(3, 1, 2, old), report(3, 1, 2, old), report(3, 1, 2, old)
	stale.Applied, unread.Status, undated.UnschedulableSince = false, &runtime.RawExtension{Raw: []byte("[]")}, nil
	for name, c := range map[string]struct {
		item   workv1alpha2.AggregatedStatusItem
		after  time.Duration
		change func(binding.Binding)
		want   string
	}{
		"some":                          {item: report(3, 1, 2, old), want: "[{m2 2 []}] in 30s"},
		"too early":                     {item: report(3, 1, 2, 4*time.Minute), want: "[] in 1m0s"},
		"another threshold":             {item: report(3, 1, 2, 4*time.Minute), after: time.Minute, want: "[{m2 2 []}] in 30s"},
		"turned off":                    {item: report(3, 1, 2, old), after: -1, want: "[] in 0s"},
		"not those that are ready":      {item: report(3, 2, 3, old), want: "[{m2 1 []}] in 30s"},
		"none":                          {item: report(3, 1, 0, old), want: "[] in 0s"},
		"of another number of replicas": {item: report(4, 1, 2, old), want: "[] in 0s"},
		"not applied":                   {item: stale, want: "[] in 0s"},
		"a status that is none":         {item: unread, want: "[] in 0s"},
		"without a time":                {item: undated, want: "[] in 0s"},
		"while it is evicted": {item: report(3, 1, 2, old), want: "[] in 0s", change: func(b binding.Binding) {
			b.Spec.GracefulEvictionTasks = []workv1alpha2.GracefulEvictionTask{{FromCluster: "m3"}}
		}},
	} {
		b := evicted()
		b.Status.AggregatedStatus[1] = c.item
		if c.change != nil {
			c.change(b)
		}
		v := Evictor{EvictionOptions: EvictionOptions{UnschedulableAfter: c.after}.Defaulted(), Now: evictionTime}
		var e Eviction
		v.unschedulable(b, &e)
		if got := fmt.Sprint(e.Unschedulable, " in ", e.Next); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	before := &workv1alpha2.Decision{Moved: map[string]metav1.MicroTime{"m1": micro(2 * time.Hour), "m2": micro(time.Minute)}}
	if got := slices.Collect(maps.Keys(Moved(before, evictionTime))); len(got) != 1 || got[0] != "m2" {
		t.Errorf("left in the last hour: %v", got)
	}
}
