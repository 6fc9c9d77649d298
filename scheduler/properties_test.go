package scheduler

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// world draws clusters, and a request whose affinity requests those without the label "outside".
func world(t *rapid.T) ([]*clusterv1alpha1.Cluster, *Request) {
	var clusters []*clusterv1alpha1.Cluster
	for i := range rapid.IntRange(1, 12).Draw(t, "clusters") {
		c := member(fmt.Sprintf("m%02d", i), rapid.Int64Range(0, 30).Draw(t, "cores"))
		c.Spec.Region = fmt.Sprintf("r%d", rapid.IntRange(1, 4).Draw(t, "region"))
		if rapid.IntRange(0, 5).Draw(t, "tainted") == 0 {
			c.Spec.Taints = []clusterv1alpha1.Taint{{Key: "t", Effect: corev1.TaintEffectNoSchedule}}
		}
		clusters = append(clusters, c)
	}
	strategies := []*policyv1alpha1.ReplicaSchedulingStrategy{nil, byDynamic(), byAggregation(), byWeights(map[string]int64{"m00": 3, "m01": 2, "m02": 2})}
	p := placement(rapid.SampledFrom(strategies).Draw(t, "strategy"))
	p.ClusterAffinity = &policyv1alpha1.ClusterAffinity{ExcludeClusters: []string{"outside"}}
	least := rapid.IntRange(1, 3).Draw(t, "least")
	switch rapid.IntRange(0, 2).Draw(t, "spread") {
	case 1:
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{spreadBy(cluster1, least, least+2)}
	case 2:
		p.SpreadConstraints = []policyv1alpha1.SpreadConstraint{spreadBy(region1, 1, least), spreadBy(cluster1, least, least+2)}
	}
	r := request(rapid.Int32Range(0, 60).Draw(t, "replicas"), p)
	r.UID = types.UID(rapid.StringN(0, 4, -1).Draw(t, "uid"))
	r.Fresh = rapid.IntRange(0, 4).Draw(t, "fresh") == 0
	for _, c := range clusters {
		if n := rapid.Int32Range(-10, 10).Draw(t, "current"); n > 0 {
			r.Current = append(r.Current, workv1alpha2.TargetCluster{Name: c.Name, Replicas: n})
		}
	}
	return clusters, r
}

func TestProperties(t *testing.T) {
	decided := map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		clusters, r := world(t)
		d, err := Schedule(r, NewSnapshot(clusters, nil))
		if err != nil {
			if Invalid(err) {
				t.Fatal(err)
			}
			decided[fmt.Sprintf("%T", err)]++
			return
		}
		decided["clusters"]++
		s := strategyOf(r.Placement)
		var total int32
		had := map[string]int32{}
		for _, c := range r.Current {
			had[c.Name] = c.Replicas
		}
		for i, c := range d.Clusters {
			total += c.Replicas
			if i > 0 && d.Clusters[i-1].Name >= c.Name {
				t.Fatalf("not sorted by name, or twice: %s", show(d))
			}
			if s == duplicated && c.Replicas != r.Replicas {
				t.Fatalf("duplicated, and %s has %d of %d replicas", c.Name, c.Replicas, r.Replicas)
			}
			free := clusters[index(clusters, c.Name)].Status.ResourceSummary.Allocatable.Cpu().Value()
			if (s == dynamic || s == aggregated) && int64(c.Replicas-had[c.Name]) > free {
				t.Fatalf("%s gets %d more replicas and has room for %d", c.Name, c.Replicas-had[c.Name], free)
			}
		}
		if s != duplicated && total != r.Replicas {
			t.Fatalf("%d replicas of %d are divided: %s", total, r.Replicas, show(d))
		}
		n := len(d.Clusters)
		for _, r := range d.Reasons.Grouped(0) {
			n += r.Count
		}
		if n != len(clusters) {
			t.Fatalf("of %d clusters %d are chosen or have a reason: %s, %v", len(clusters), n, show(d), d.Reasons)
		}
		same := func(what string, clusters []*clusterv1alpha1.Cluster) {
			again, err := Schedule(r, NewSnapshot(clusters, nil))
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if diff := cmp.Diff(show(d), show(again)); diff != "" {
				t.Fatalf("%s: -before +after\n%s", what, diff)
			}
		}
		same("the clusters in another order", rapid.Permutation(clusters).Draw(t, "order"))
		same("one more cluster that is not asked for", append([]*clusterv1alpha1.Cluster{member("outside", 1000, in("r0"))}, clusters...))
		// A tainted cluster that loses its replicas by a decision does not fit the next one.
		tainted := slices.ContainsFunc(r.Current, func(c workv1alpha2.TargetCluster) bool {
			return len(clusters[index(clusters, c.Name)].Spec.Taints) > 0
		})
		if !r.Fresh && s != static && !tainted {
			r.Current = d.Clusters
			same("decided again", clusters)
		}
		r.Within = "name in (m00,m02,m03)"
		d, err = Schedule(r, NewSnapshot(clusters, nil))
		outside := func(c workv1alpha2.TargetCluster) bool {
			return !slices.Contains([]string{"m00", "m02", "m03"}, c.Name)
		}
		if Invalid(err) || err == nil && slices.ContainsFunc(d.Clusters, outside) {
			t.Fatalf("within %s: %s, %v", r.Within, show(d), err)
		}
	})
	if decided["clusters"] < 20 || len(decided) < 3 {
		t.Errorf("not every kind of outcome was seen: %v", decided)
	}
}

func index(clusters []*clusterv1alpha1.Cluster, name string) int {
	for i, c := range clusters {
		if c.Name == name {
			return i
		}
	}
	return -1
}
