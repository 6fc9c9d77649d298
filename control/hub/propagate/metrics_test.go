package propagate

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelago-net/pelago/scheduler"
)

// Names and labels are Karmada's; `promtool check metrics` has nothing against
// them.
func TestMetrics(t *testing.T) {
	c, err := newCounts()
	if err != nil {
		t.Fatal(err)
	}
	again, err := newCounts() // of another manager in this process: the same ones
	if err != nil || again.attempts != c.attempts {
		t.Fatalf("a second manager has metrics of its own: %v", err)
	}
	registry := prometheus.NewRegistry()
	for _, v := range []prometheus.Collector{c.match, c.apply, c.attempts, c.preempted, c.decisions, c.decided} {
		registry.MustRegister(v)
	}
	c.attempts.Reset()
	c.decisions.Reset()
	began := time.Now()
	stale := apierrors.NewConflict(schema.GroupResource{Resource: "deployments"}, "web", errors.New("changed"))
	failed := errors.New("no answer")
	c.match.WithLabelValues().Observe(since(began))
	c.preempted.WithLabelValues(resultOf(nil)).Inc()
	for _, err := range []error{nil, nil, failed, stale} {
		c.applied(began, err)
	}
	for _, d := range []decision{
		{began: began, first: true}, {began: began}, {},
		{began: began, failure: &scheduler.FitError{}}, {began: began, failure: &scheduler.UnschedulableError{}},
		{began: began, failure: fmt.Errorf("spread: %w", &scheduler.SpreadError{})}, {began: began, failure: failed},
	} {
		c.decision(d, nil)
	}
	c.decision(decision{began: began, first: true}, failed)
	c.decision(decision{began: began, first: true}, stale)
	got := map[string]float64{}
	for _, result := range []string{"success", "error"} {
		got["apply "+result] = testutil.ToFloat64(c.attempts.WithLabelValues(result))
	}
	for _, result := range []string{"scheduled", "unschedulable", "error"} {
		for _, kind := range []string{"first", "again"} {
			got[result+" "+kind] = testutil.ToFloat64(c.decisions.WithLabelValues(result, kind))
		}
	}
	want := map[string]float64{"apply success": 2, "apply error": 1, "scheduled first": 1, "scheduled again": 1,
		"unschedulable first": 0, "unschedulable again": 3, "error first": 1, "error again": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}
