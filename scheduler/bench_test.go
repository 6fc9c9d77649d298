package scheduler

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// BenchmarkSchedule decides mixed bindings: each strategy with and without spread constraints, new
// and running ones.
func BenchmarkSchedule(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(fmt.Sprintf("clusters=%d", n), func(b *testing.B) {
			var clusters []*clusterv1alpha1.Cluster
			for i := range n {
				clusters = append(clusters, member(fmt.Sprintf("member-%04d", i), int64(10+i%50), in(fmt.Sprintf("region-%02d", i%20))))
			}
			s := NewSnapshot(clusters, nil)
			requests := mixed(clusters)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, err := Schedule(requests[i%len(requests)], s); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
		})
	}
}

func mixed(clusters []*clusterv1alpha1.Cluster) (out []*Request) {
	weights := byWeights(map[string]int64{clusters[0].Name: 3, clusters[1].Name: 2, clusters[2].Name: 1})
	spreads := [][]policyv1alpha1.SpreadConstraint{nil, {spreadBy(cluster1, 2, 5)}, {spreadBy(region1, 2, 4), spreadBy(cluster1, 3, 8)}}
	for i := range 200 {
		for _, s := range []*policyv1alpha1.ReplicaSchedulingStrategy{nil, weights, byDynamic(), byAggregation()} {
			p := placement(s, spreads[i%len(spreads)]...)
			r := request(int32(1+i%40), p)
			if i%2 == 1 {
				r = request(int32(1+i%40), p, fmt.Sprintf("%s=%d", clusters[i%len(clusters)].Name, 1+i%10))
			}
			r.UID = types.UID(fmt.Sprint("uid-", i))
			out = append(out, r)
		}
	}
	return out
}
