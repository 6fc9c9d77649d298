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
	var clusters, grouped *policyv1alpha1.SpreadConstraint
	for i := range j.Placement.SpreadConstraints {
		s := &j.Placement.SpreadConstraints[i]
		switch {
		case s.SpreadByLabel == "" && s.SpreadByField == policyv1alpha1.SpreadByFieldCluster:
			clusters = s
		case grouped != nil:
			return nil, &SpreadError{Message: fmt.Sprintf("spread by %s and by %s: only one of provider, region, zone and a label is supported, besides cluster",
				groupedBy(*grouped), groupedBy(*s))}
		default:
			grouped = s
		}
	}
	if grouped != nil {
		if clusters == nil {
			clusters = &policyv1alpha1.SpreadConstraint{MinGroups: 1}
		}
		return j.spreadByGroup(fit, *grouped, *clusters)
	}
	return j.spreadByCluster(fit, *clusters)
}

// groupedBy is what a spread constraint groups clusters by.
func groupedBy(s policyv1alpha1.SpreadConstraint) string {
	if s.SpreadByLabel != "" {
		return "label " + s.SpreadByLabel
	}
	return string(s.SpreadByField)
}

// spreadByCluster selects the best clusters. If their capacity is insufficient, it replaces the
// last ones by those of the others with the most capacity.
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

// group is the clusters of one provider, region or zone, or with one value of a label.
type group struct {
	name     string
	clusters []candidate // the best first
	score    int64
}

// spreadByGroup selects groups, then the best cluster of each, then the best of their other
// clusters.
func (j *task) spreadByGroup(fit []candidate, by, byCluster policyv1alpha1.SpreadConstraint) ([]candidate, error) {
	least := max(1, byCluster.MinGroups)
	groups := j.grouped(fit, j.groupsOf(by), max(1, by.MinGroups), least)
	l := limitsOf(by, len(groups))
	kind := string(by.SpreadByField) + "s"
	if by.SpreadByLabel != "" {
		kind = "values of label " + by.SpreadByLabel
	}
	if len(groups) < l.least {
		return nil, &SpreadError{Message: fmt.Sprintf("clusters of %d %s fit, the spread constraint wants at least %d %[2]s", len(groups), kind, l.least)}
	}
	best := j.keptGroups(groups, l, least)
	if best == nil {
		best = pickGroups(groups, l, least)
	}
	if best == nil {
		return nil, &SpreadError{Message: fmt.Sprintf("no %d to %d %s have %d clusters that fit together", l.least, l.most, kind, least)}
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

// keptGroups are the groups where the template runs, if they satisfy the limits and have enough
// clusters and capacity: scores depend on where the template runs, and it must not move because of
// that.
func (j *task) keptGroups(groups []group, l limits, clusters int) []group {
	if j.Fresh {
		return nil
	}
	var kept []group
	count, room := 0, int64(0)
	for _, g := range groups {
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

// grouped groups candidates, the best group first.
func (j *task) grouped(fit []candidate, by groups, leastGroups, leastClusters int) []group {
	sizes := make([]int, len(by.names))
	for _, c := range fit {
		sizes[by.of[c.at]]++
	}
	var out []group
	place := make([]int, len(by.names)) // in out, from 1 on
	for _, c := range fit {
		of := by.of[c.at]
		i := &place[of]
		if *i == 0 {
			out = append(out, group{name: by.names[of], clusters: make([]candidate, 0, sizes[of])})
			*i = len(out)
		}
		g := &out[*i-1]
		g.clusters = append(g.clusters, c)
	}
	for i := range out {
		out[i].score = j.groupScore(out[i].clusters, leastGroups, leastClusters)
	}
	slices.SortFunc(out, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(len(b.clusters), len(a.clusters)), strings.Compare(a.name, b.name))
	})
	return out
}

// groupScore is, if replicas are duplicated, by the number of clusters with capacity for them; if
// they are divided, by how much of the group's part fits in its best clusters. Then by the scores
// of these clusters.
func (j *task) groupScore(clusters []candidate, leastGroups, leastClusters int) int64 {
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
	part := (int64(j.Replicas) + int64(leastGroups) - 1) / int64(leastGroups)
	count := max(leastClusters, leastGroups)
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

// pickGroups returns the groups with the largest sum of scores, then with the most clusters, that
// satisfy the limits and have enough clusters; the first of equals. If the first of these suffice,
// the others are left out. groups are sorted by score, which bounds the search.
func pickGroups(groups []group, l limits, clusters int) []group {
	type sums struct {
		score    int64
		clusters int
	}
	less := func(a, b sums) bool { return a.score < b.score || a.score == b.score && a.clusters < b.clusters }
	// most[k] is the number of clusters of the k groups with the most.
	counts := make([]int, 0, len(groups))
	for _, g := range groups {
		counts = append(counts, len(g.clusters))
	}
	slices.SortFunc(counts, func(a, b int) int { return b - a })
	most := make([]int, len(groups)+1)
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
		bound := sums{at.score, at.clusters + most[min(more, len(groups)-from)]}
		for i := from; i < min(from+more, len(groups)); i++ {
			bound.score += groups[i].score
		}
		if more == 0 || bound.clusters < clusters || best != nil && !less(value, bound) {
			return
		}
		for i := from; i < len(groups); i++ {
			walk(i+1, append(path, i), sums{at.score + groups[i].score, at.clusters + len(groups[i].clusters)})
		}
	}
	walk(0, nil, sums{})
	if best == nil {
		return nil
	}
	have := 0
	for n, i := range best {
		if have += len(groups[i].clusters); n+1 >= l.least && have >= clusters {
			best = best[:n+1]
			break
		}
	}
	out := make([]group, 0, len(best))
	for _, i := range best {
		out = append(out, groups[i])
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
