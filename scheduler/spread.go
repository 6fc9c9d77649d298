package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// limits of the number of groups of a spread constraint.
type limits struct{ least, most int }

func limitsOf(s policyv1alpha1.SpreadConstraint, groups int) limits {
	l := limits{max(1, s.MinGroups), s.MaxGroups}
	if l.most <= 0 || l.most > groups {
		l.most = groups
	}
	return l
}

// spreads reports whether spread constraints apply; they do not with static weights.
func (j *task) spreads() bool {
	return j.strategy != static && j.Placement != nil && len(j.Placement.SpreadConstraints) > 0
}

// spread selects among sorted candidates by the spread constraints.
func (j *task) spread(fit []candidate) ([]candidate, error) {
	if !j.spreads() {
		return fit, nil
	}
	var clusters, regions *policyv1alpha1.SpreadConstraint
	for i := range j.Placement.SpreadConstraints {
		s := &j.Placement.SpreadConstraints[i]
		switch s.SpreadByField {
		case policyv1alpha1.SpreadByFieldCluster:
			clusters = s
		case policyv1alpha1.SpreadByFieldRegion:
			regions = s
		default:
			return nil, &SpreadError{Message: fmt.Sprintf("spread by %q is not supported: spread by cluster, or by region and cluster", cmp.Or(string(s.SpreadByField), s.SpreadByLabel))}
		}
	}
	if regions != nil {
		if clusters == nil {
			clusters = &policyv1alpha1.SpreadConstraint{MinGroups: 1}
		}
		return j.spreadByRegion(fit, *regions, *clusters)
	}
	return j.spreadByCluster(fit, *clusters)
}

// spreadByCluster selects the best clusters. If their capacity is insufficient, it replaces the last ones by those of the others with
// the most capacity.
func (j *task) spreadByCluster(fit []candidate, by policyv1alpha1.SpreadConstraint) ([]candidate, error) {
	l := limitsOf(by, len(fit))
	if len(fit) < l.least {
		return nil, &SpreadError{Message: fmt.Sprintf("%d clusters fit, the spread constraint wants at least %d", len(fit), l.least)}
	}
	chosen := slices.Clone(fit[:l.most])
	if !j.TakesRoom() {
		return chosen, nil
	}
	rest := slices.Clone(fit[l.most:])
	j.sort(rest, func(c candidate) (first bool, more int64) { return false, c.available() })
	short := func() bool { return sum(chosen, candidate.available) < int64(j.Replicas) }
	for i := len(chosen) - 1; i >= 0 && len(rest) > 0 && short(); i-- {
		if rest[0].available() > chosen[i].available() {
			chosen[i], rest = rest[0], rest[1:]
		}
	}
	if short() {
		return nil, &SpreadError{Message: fmt.Sprintf("no enough resource when selecting %d clusters: %d replicas have room, %d are needed",
			l.most, sum(chosen, candidate.available), j.Replicas)}
	}
	return j.sortedAs(fit, chosen), nil
}

// region is a group of clusters.
type region struct {
	name     string
	clusters []candidate // the best first
	score    int64
}

// spreadByRegion selects regions, then the best cluster of each, then the best of their other clusters.
func (j *task) spreadByRegion(fit []candidate, byRegion, byCluster policyv1alpha1.SpreadConstraint) ([]candidate, error) {
	least := max(1, byCluster.MinGroups)
	regions := j.regions(fit, max(1, byRegion.MinGroups), least)
	l := limitsOf(byRegion, len(regions))
	if len(regions) < l.least {
		return nil, &SpreadError{Message: fmt.Sprintf("clusters of %d regions fit, the spread constraint wants at least %d regions", len(regions), l.least)}
	}
	best := j.keptRegions(regions, l, least)
	if best == nil {
		best = pickRegions(regions, l, least)
	}
	if best == nil {
		return nil, &SpreadError{Message: fmt.Sprintf("no %d to %d regions have %d clusters that fit together", l.least, l.most, least)}
	}
	var chosen, rest []candidate
	for _, g := range best {
		chosen = append(chosen, g.clusters[0])
		rest = append(rest, g.clusters[1:]...)
	}
	rest = j.sortedAs(fit, rest)
	most := limitsOf(byCluster, len(fit)).most
	if n := most - len(chosen); n > 0 {
		chosen = append(chosen, rest[:min(n, len(rest))]...)
	}
	return j.sortedAs(fit, chosen), nil
}

