package scheduler

import (
	"cmp"
	"fmt"
	"slices"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
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
	var shares []share
	var err error
	switch {
	case j.strategy == duplicated:
		return each(chosen, j.Replicas), nil
	case j.strategy == static:
		shares, err = j.divideStatic(chosen)
	case j.Undivided == "":
		shares, err = j.divideByCapacity(chosen)
	default:
		shares = j.shares(chosen, candidate.available)
	}
	if err == nil && j.Undivided != "" {
		shares, err = j.one(chosen, shares)
	}
	if err != nil {
		return nil, err
	}
	j.spreadOut(chosen, shares)
	return winners(shares), nil
}

// one gives all replicas to one cluster: where the template runs, else that with the largest
// weight; by weights of capacity to one that has room for them.
func (j *task) one(chosen []candidate, shares []share) ([]share, error) {
	order := tieOf(j.UID)
	best := -1
	for i, c := range chosen {
		switch {
		case shares[i].weight == 0, j.TakesRoom() && c.available() < int64(j.Replicas):
		case best < 0, c.current > 0 && chosen[best].current == 0:
			best = i
		case c.current == 0 && chosen[best].current > 0:
		case shares[i].weight > shares[best].weight, shares[i].weight == shares[best].weight && order.compare(c.at, chosen[best].at) < 0:
			best = i
		}
	}
	for i := range shares {
		shares[i].seats = 0
	}
	if best < 0 {
		return nil, &UnschedulableError{Message: fmt.Sprintf("no cluster has room for all %d replicas, which are not divided (%s): add nodes, or ask for fewer replicas",
			j.Replicas, j.Undivided)}
	}
	shares[best].seats = int64(j.Replicas)
	return shares, nil
}

// spreadOut moves single replicas until at least as many groups of clusters have some as the spread
// constraints want, as far as there are replicas and room. What is wanted and not so is noted.
// Clusters of weight 0 get none.
func (j *task) spreadOut(chosen []candidate, shares []share) {
	if j.Placement == nil {
		return
	}
	for _, by := range slices.SortedStableFunc(slices.Values(j.Placement.SpreadConstraints), func(a, b policyv1alpha1.SpreadConstraint) int {
		return cmp.Compare(byCluster(a), byCluster(b)) // which leaves groups of others as they are
	}) {
		if by.MinGroups < 2 {
			continue
		}
		of := func(at int) int { return at }
		if byCluster(by) == 0 {
			of = func(at int) int { return j.groupsOf(by).of[at] }
		}
		if n := j.occupy(chosen, shares, of, by.MinGroups); n < by.MinGroups {
			j.note = fmt.Sprintf("spread by %s: replicas run in %d of at least %d groups, since there are %d replicas", groupedBy(by), n, by.MinGroups, j.Replicas)
			switch {
			case j.Undivided != "":
				j.note = fmt.Sprintf("spread by %s: replicas run in %d of at least %d groups, since %s", groupedBy(by), n, by.MinGroups, j.Undivided)
			case int64(j.Replicas) >= int64(by.MinGroups):
				j.note = fmt.Sprintf("spread by %s: replicas run in %d of at least %d groups, since no cluster of another group has weight and room", groupedBy(by), n, by.MinGroups)
			}
		}
	}
}

func byCluster(s policyv1alpha1.SpreadConstraint) int {
	if s.SpreadByLabel == "" && s.SpreadByField == policyv1alpha1.SpreadByFieldCluster {
		return 1
	}
	return 0
}

// occupy moves single replicas into groups that have none until enough have some, and returns how
// many do.
func (j *task) occupy(chosen []candidate, shares []share, of func(at int) int, enough int) int {
	seats := map[int]int64{} // of each group
	for _, s := range shares {
		if s.seats > 0 {
			seats[of(s.at)] += s.seats
		}
	}
	for len(seats) < enough && j.Undivided == "" {
		to, from := -1, -1
		for i, s := range shares {
			switch group := of(s.at); {
			case seats[group] == 0 && j.hasRoom(chosen[i], s) && (to < 0 || s.weight > shares[to].weight):
				to = i
			case seats[group] > 1 && s.seats > 0 && (from < 0 || s.seats > shares[from].seats):
				from = i
			}
		}
		if to < 0 || from < 0 {
			break
		}
		shares[from].seats--
		shares[to].seats++
		seats[of(shares[from].at)]--
		seats[of(shares[to].at)]++
	}
	return len(seats)
}

// hasRoom reports whether a cluster may have one replica more.
func (j *task) hasRoom(c candidate, s share) bool {
	if j.TakesRoom() {
		return s.seats < c.available()
	}
	return s.weight > 0
}

// shares are those of clusters by their weights, without seats.
func (j *task) shares(chosen []candidate, weight func(candidate) int64) []share {
	out := make([]share, 0, len(chosen))
	for _, c := range chosen {
		out = append(out, share{at: c.at, weight: weight(c)})
	}
	return out
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
	return shares, nil
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
				"clusters have room for %d more replicas and %d are needed: add nodes or clusters, or ask for fewer replicas%s", room, part, bounds(chosen))}
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
	return shares, nil
}

// bounds names what bounds the clusters besides their sums; empty: nothing does.
func bounds(chosen []candidate) (text string) {
	for _, bound := range []cause{full, noNode, noQuota} {
		n := 0
		for _, c := range chosen {
			if c.bound == bound {
				n++
			}
		}
		if n > 0 {
			text += fmt.Sprintf("; %d %s", n, causeTexts[bound])
		}
	}
	return text
}

// divideTier divides replicas among the clusters of one tier, and returns their shares in the same
// order.
func (j *task) divideTier(tier []candidate, by func(candidate) int64, replicas int64) []share {
	shares := j.shares(tier, by)
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
