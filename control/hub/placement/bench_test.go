package placement

import (
	"fmt"
	"testing"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// BenchmarkDecide is a decision of a hub with 100,000 bindings in 1,000 namespaces, in one that has a
// quota, and of a template that belongs to a workload affinity group.
func BenchmarkDecide(b *testing.B) {
	r := NewCache(CacheOptions{})
	large := member("m", 1<<20, 0)
	large.Status.ResourceSummary.Allocatable = amounts(1<<20, 1<<20)
	r.SetClusters([]*clusterv1alpha1.Cluster{large})
	for i := range 100_000 {
		r.Observe(fmt.Sprintf("ns-%d/web-%d", i%1000, i), seen("1", 1))
	}
	r.SetQuotas("ns-1", []Quota{{Name: "q", Hard: hard("cpu=1000000")}})
	for name, groups := range map[string]*workv1alpha2.WorkloadAffinityGroups{"quota": nil, "group": {AffinityGroup: "app=web"}} {
		b.Run(name, func(b *testing.B) {
			req := request(2, weighted, workv1alpha2.TargetCluster{Name: "m", Replicas: 1})
			req.Groups = groups
			for b.Loop() {
				_, reservation, err := r.Decide("ns-1/web-1", req)
				if err != nil {
					b.Fatal(err)
				}
				reservation.Release()
			}
		})
	}
}
