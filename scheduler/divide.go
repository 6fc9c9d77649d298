package scheduler

import (
	"fmt"
	"slices"
)

// divide divides the replicas over the selected clusters, which are sorted, the best first.
func (j *task) divide(chosen []candidate) ([]share, error) {
	if !j.workload() {
		return each(chosen, 0), nil
	}
	if j.Replicas == 0 && j.strategy != duplicated {
		if !j.Empty {
			chosen = slices.DeleteFunc(slices.Clone(chosen), func(c candidate) bool { return !c.runs })
		}
		return each(chosen, 0), nil
	}
	switch j.strategy {
	case static:
		return j.divideStatic(chosen)
	case dynamic, aggregated:
		return j.divideByCapacity(chosen)
	}
	return each(chosen, j.Replicas), nil
}

func each(chosen []candidate, replicas int32) []share {
	out := make([]share, 0, len(chosen))
	for _, c := range chosen {
		out = append(out, share{at: c.at, seats: int64(replicas)})
	}
	return out
}

// winners are the shares with replicas.
func winners(shares []share) []share {
	return slices.DeleteFunc(shares, func(s share) bool { return s.seats == 0 })
}

// divideStatic divides by the policy's weights, regardless of current replicas and capacity. The
// weight of a cluster is the largest of the rules that match it, 0 if none does; if no rule matches
// any cluster, all weights are equal.
func (j *task) divideStatic(chosen []candidate) ([]share, error) {
	shares := make([]share, len(chosen))
	for i, c := range chosen {
		shares[i].at = c.at
	}
	if p := j.Placement.ReplicaScheduling.WeightPreference; p != nil {
		for i := range p.StaticWeightList {
			near, err := j.matching(&p.StaticWeightList[i].TargetCluster)
			if err != nil {
				return nil, err
			}
			for k, c := range chosen {
				if near.has(c.at) {
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
	return winners(shares), nil
}

// divideByCapacity divides by the capacity of the clusters, dynamically weighted or aggregated in
// as few clusters as suffice. Current replicas are not moved: only a surplus is removed or a
// deficit added. Tiers are filled in order, and emptied in reverse order.
func (j *task) divideByCapacity(chosen []candidate) ([]share, error) {
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
	return winners(shares), nil
}

// divideTier divides replicas among the clusters of one tier, and returns their shares in the same
// order.
func (j *task) divideTier(tier []candidate, by func(candidate) int64, replicas int64) []share {
	shares := make([]share, 0, len(tier))
	for _, c := range tier {
		shares = append(shares, share{at: c.at, weight: by(c)})
	}
	if j.strategy == aggregated {
		few := j.setOf(j.fewest(tier, by, replicas))
		for i, c := range tier {
			if !few.has(c.at) {
				shares[i].weight = 0
			}
		}
	}
	apportion(replicas, shares, tieOf(j.UID))
	return shares
}

// fewest are the clusters that suffice for these replicas together: those that have some first,
// then by capacity.
func (j *task) fewest(tier []candidate, by func(candidate) int64, replicas int64) []candidate {
	sorted := slices.Clone(tier)
	j.sort(sorted, func(c candidate) (first bool, more int64) { return c.current > 0, by(c) })
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