// keptRegions are the regions where the template runs, if they satisfy the limits and have enough clusters and capacity: scores depend
// on where the template runs, and it must not move because of that.
func (j *task) keptRegions(regions []region, l limits, clusters int) []region {
	if j.Fresh {
		return nil
	}
	var kept []region
	count, room := 0, int64(0)
	for _, g := range regions {
		if slices.ContainsFunc(g.clusters, func(c candidate) bool { return c.runs }) {
			kept = append(kept, g)
			count += len(g.clusters)
			room += sum(g.clusters, candidate.available)
		}
	}
	if len(kept) < l.least || len(kept) > l.most || count < clusters || j.TakesRoom() && room < int64(j.Replicas) {
		return nil
	}
	return kept
}

// regions groups candidates, the best region first.
func (j *task) regions(fit []candidate, leastRegions, leastClusters int) []region {
	sizes := make([]int, j.shape.regions)
	for _, c := range fit {
		sizes[j.traits[c.at].region]++
	}
	var out []region
	place := make([]int, j.shape.regions) // in out, from 1 on
	for _, c := range fit {
		i := &place[j.traits[c.at].region]
		if *i == 0 {
			out = append(out, region{name: j.of[c.at].Spec.Region, clusters: make([]candidate, 0, sizes[j.traits[c.at].region])})
			*i = len(out)
		}
		g := &out[*i-1]
		g.clusters = append(g.clusters, c)
	}
	for i := range out {
		out[i].score = j.regionScore(out[i].clusters, leastRegions, leastClusters)
	}
	slices.SortFunc(out, func(a, b region) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(len(b.clusters), len(a.clusters)), strings.Compare(a.name, b.name))
	})
	return out
}

// regionScore is, if replicas are duplicated, by the number of clusters with capacity for them; if they are divided, by how much of
// the region's part fits in its best clusters. Then by the scores of these clusters.
func (j *task) regionScore(clusters []candidate, leastRegions, leastClusters int) int64 {
	if !j.TakesRoom() {
		roomy := int64(0)
		score := int64(0)
		for _, c := range clusters {
			if c.available() >= int64(j.Replicas) {
				roomy++
				score += c.score()
			}
		}
		if roomy == 0 {
			return 0
		}
		return 1000*roomy + score/roomy
	}
	part := (int64(j.Replicas) + int64(leastRegions) - 1) / int64(leastRegions)
	count := max(leastClusters, leastRegions)
	room, score, n := int64(0), int64(0), int64(0)
	for _, c := range clusters {
		room += c.available()
		score += c.score()
		if n++; n >= int64(count) && room >= part {
			break
		}
	}
	return 1000*min(part, room) + score/n
}

// score is 100 if the template runs there already.
func (c candidate) score() int64 {
	if c.runs {
		return 100
	}
	return 0
}

// pickRegions returns the regions with the largest sum of scores, then with the most clusters, that satisfy the limits and have enough
// clusters; the first of equals. If the first of these suffice, the others are left out. regions are sorted by score, which bounds
// the search.
func pickRegions(regions []region, l limits, clusters int) []region {
	type sums struct {
		score    int64
		clusters int
	}
	less := func(a, b sums) bool { return a.score < b.score || a.score == b.score && a.clusters < b.clusters }
	// most[k] is the number of clusters of the k regions with the most.
	counts := make([]int, 0, len(regions))
	for _, g := range regions {
		counts = append(counts, len(g.clusters))
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	most := make([]int, len(regions)+1)
	for k, n := range counts {
		most[k+1] = most[k] + n
	}
	var best []int
	var value sums
	var walk func(from int, path []int, at sums)
	walk = func(from int, path []int, at sums) {
		if len(path) >= l.least && at.clusters >= clusters && (best == nil || less(value, at)) {
			best, value = slices.Clone(path), at
		}
		more := l.most - len(path)
		bound := sums{at.score, at.clusters + most[min(more, len(regions)-from)]}
		for i := from; i < min(from+more, len(regions)); i++ {
			bound.score += regions[i].score
		}
		if more == 0 || bound.clusters < clusters || best != nil && !less(value, bound) {
			return
		}
		for i := from; i < len(regions); i++ {
			walk(i+1, append(path, i), sums{at.score + regions[i].score, at.clusters + len(regions[i].clusters)})
		}
	}
	walk(0, nil, sums{})
	if best == nil {
		return nil
	}
	have := 0
	for n, i := range best {
		if have += len(regions[i].clusters); n+1 >= l.least && have >= clusters {
			best = best[:n+1]
			break
		}
	}
	out := make([]region, 0, len(best))
	for _, i := range best {
		out = append(out, regions[i])
	}
	return out
}

// sortedAs puts some of the clusters into the order of all.
func (j *task) sortedAs(all, some []candidate) (out []candidate) {
	among := j.setOf(some)
	for _, c := range all {
		if among.has(c.at) {
			out = append(out, c)
		}
	}
	return out
}
