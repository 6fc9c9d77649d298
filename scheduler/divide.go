package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler/affinity"
)

// divide gives the replicas to the chosen clusters, which are sorted, the best first.
func (j *task) divide(chosen []candidate) ([]workv1alpha2.TargetCluster, error) {
	if !j.workload() {
		return each(chosen, 0), nil
	}
	switch j.strategy {
	case static:
		return j.divideStatic(chosen)
	case dynamic, aggregated:
		return j.divideByRoom(chosen)
	}
	return each(chosen, j.Replicas), nil
}

func each(chosen []candidate, replicas int32) []workv1alpha2.TargetCluster {
	out := make([]workv1alpha2.TargetCluster, 0, len(chosen))
	for _, c := range chosen {
		out = append(out, workv1alpha2.TargetCluster{Name: c.name, Replicas: replicas})
	}
	return out
}

// targets are the shares that got something.
func targets(shares []share) []workv1alpha2.TargetCluster {
	var out []workv1alpha2.TargetCluster
	for _, s := range shares {
		if s.seats > 0 {
			out = append(out, workv1alpha2.TargetCluster{Name: s.cluster, Replicas: int32(s.seats)})
		}
	}
	return out
}

// divideStatic divides by the policy's weights, from zero each time and whatever room there is. A cluster that several rules match
// has the largest weight of them, one that none matches gets nothing; where no rule matches any, all are equal.
func (j *task) divideStatic(chosen []candidate) ([]workv1alpha2.TargetCluster, error) {
	shares := make([]share, len(chosen))
	for i, c := range chosen {
		shares[i].cluster = c.name
	}
	if p := j.Placement.ReplicaScheduling.WeightPreference; p != nil {
		for i := range p.StaticWeightList {
			m, err := affinity.Parse(&p.StaticWeightList[i].TargetCluster)
			if err != nil {
				return nil, err
			}
			for k, c := range chosen {
				if m.Matches(c.of) {
					shares[k].weight = max(shares[k].weight, p.StaticWeightList[i].Weight)
				}
			}
		}
	}
	if !slices.ContainsFunc(shares, func(s share) bool { return s.weight > 0 }) {
		for i := range shares {
			shares[i].weight = 1
		}
	}
	apportion(int64(j.Replicas), shares, tieOf(j.UID))
	return targets(shares), nil
}

// divideByRoom divides by how many replicas the clusters have room for, dynamically weighted or aggregated in as few clusters as
// hold them. What runs stays where it is: only what is too much is taken away, and only what is missing is added. Tiers are filled
// in their order, and emptied in the reverse one.
func (j *task) divideByRoom(chosen []candidate) ([]workv1alpha2.TargetCluster, error) {
	if j.Fresh {
		chosen = slices.Clone(chosen)
		for i := range chosen {
			chosen[i].free, chosen[i].current = chosen[i].available(), 0
		}
	}
	current, free := func(c candidate) int64 { return c.current }, func(c candidate) int64 { return c.free }
	assigned := sum(chosen, current)
	part, by, adds := int64(j.Replicas), current, false
	if part >= assigned {
		part, by, adds = part-assigned, free, true
		if room := sum(chosen, free); room < part {
			return nil, &UnschedulableError{Message: fmt.Sprintf(
				"clusters have room for %d more replicas and %d are needed: add nodes or clusters, or ask for fewer replicas", room, part)}
		}
	}
	var shares []share
	for _, tier := range byTier(chosen) {
		n := min(part, sum(tier, by))
		part -= n
		shares = append(shares, j.divideTier(tier, by, n)...)
	}
	if adds {
		for i, c := range chosen {
			shares[i].seats += c.current
		}
	}
	return targets(shares), nil
}

// divideTier divides replicas among the clusters of one tier, and returns their shares in the same order.
func (j *task) divideTier(tier []candidate, by func(candidate) int64, replicas int64) []share {
	shares := make([]share, 0, len(tier))
	for _, c := range tier {
		shares = append(shares, share{cluster: c.name, weight: by(c)})
	}
	if j.strategy == aggregated {
		few := setOf(fewest(tier, by, replicas))
		for i, c := range tier {
			if !few[c.cluster] {
				shares[i].weight = 0
			}
		}
	}
	apportion(replicas, shares, tieOf(j.UID))
	return shares
}

// fewest are the clusters that hold so many replicas together: those that have some first, then the roomiest.
func fewest(tier []candidate, by func(candidate) int64, replicas int64) []candidate {
	sorted := slices.Clone(tier)
	slices.SortStableFunc(sorted, func(a, b candidate) int {
		return cmp.Or(compareTrue(a.current > 0, b.current > 0), cmp.Compare(by(b), by(a)))
	})
	held := int64(0)
	for i, c := range sorted {
		if held += by(c); held >= replicas {
			return sorted[:i+1]
		}
	}
	return sorted
}

func sum(all []candidate, of func(candidate) int64) (n int64) {
	for _, c := range all {
		n += of(c)
	}
	return n
}

// byTier splits sorted candidates.
func byTier(sorted []candidate) (out [][]candidate) {
	for from := 0; from < len(sorted); {
		to := from
		for to < len(sorted) && sorted[to].tier == sorted[from].tier {
			to++
		}
		out = append(out, sorted[from:to])
		from = to
	}
	return out
}
