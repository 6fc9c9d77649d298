package kube

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pelago-net/pelago/test/await"
)

func TestLiveness(t *testing.T) {
	for _, tt := range []struct {
		name             string
		running, attempt time.Duration // ago; attempt 0: none yet
		want             string
	}{
		{name: "idle, no lease"},
		{name: "working", running: time.Minute, attempt: time.Second},
		{name: "reconcile hangs", running: 16 * time.Minute, want: "a reconcile of controller peers has been running for 16m0s"},
		{name: "leader election hangs", attempt: 2 * time.Minute, want: "the lease was last attempted 2m0s ago"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			queues := prometheus.NewRegistry()
			queues.MustRegister(broken{}) // which must not restart anything
			running := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: longestRunning}, []string{"name", "controller"})
			queues.MustRegister(running)
			running.WithLabelValues("peers", "peers").Set(tt.running.Seconds())
			running.WithLabelValues("export", "export").Set(0)
			err := Liveness(queues, func() time.Time {
				if tt.attempt == 0 {
					return time.Time{}
				}
				return time.Now().Add(-tt.attempt)
			})(nil)
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// broken is a collector that fails.
type broken struct{}

var never = prometheus.NewDesc("never", "fails", nil, nil)

func (broken) Describe(out chan<- *prometheus.Desc) { out <- never }
func (broken) Collect(out chan<- prometheus.Metric) {
	out <- prometheus.NewInvalidMetric(never, errors.New("fails"))
}

// TestLongestRunning: controller-runtime has the gauge that Liveness reads, and it shows a
// reconcile that hangs.
func TestLongestRunning(t *testing.T) {
	unblock := make(chan struct{})
	c, err := controller.NewUnmanaged("hangs", controller.Options{
		Reconciler: reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			<-unblock
			return reconcile.Result{}, nil
		}),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Watch(source.Func(func(_ context.Context, q workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		q.Add(reconcile.Request{})
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Start(ctx) }()
	await.True(t, longestRunning, func() bool {
		families, err := metrics.Registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == longestRunning && m.GetGauge().GetValue() > 0 {
					return true
				}
			}
		}
		return false
	})
	close(unblock)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
