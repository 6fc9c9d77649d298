package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// bindings follows which bindings have a decision, and which report that members hold what they
// should, by a watch of its own.
type bindings struct {
	mu      sync.Mutex
	decided map[string]time.Time
	applied map[string]bool
	last    time.Time
	more    chan struct{} // has room for one: another one reports it
}

// watchBindings watches the hub until ctx ends.
func watchBindings(ctx context.Context, hub *rest.Config) (*bindings, error) {
	b := &bindings{decided: map[string]time.Time{}, applied: map[string]bool{}, more: make(chan struct{}, 1)}
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	hub = rest.CopyConfig(hub)
	hub.UserAgent = "bench-observer"
	c, err := cache.New(hub, cache.Options{Scheme: scheme, DefaultNamespaces: map[string]cache.Config{namespace: {}}})
	if err != nil {
		return nil, fmt.Errorf("watch the bindings: %w", err)
	}
	// it returns when ctx ends; the one error is that it was started twice
	go func() { _ = c.Start(ctx) }()
	informer, err := c.GetInformer(ctx, &workv1alpha2.ResourceBinding{})
	if err != nil {
		return nil, fmt.Errorf("watch the bindings: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { b.note(o.(*workv1alpha2.ResourceBinding), time.Now()) },
		UpdateFunc: func(_, o any) { b.note(o.(*workv1alpha2.ResourceBinding), time.Now()) },
	})
	if err != nil {
		return nil, fmt.Errorf("watch the bindings: %w", err)
	}
	return b, nil
}

func (b *bindings) note(of *workv1alpha2.ResourceBinding, now time.Time) {
	says := slices.ContainsFunc(of.Status.Conditions, func(c metav1.Condition) bool {
		return c.Type == workv1alpha2.ConditionFullyApplied && c.Status == metav1.ConditionTrue
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, known := b.decided[of.Name]; !known && len(of.Spec.Clusters) > 0 {
		b.decided[of.Name] = now
	}
	if says == b.applied[of.Name] {
		return
	}
	if !says {
		delete(b.applied, of.Name)
		return
	}
	b.applied[of.Name], b.last = true, now
	select {
	case b.more <- struct{}{}:
	default:
	}
}

func (b *bindings) count() (int, time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.applied), b.last
}

// lastDecision is when the last binding got its first decision.
func (b *bindings) lastDecision() (last time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.decided {
		if at.After(last) {
			last = at
		}
	}
	return last
}
