package hubclient_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
)

// A hub that nobody answers at: everything starts, nothing waits, nothing is delivered.
func TestHubAway(t *testing.T) {
	h, err := hubclient.New(hubclient.Options{
		Server: "https://127.0.0.1:1", CA: nil, Namespace: "broker", Token: func() string { return "t" },
		MinPause: time.Millisecond, MaxPause: 2 * time.Millisecond, Logger: logr.Discard(),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- h.Start(ctx) }()
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	request := []reconcile.Request{{}}
	for _, s := range []interface {
		Start(context.Context, workqueue.TypedRateLimitingInterface[reconcile.Request]) error
	}{
		h.Source(&submarinerv1.Cluster{}, func(client.Object) []reconcile.Request { return request }),
		h.OnSync(func(context.Context) []reconcile.Request { return request }),
	} {
		if err := s.Start(ctx, queue); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(300 * time.Millisecond) // nothing may be delivered
	if h.Synced() || queue.Len() > 0 {
		t.Errorf("synced %v, %d requests without a hub", h.Synced(), queue.Len())
	}
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(3 * time.Minute):
		t.Error("the cache does not end with its context")
	}
}
