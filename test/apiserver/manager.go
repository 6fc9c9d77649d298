package apiserver

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// Manager is a set of controllers that a test runs against a server.
type Manager struct {
	Scheme *runtime.Scheme
	// NewClient makes the manager's client; nil for the usual one. A test that loses answers puts
	// its own in here.
	NewClient client.NewClientFunc
	Cache     cache.Options
	// Setup adds the controllers.
	Setup []func(ctrl.Manager) error
}

// Run starts a manager without leader election and returns how to stop it, which the end of the
// test does as well. Stopping cancels everything at once: nothing is written or cleaned up any
// more.
func (m Manager) Run(t testing.TB, to *rest.Config) (stop func()) {
	t.Helper()
	mgr, err := ctrl.NewManager(to, ctrl.Options{
		Scheme:     m.Scheme,
		NewClient:  m.NewClient,
		Cache:      m.Cache,
		Metrics:    metrics.Options{BindAddress: "0"},
		Controller: config.Controller{SkipNameValidation: ptr.To(true)},
		Logger:     logr.Discard(), // tests report failures themselves
		// for goroutines to end, so that no write comes after stop
		GracefulShutdownTimeout: ptr.To(5 * time.Second),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, setup := range m.Setup {
		if err := setup(mgr); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run the manager: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}
