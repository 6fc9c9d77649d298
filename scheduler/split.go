package scheduler

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Split divides a total over clusters by their weights as Schedule divides replicas (Webster's method, ties as for the UID of the
// template), so that for example the completions of a Job go with its replicas. Clusters without a part are not in the result.
func Split(total int64, weights map[string]int64, uid types.UID) map[string]int64 {
	shares := make([]share, 0, len(weights))
	clusters := slices.Sorted(maps.Keys(weights))
	for at, cluster := range clusters {
		shares = append(shares, share{at: at, weight: weights[cluster]})
	}
	apportion(total, shares, tieOf(uid))
	var out map[string]int64
	for _, s := range shares {
		if s.seats == 0 {
			continue
		}
		if out == nil {
			out = map[string]int64{}
		}
		out[clusters[s.at]] = s.seats
	}
	return out
}
