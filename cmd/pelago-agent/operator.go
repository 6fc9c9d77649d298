package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/operator"
)

// openOperator constructs the controllers of the role operator.
func openOperator(ctx context.Context, cfg *rest.Config, o options) (*agent, error) {
	s, err := operator.Scheme()
	if err != nil {
		return nil, err
	}
	mo := managerOptions(o, s)
	mo.LeaderElectionNamespace = o.namespace
	mo.Cache = operator.Cache(o.namespace)
	live := kube.Liveness(metrics.Registry, func() time.Time { return time.Time{} })
	mo.Metrics.ExtraHandlers = map[string]http.Handler{
		"/healthz": healthz.CheckHandler{Checker: live}, "/readyz": healthz.CheckHandler{Checker: healthz.Ping},
	}
	mgr, err := ctrl.NewManager(cfg, mo)
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return &agent{manager: mgr, live: live, changed: context.Background()}, errors.Join(
		operator.Add(ctx, mgr, operator.Options{Namespace: o.namespace, Image: o.image, GiveUp: o.giveUp, Retry: o.retry}),
		mgr.AddHealthzCheck("liveness", live), mgr.AddReadyzCheck("ping", healthz.Ping),
	)
}
