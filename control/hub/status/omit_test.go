package status

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// The statuses of many clusters together are bounded, the largest are left out first; what is
// applied and healthy stays.
func TestOmit(t *testing.T) {
	sized := func(sizes ...int) (out []workv1alpha2.AggregatedStatusItem) {
		for i, n := range sizes {
			it := workv1alpha2.AggregatedStatusItem{ClusterName: fmt.Sprintf("m%d", i), Applied: true, Health: workv1alpha2.ResourceHealthy}
			if n > 0 {
				it.Status = &runtime.RawExtension{Raw: []byte(strings.Repeat("x", n))}
			}
			out = append(out, it)
		}
		return out
	}
	for name, tt := range map[string]struct {
		items []workv1alpha2.AggregatedStatusItem
		want  string // the sizes that are left; those of messages are not zero
	}{
		"all fit":           {sized(30, 0, 70), "30 0 70"},
		"the largest":       {sized(60, 10, 50), "- 10 50"},
		"several":           {sized(60, 61, 62, 63), "60 - - -"},
		"of many the first": {sized(40, 40, 40), "- 40 40"},
		"one too large":     {sized(200), "-"},
	} {
		omit(tt.items, 100)
		var got []string
		for _, it := range tt.items {
			switch {
			case it.Status != nil:
				got = append(got, fmt.Sprint(len(it.Status.Raw)))
			case strings.Contains(it.AppliedMessage, "at most 100 are kept for all clusters"):
				got = append(got, "-")
			default:
				got = append(got, "0")
			}
			if !it.Applied || it.Health != workv1alpha2.ResourceHealthy {
				t.Errorf("%s: %+v", name, it)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%s: %q, want %q", name, s, tt.want)
		}
	}
}

// With AllEvents a status that was written has an Event, as in Karmada.
func TestEventsOnSuccess(t *testing.T) {
	for all, want := range map[bool]string{false: "", true: "Normal AggregateStatusSucceed done"} {
		events := record.NewFakeRecorder(1)
		(&reconciler{recorder: events, allEvents: all}).succeeded(&workv1alpha2.ResourceBinding{}, "done")
		close(events.Events)
		if got := <-events.Events; got != want {
			t.Errorf("all %v: %q, want %q", all, got, want)
		}
	}
}
