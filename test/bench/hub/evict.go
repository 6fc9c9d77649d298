package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// dying is how many templates the failed cluster of the case evict has, and evictMembers how many
// other members there are.
const (
	dying        = 500
	evictMembers = 4
)

// evictResult is the end of a cluster: from its last answer until the first and the last template
// runs elsewhere.
type evictResult struct {
	first, moved time.Duration
	rss, largest int64
}

// measureEvict measures how all templates of one member move to others after that member has
// stopped answering.
func measureEvict(ctx context.Context, o options) (got evictResult, err error) {
	s, err := newStage(ctx, o, caseEvict, 0, 1+evictMembers, time.Second, nil)
	if err != nil {
		return got, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := s.user.Create(ctx, namespaceObject()); err != nil {
		return got, fmt.Errorf("create the namespace: %w", err)
	}
	p := onePolicy("evicted", &policyv1alpha1.ResourceSelector{}, nil)
	p.Spec.PropagateDeps = false
	p.Spec.Placement = policyv1alpha1.Placement{
		ClusterAffinities: []policyv1alpha1.ClusterAffinityTerm{
			{AffinityName: "first", ClusterAffinity: policyv1alpha1.ClusterAffinity{ClusterNames: s.members[:1]}},
			{AffinityName: "then", ClusterAffinity: policyv1alpha1.ClusterAffinity{ClusterNames: s.members[1:]}}},
		SpreadConstraints: []policyv1alpha1.SpreadConstraint{{SpreadByField: policyv1alpha1.SpreadByFieldCluster, MinGroups: 1, MaxGroups: 1}},
	}
	p.Spec.Failover = &policyv1alpha1.FailoverBehavior{Cluster: &policyv1alpha1.ClusterFailoverBehavior{}}
	if err := s.user.Create(ctx, p); err != nil {
		return got, fmt.Errorf("create the policy: %w", err)
	}
	if err := atOnce(ctx, dying, inFlight, func(ctx context.Context, i int) error {
		return s.user.Create(ctx, deployment(fmt.Sprintf("%s%05d", prefix, i), "", nil))
	}); err != nil {
		return got, fmt.Errorf("create the templates: %w", err)
	}
	if err := s.await(ctx, dying); err != nil {
		return got, err
	}
	if depths, err := s.calm(ctx); err != nil || len(depths) > 0 {
		return got, s.explain(fmt.Errorf("the hub does not come to rest, queues %v: %w", depths, errors.Join(err, context.DeadlineExceeded)))
	}
	if n := inMembers(s.set.Members[:1]); n != dying {
		return got, fmt.Errorf("%s has %d templates, want all %d", s.members[0], n, dying)
	}
	end := time.Now()
	if err := s.set.Members[0].Simulated.Close(); err != nil {
		return got, fmt.Errorf("end %s: %w", s.members[0], err)
	}
	slog.Info("a cluster answers no longer", "cluster", s.members[0], "templates", dying)
	if err := s.await(ctx, dying+1); err != nil { // what it had counts on
		return got, err
	}
	got.first = time.Since(end)
	if err := s.await(ctx, 2*dying); err != nil {
		return got, err
	}
	got.moved = time.Since(end)
	got.rss, got.largest, err = s.hub.RSS()
	return got, err
}
