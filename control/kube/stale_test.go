package kube_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelago-net/pelago/control/kube"
)

// A reconcile that waits for its cache for a minute is reported once, in log, Event and metric,
// until the cache has caught up.
func TestStaleCaches(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	stale := fmt.Errorf("read it: %w", kube.StaleCache(pod, "7", "9"))
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "pods"}, "web", errors.New("changed"))
	for name, tt := range map[string]struct {
		err    error
		events int
		log    string
	}{
		"a version that does not come": {stale, 1, `object="Pod default/web" cached=7 expected=9`},
		"conflict after conflict":      {conflict, 0, "level=WARN"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var out bytes.Buffer
				events := record.NewFakeRecorder(10)
				s, err := kube.NewStaleCaches[string]("test", slog.New(slog.NewTextHandler(&out, nil)), events)
				if err != nil {
					t.Fatal(err)
				}
				reconcile := func(err error) time.Duration {
					t.Helper()
					result, err := s.Result("web", 0, err)
					if err != nil {
						t.Fatal(err)
					}
					return result.RequeueAfter
				}
				for start := time.Now(); time.Since(start) < time.Minute; {
					if out.Len() > 0 || len(events.Events) > 0 || waiting(t) != 0 {
						t.Fatalf("reported after %v: %s", time.Since(start), &out)
					}
					wait := reconcile(tt.err)
					if wait <= 0 || wait > 10*time.Second {
						t.Fatalf("repeated after %v", wait)
					}
					time.Sleep(wait)
				}
				reconcile(tt.err)
				reconcile(tt.err)
				if got := []int{strings.Count(out.String(), "\n"), len(events.Events), int(waiting(t))}; !cmp.Equal(got, []int{1, tt.events, 1}) {
					t.Errorf("log lines, Events, metric: %v", got)
				}
				if !strings.Contains(out.String(), tt.log) {
					t.Errorf("log %s", &out)
				}
				if wait := reconcile(nil); wait != 0 || waiting(t) != 0 {
					t.Errorf("after the cache has caught up: repeated after %v, metric %v", wait, waiting(t))
				}
			})
		})
	}
}

// Errors other than a stale cache are returned, also when joined with one.
func TestStaleCachesPassErrors(t *testing.T) {
	s, err := kube.NewStaleCaches[string]("test", slog.Default(), record.NewFakeRecorder(1))
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	for _, err := range []error{broken, errors.Join(kube.StaleCache(&corev1.Pod{}, "1", "2"), broken)} {
		if result, got := s.Result("web", time.Second, err); result.RequeueAfter != time.Second || !errors.Is(got, broken) {
			t.Errorf("%v: %v, %v", err, result, got)
		}
	}
}

// waiting is the metric of the test's controller.
func waiting(t *testing.T) float64 {
	t.Helper()
	families, err := metrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "pelago_hub_stale_cache_waiting" && m.GetLabel()[0].GetValue() == "test" {
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}
