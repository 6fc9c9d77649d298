package services

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelago-net/pelago/control/kube"
)

// counted counts the writes of a client by operation. The metrics are Lighthouse's, whose
// dashboards use them: gauges that only grow, with the name and direction of its syncers.
type counted struct {
	client.Client
	writes *prometheus.GaugeVec // by operation
}

func newCounted(to client.Client, name, help, direction, syncer string) (counted, error) {
	vec, err := kube.Registered(prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"direction", "operation", "syncer_name"}))
	if err != nil {
		return counted{}, fmt.Errorf("register metric %s: %w", name, err)
	}
	writes, err := vec.CurryWith(prometheus.Labels{"direction": direction, "syncer_name": syncer})
	if err != nil {
		return counted{}, fmt.Errorf("register metric %s: %w", name, err)
	}
	return counted{Client: to, writes: writes}, nil
}

func (c counted) count(operation string, err error) error {
	if err == nil {
		c.writes.WithLabelValues(operation).Inc()
	}
	return err
}

func (c counted) Create(ctx context.Context, obj client.Object, opts ...client.CreateOption) error {
	return c.count("create", c.Client.Create(ctx, obj, opts...))
}

func (c counted) Update(ctx context.Context, obj client.Object, opts ...client.UpdateOption) error {
	return c.count("update", c.Client.Update(ctx, obj, opts...))
}

func (c counted) Delete(ctx context.Context, obj client.Object, opts ...client.DeleteOption) error {
	return c.count("delete", c.Client.Delete(ctx, obj, opts...))
}
