package scheduler

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Reasons are why clusters were not selected. They are text on demand only: that of a thousand clusters costs as much as a decision.
type Reasons struct {
	of           []*clusterv1alpha1.Cluster
	why          []cause
	descriptions []string
}

func (r Reasons) text(c cause) string {
	if c >= described {
		return r.descriptions[c-described]
	}
	return causeTexts[c]
}

// All are the clusters that were not selected, by name, each with the reason; that follows a number of clusters.
func (r Reasons) All() iter.Seq2[string, string] {
	return func(yield func(cluster, why string) bool) {
		for at, c := range r.why {
			if c != none && !yield(r.of[at].Name, r.text(c)) {
				return
			}
		}
	}
}

// Rejections groups them, the most frequent first, and names so many clusters of each.
func (r Reasons) Rejections(most int) (out []workv1alpha2.Rejection) {
	place := make([]int, int(described)+len(r.descriptions)) // in out, from 1 on
	for at, c := range r.why {
		if c == none {
			continue
		}
		if place[c] == 0 {
			text := r.text(c)
			i := slices.IndexFunc(out, func(o workv1alpha2.Rejection) bool { return o.Why == text })
			if i < 0 {
				i, out = len(out), append(out, workv1alpha2.Rejection{Why: text})
			}
			place[c] = i + 1
		}
		if o := &out[place[c]-1]; len(o.Clusters) < most {
			o.Clusters = append(o.Clusters, r.of[at].Name)
		} else {
			o.More++
		}
	}
	slices.SortFunc(out, func(a, b workv1alpha2.Rejection) int {
		return cmp.Or(cmp.Compare(len(b.Clusters)+b.More, len(a.Clusters)+a.More), strings.Compare(a.Why, b.Why))
	})
	return out
}

// FitError: no cluster passes the filters.
type FitError struct {
	Reasons
	// Unmatched: no affinity of the placement selects a cluster, and none names one that has not joined. Otherwise clusters may
	// only be unhealthy, or yet to come.
	Unmatched bool
}

// Error counts the clusters by reason, the most frequent first.
func (e *FitError) Error() string {
	var parts []string
	all := 0
	for _, r := range e.Rejections(0) {
		parts = append(parts, fmt.Sprintf("%d %s", r.More, r.Why))
		all += r.More
	}
	if all == 0 {
		return "no cluster fits: no cluster has joined"
	}
	return fmt.Sprintf("no cluster fits: 0/%d: %s", all, strings.Join(parts, ", "))
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
