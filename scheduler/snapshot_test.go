package scheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

func TestAssume(t *testing.T) {
	clusters := []*clusterv1alpha1.Cluster{member("b", 6), member("a", 10)}
	before := NewSnapshot(clusters, map[string]Load{"a": LoadOf(resources("cpu", "1"), 4)})
	after := before.Assume(maps.All(map[string]Load{
		"a": LoadOf(resources("cpu", "1"), 1), "b": LoadOf(resources("cpu", "2"), 2), "x": {},
	}))
	for name, c := range map[string]struct {
		s       *Snapshot
		cluster string
		current []string
		most    int32
	}{
		"assumed at the beginning":        {s: before, cluster: "a", most: 6},
		"nothing assumed":                 {s: before, cluster: "b", most: 6},
		"other sums replace the first":    {s: after, cluster: "a", most: 9},
		"sums where there were none":      {s: after, cluster: "b", most: 2},
		"what runs has room":              {s: after, cluster: "b", current: []string{"b=3"}, most: 5},
		"a cluster that is not there":     {s: after, cluster: "x", most: 0},
		"a snapshot is not changed by it": {s: before.Assume(maps.All(map[string]Load{})), cluster: "a", most: 6},
	} {
		r := request(1, placement(byDynamic()), c.current...)
		fits := func(replicas int32) bool {
			return c.s.Fits(r, []workv1alpha2.TargetCluster{{Name: c.cluster, Replicas: replicas}})
		}
		if !fits(c.most) || fits(c.most+1) {
			t.Errorf("%s: %d fit: %v, one more: %v", name, c.most, fits(c.most), fits(c.most+1))
		}
	}
}

// TestShared: what a snapshot remembers of other requests, and takes over from an earlier one,
// changes no decision.
func TestShared(t *testing.T) {
	reasons := cmp.Transformer("reasons", func(r Reasons) []Reason { return r.Grouped(len(r.of)) })
	kept := 0
	for seed := range uint64(40) {
		g := draw{rand.New(rand.NewPCG(seed, 2))}
		clusters, assumed := g.clusters()
		s := NewSnapshot(clusters, assumed)
		for range 4 {
			var deciders sync.WaitGroup
			for range 20 {
				r := g.request(clusters)
				if g.one(5) {
					r.Kind.Kind = "StatefulSet" // not served
				}
				deciders.Go(func() {
					got, gotErr := Schedule(r, s)
					want, wantErr := Schedule(r, NewSnapshot(clusters, assumed))
					if diff := cmp.Diff(want, got, reasons); diff != "" || fmt.Sprint(gotErr) != fmt.Sprint(wantErr) {
						t.Errorf("seed %d: %v, want %v; -want +got\n%s", seed, gotErr, wantErr, diff)
					}
				})
			}
			deciders.Wait()
			before := s.shape
			clusters = g.later(clusters)
			if s = s.Renew(clusters); s.shape == before {
				kept++
			}
		}
	}
	if kept < 15 || kept > 145 {
		t.Errorf("of 160 times the clusters stayed the same but for their room %d times", kept)
	}
}

// later is the clusters at a later time: newer versions of some, of which some differ in their room
// only; one more or less.
func (g draw) later(clusters []*clusterv1alpha1.Cluster) []*clusterv1alpha1.Cluster {
	clusters = slices.Clone(clusters)
	calm := g.one(2)
	for i, c := range clusters {
		if !g.one(3) {
			continue
		}
		c = c.DeepCopy()
		clusters[i] = c
		c.ResourceVersion += "1"
		if c.Status.ResourceSummary != nil {
			c.Status.ResourceSummary.Allocated = resources("cpu", fmt.Sprint(g.IntN(9)))
		}
		if calm {
			continue
		}
		switch g.IntN(8) {
		case 0:
			c.Labels["tier"] = "bronze"
		case 1:
			c.Spec.Region = "r4"
		case 2:
			c.Spec.Taints = nil
		case 3:
			c.Status.APIEnablements = nil
		case 4:
			c.Status.Conditions = nil
		case 5:
			removed(c)
		}
	}
	if !calm && g.one(3) {
		clusters = append(clusters[1:], member(fmt.Sprint("new", g.IntN(1000)), 9))
	}
	return clusters
}

func TestKeyOf(t *testing.T) {
	seen := map[string]policyv1alpha1.ClusterAffinity{}
	g := draw{rand.New(rand.NewPCG(1, 3))}
	clusters, _ := g.clusters()
	for range 5000 {
		a := g.affinity(clusters)
		a.ClusterNames, a.ExcludeClusters = nil, nil
		if before, ok := seen[keyOf(&a)]; !ok {
			seen[keyOf(&a)] = a
		} else if diff := cmp.Diff(before, a); diff != "" {
			t.Fatalf("different selectors with one key:\n%s", diff)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d different ones were drawn", len(seen))
	}
}
