package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Near are round-trip times that bear on a decision.
type Near struct {
	// To is what they lead to, in the words of a message.
	To string
	// RTT of each cluster; one without an entry is not reached, or not measured.
	RTT map[string]time.Duration
	// Max is the longest that is accepted for a cluster where the template does not run yet; 0:
	// any.
	Max time.Duration
	// Prefer orders clusters by round-trip time, in bands of those that differ by no more than
	// Nearer requires.
	Prefer bool
}

// noRTT is the round-trip time of a cluster without an entry. It is longer than any that is
// measured.
const noRTT = time.Hour

// Of is the round-trip time of a cluster.
func (n *Near) Of(cluster string) time.Duration {
	if rtt, ok := n.RTT[cluster]; ok {
		return rtt
	}
	return noRTT
}

// Nearer reports whether a round-trip time is so much shorter than another one that it is worth a
// move: by a quarter of itself and by 2 ms.
func Nearer(a, b time.Duration) bool { return a+max(a/4, 2*time.Millisecond) < b }

// tooFar reports whether the template must not come to a cluster because of its round-trip time.
func (j *task) tooFar(at int) bool {
	return j.Near != nil && j.Near.Max > 0 && j.Near.Of(j.of[at].Name) > j.Near.Max
}

// farCause is the cause of tooFar. It contains no measurement, which would differ at each attempt.
func (j *task) farCause() cause {
	if j.far == none {
		j.far = j.describe(fmt.Sprintf("cluster(s) had no round-trip time of at most %s to %s", j.Near.Max, j.Near.To))
	}
	return j.far
}

// band divides a tier of candidates by round-trip time and by scores, the best first. Within a band
// their order stays.
func (j *task) band(tier []candidate) {
	if j.Near != nil && j.Near.Prefer {
		bands(tier, func(c candidate) time.Duration { return j.Near.Of(j.of[c.at].Name) }, Nearer)
	}
	if len(j.Scores) > 0 {
		bands(tier, j.rank, func(a, b int64) bool { return a < b })
	}
}

// bandBits are those of the number of a band, of which there are no more than clusters.
const bandBits = 20

// bands divides a tier by a value, the smallest first; less reports that a value begins a new band.
func bands[T cmp.Ordered](tier []candidate, value func(candidate) T, less func(a, b T) bool) {
	values := make([]T, 0, len(tier))
	for _, c := range tier {
		values = append(values, value(c))
	}
	slices.Sort(values)
	var first []T // the smallest of each
	for _, v := range values {
		if len(first) == 0 || less(first[len(first)-1], v) {
			first = append(first, v)
		}
	}
	for i := range tier {
		c := &tier[i]
		of, found := slices.BinarySearch(first, value(*c))
		if !found {
			of--
		}
		c.tier = c.tier<<bandBits | of
	}
	slices.SortStableFunc(tier, func(a, b candidate) int { return a.tier - b.tier })
}
