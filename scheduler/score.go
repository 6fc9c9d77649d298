package scheduler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// Score is a PlacementScore of all clusters, and its weight. Of clusters that pass the filters those
// with the largest sum of weight × value go first, as with Near.Prefer: spread constraints select
// them, a division by capacity fills them first, and a smaller number of replicas leaves them last.
// A cluster without a value is last. Replicas that run do not move by it: spread constraints keep
// the clusters in use, except if the request is Fresh.
type Score struct {
	Name   string
	Weight int64
	// Of are the values by cluster.
	Of map[string]int64
}

// ScoresAt are the scores that are weighed, by name, with the values that are valid at a time.
func ScoresAt(weights map[string]int32, all []pelagov1alpha1.PlacementScore, now time.Time) (out []Score) {
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		s := Score{Name: name, Weight: int64(weights[name]), Of: map[string]int64{}}
		for i := range all {
			if p := &all[i].Spec; p.Score == name && (p.ValidUntil == nil || now.Before(p.ValidUntil.Time)) {
				s.Of[p.Cluster] = int64(p.Value)
			}
		}
		out = append(out, s)
	}
	return out
}

// ScoreOf is the sum of a cluster; not ok if one of the scores has no value for it.
func ScoreOf(scores []Score, cluster string) (sum int64, ok bool) {
	for _, s := range scores {
		value, has := s.Of[cluster]
		if !has {
			return 0, false
		}
		sum += s.Weight * value
	}
	return sum, true
}

// rank is the position of a candidate by its scores, the smallest first.
func (j *task) rank(c candidate) int64 {
	sum, ok := ScoreOf(j.Scores, j.of[c.at].Name)
	switch {
	case j.spreads() && c.runs && !j.Fresh:
		return math.MinInt64
	case !ok:
		return math.MaxInt64
	}
	return -sum
}

// maxUnscored bounds the clusters that a note names.
const maxUnscored = 10

// unscored is the note on the clusters that lack a score; empty: none do.
func (j *task) unscored(fit []candidate) string {
	var parts []string
	for _, s := range j.Scores {
		var names []string
		for _, c := range fit {
			if _, ok := s.Of[j.of[c.at].Name]; !ok {
				names = append(names, j.of[c.at].Name)
			}
		}
		slices.Sort(names)
		if more := len(names) - maxUnscored; more > 0 {
			names = append(names[:maxUnscored], fmt.Sprintf("%d more", more))
		}
		if len(names) > 0 {
			parts = append(parts, fmt.Sprintf("no valid PlacementScore %s of %s", s.Name, strings.Join(names, ", ")))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return strings.Join(parts, "; ") + ": they are last"
}
