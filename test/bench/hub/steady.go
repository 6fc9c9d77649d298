package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// steadyResult is what templates at a steady rate came to.
type steadyResult struct {
	ms     []float64 // from apply to existence, for each template and member, sorted
	writes writes
}

// measureSteady applies templates one after another, as users do, and looks when they are in the
// members.
func measureSteady(ctx context.Context, o options) (got steadyResult, err error) {
	s, err := newStage(ctx, o, "steady", o.members, 0, 0, nil)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	workloads, err := newRunning(ctx, s.set.Members)
	if err != nil {
		return got, err
	}
	s.arrived.tell(workloads.came)
	if err := s.user.Create(ctx, namespaceObject()); err != nil {
		return got, fmt.Errorf("create the namespace: %w", err)
	}
	slog.Info("applying", "templates", o.templates, "per second", o.rate)
	sent, err := steady(ctx, s.user, o.templates, o.rate, s.members)
	if err != nil {
		return got, err
	}
	if _, err := s.done(ctx, o.templates); err != nil {
		return got, err
	}
	got.ms = s.arrived.latencies(sent)
	if want := o.templates * len(s.members); len(got.ms) != want {
		return got, fmt.Errorf("%d arrivals were seen, not %d", len(got.ms), want)
	}
	if err := workloads.done(); err != nil {
		return got, err
	}
	if err := s.reported(ctx); err != nil {
		return got, err
	}
	got.writes, err = s.writes(ctx)
	return got, err
}

// reported waits until all templates report all replicas in all members as ready: only then have
// all writes that a template causes been made.
func (s *stage) reported(ctx context.Context) error {
	for end := time.Now().Add(s.options.stall); ; {
		var templates appsv1.DeploymentList
		if err := s.observer.List(ctx, &templates, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("read the templates: %w", err)
		}
		waiting := 0
		for _, d := range templates.Items {
			if d.Status.ReadyReplicas != *d.Spec.Replicas*int32(len(s.members)) || d.Status.ObservedGeneration != d.Generation {
				waiting++
			}
		}
		if waiting == 0 {
			return nil
		}
		if time.Now().After(end) {
			return s.explain(fmt.Errorf("%d of %d templates do not say that all their replicas are ready", waiting, len(templates.Items)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
