package work

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// A reconcile that only met a stale cache is no sample; one that failed next to that is an error.
func TestDurations(t *testing.T) {
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "works"}, "w", errors.New("newer"))
	stale := kube.StaleCache(&workv1alpha1.Work{}, "1", "2")
	for name, tt := range map[string]struct {
		err  error
		want map[string]uint64
	}{
		"written":                     {nil, map[string]uint64{"success": 1}},
		"failed":                      {errors.New("broken"), map[string]uint64{"error": 1}},
		"a conflict":                  {errors.Join(conflict), map[string]uint64{}},
		"a stale cache":               {stale, map[string]uint64{}},
		"failed, and the cache stale": {errors.Join(stale, errors.New("broken")), map[string]uint64{"error": 1}},
	} {
		d := durations{prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "d"}, []string{"result"})}
		d.observe(time.Now(), tt.err)
		registry := prometheus.NewRegistry()
		registry.MustRegister(d)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]uint64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()] = m.GetHistogram().GetSampleCount()
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: samples by result, -want +got\n%s", name, diff)
		}
	}
}
