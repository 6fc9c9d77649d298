package scheduler

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// FitError: no cluster passes the filters.
type FitError struct {
	Reasons []Reason
	// Unmatched: no affinity of the placement selects a cluster, and none names one that has not joined. Otherwise clusters may
	// only be unhealthy, or yet to come.
	Unmatched bool
}

// Error counts the clusters by reason, the most frequent first.
func (e *FitError) Error() string {
	if len(e.Reasons) == 0 {
		return "no cluster fits: no cluster has joined"
	}
	count := map[string]int{}
	for _, r := range e.Reasons {
		count[r.Why]++
	}
	reasons := slices.SortedFunc(maps.Keys(count), func(a, b string) int {
		return cmp.Or(cmp.Compare(count[b], count[a]), strings.Compare(a, b))
	})
	parts := make([]string, 0, len(reasons))
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", count[r], r))
	}
	return fmt.Sprintf("no cluster fits: 0/%d: %s", len(e.Reasons), strings.Join(parts, ", "))
}

// UnschedulableError: the clusters that pass the filters have insufficient capacity. What runs is not changed.
type UnschedulableError struct {
	Message string
}

func (e *UnschedulableError) Error() string { return e.Message }

// SpreadError: the clusters that pass the filters do not satisfy the spread constraints. What runs is not changed.
type SpreadError struct {
	Message string
}

func (e *SpreadError) Error() string { return e.Message }

// cause is the reason why a cluster is not selected, as a number: there may be many clusters, but there are few reasons.
type cause uint16

const (
	none cause = iota // it is selected
	leaving
	notServed
	perhapsNotServed
	notNear
	evicting
	notBest
	noReplica
	notTogether
	notApart
	described // from here on: those with arguments, in task.descriptions
)

var causeTexts = [described]string{
	leaving:          "cluster(s) are being removed",
	notServed:        "cluster(s) did not have the API resource",
	perhapsNotServed: "cluster(s) did not tell all APIs that they serve",
	notNear:          "cluster(s) did not match the placement cluster affinity constraint",
	evicting:         "cluster(s) is in the process of eviction",
	notBest:          "cluster(s) were not among the best that the spread constraints allow",
	noReplica:        "cluster(s) got no replica of the division",
	notTogether:      "cluster(s) did not run the workloads of the affinity group",
	notApart:         "cluster(s) ran workloads of the anti-affinity group",
}

// describe returns a cause with this text.
func (j *task) describe(why string) cause {
	j.descriptions = append(j.descriptions, why)
	return described + cause(len(j.descriptions)-1)
}

// reasons are the causes of all clusters as text.
func (j *task) reasons(why []cause) []Reason {
	n := 0
	for _, c := range why {
		if c != none {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	out := make([]Reason, 0, n)
	for at, c := range why {
		switch {
		case c >= described:
			out = append(out, Reason{j.of[at].Name, j.descriptions[c-described]})
		case c != none:
			out = append(out, Reason{j.of[at].Name, causeTexts[c]})
		}
	}
	return out
}
