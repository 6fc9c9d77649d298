package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/test/hubset"
)

const (
	// pairLabel of a template names the policy, and with it the two members.
	pairLabel = "bench.pelago.io/pair"
	// calm is how long all queues must be empty at the end.
	calm = 10 * time.Second
)

// scaleResult is how large the hub is with many members.
type scaleResult struct {
	rss, largest int64              // bytes
	queues       map[string]float64 // at the end, those that are not empty
	took         time.Duration
	// processor time of the hub for a taint of one cluster that comes or goes, in ms
	flips []float64
}

// measureScale places each template on two of many members: memory, and whether the queues empty.
func measureScale(ctx context.Context, o options) (got scaleResult, err error) {
	s, err := newStage(ctx, o, "scale", 0, o.simulated, time.Second, nil)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	start := time.Now()
	if err := s.place(ctx); err != nil {
		return got, err
	}
	if err := s.await(ctx, 2*o.placed); err != nil {
		return got, err
	}
	if got.queues, err = s.calm(ctx); err != nil {
		return got, err
	}
	got.took = time.Since(start)
	if got.rss, got.largest, err = s.hub.RSS(); err != nil {
		return got, err
	}
	got.flips, err = s.flips(ctx)
	return got, err
}

// flips taints a member and removes the taint, twice each, and returns the hub's processor time
// beyond what it uses at rest, which is measured before each.
func (s *stage) flips(ctx context.Context) (ms []float64, err error) {
	used := func() (cpu, took float64, err error) {
		before, err := s.hub.Metrics(ctx)
		if err != nil {
			return 0, 0, err
		}
		start := time.Now()
		if depths, err := s.calm(ctx); err != nil || len(depths) > 0 {
			return 0, 0, errors.Join(err, fmt.Errorf("the hub does not come to rest, queues %v", depths))
		}
		after, err := s.hub.Metrics(ctx)
		return after[processorTime] - before[processorTime], time.Since(start).Seconds(), err
	}
	for i := range 4 {
		rest, over, err := used()
		if err != nil {
			return nil, s.explain(err)
		}
		var c clusterv1alpha1.Cluster
		if err := s.user.Get(ctx, client.ObjectKey{Name: s.members[len(s.members)/2]}, &c); err != nil {
			return nil, fmt.Errorf("read the Cluster to be tainted: %w", err)
		}
		before := c.DeepCopy()
		if c.Spec.Taints = nil; i%2 == 0 {
			c.Spec.Taints = []clusterv1alpha1.Taint{{Key: "bench.pelago.io/flip", Effect: corev1.TaintEffectNoSchedule}}
		}
		if err := s.user.Patch(ctx, &c, client.MergeFrom(before)); err != nil {
			return nil, fmt.Errorf("taint Cluster %s: %w", c.Name, err)
		}
		cpu, took, err := used()
		if err != nil {
			return nil, s.explain(err)
		}
		ms = append(ms, 1000*max(0, cpu-rest/over*took))
	}
	return ms, nil
}

// processorTime is a process's, in seconds, in its metrics.
const processorTime = "process_cpu_seconds_total"

// place makes a policy for each member and its neighbour, and the templates.
func (s *stage) place(ctx context.Context) error {
	if err := s.user.Create(ctx, namespaceObject()); err != nil {
		return fmt.Errorf("create the namespace: %w", err)
	}
	pairs := len(s.members)
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for i, m := range s.members {
		g.Go(func() error {
			selector := &policyv1alpha1.ResourceSelector{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{pairLabel: m}}}
			p := onePolicy(m, selector, []string{m, s.members[(i+1)%pairs]})
			p.Spec.PropagateDeps = false
			return s.user.Create(ctx, p)
		})
	}
	for i := range s.options.placed {
		g.Go(func() error {
			return s.user.Create(ctx, deployment(fmt.Sprintf("%s%05d", prefix, i+1), "", map[string]string{pairLabel: s.members[i%pairs]}))
		})
	}
	if err := g.Wait(); err != nil {
		return fmt.Errorf("create policies and templates: %w", err)
	}
	return nil
}

// await waits until the members hold n Deployments.
func (s *stage) await(ctx context.Context, n int) error {
	for before, since, said := -1, time.Now(), time.Now(); ; {
		have := inMembers(s.set.Members)
		if have >= n {
			return nil
		}
		if have != before {
			before, since = have, time.Now()
		}
		if time.Since(said) > 10*time.Second {
			said = time.Now()
			now, _, err := s.hub.RSS()
			if err != nil {
				return s.explain(err)
			}
			slog.Info("arriving", "objects", have, "of", n, "rss MiB", now>>20)
		}
		if time.Since(since) > s.options.stall {
			return s.explain(fmt.Errorf("%d of %d objects are in the members, and none has come for %v", have, n, s.options.stall))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func inMembers(members []*hubset.Member) (n int) {
	for _, m := range members {
		n += m.Simulated.Count("apps", "v1", "deployments", namespace)
	}
	return n
}

// calm waits until all queues have been empty for a while, and returns those that are not, if that
// takes too long.
func (s *stage) calm(ctx context.Context) (map[string]float64, error) {
	end, since := time.Now().Add(s.options.stall), time.Now()
	for {
		metrics, err := s.hub.Metrics(ctx)
		if err != nil {
			return nil, s.explain(err)
		}
		depths := hubset.Queues(metrics)
		if len(depths) == 0 {
			return nil, fmt.Errorf("the hub's metrics show no queue")
		}
		for name, depth := range depths {
			if depth == 0 {
				delete(depths, name)
			}
		}
		if len(depths) > 0 {
			since = time.Now()
		}
		if time.Since(since) > calm || time.Now().After(end) {
			return depths, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
}
