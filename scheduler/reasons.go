package scheduler

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// FitError: no cluster passes the filters.
type FitError struct {
	Reasons Reasons
	// Unmatched: no affinity of the placement selects a cluster, and none names one that has not
	// joined. Otherwise clusters may only be unhealthy, or yet to come.
	Unmatched bool
}

// Error counts the clusters by reason, the most frequent first.
func (e *FitError) Error() string {
	reasons := e.Reasons.Grouped(0)
	if len(reasons) == 0 {
		return "no cluster fits: no cluster has joined"
	}
	parts := make([]string, 0, len(reasons))
	for _, r := range reasons {
		parts = append(parts, fmt.Sprintf("%d %s", r.Count, r.Why))
	}
	return fmt.Sprintf("no cluster fits: 0/%d: %s", len(e.Reasons.of), strings.Join(parts, ", "))
}

// UnschedulableError: the clusters that pass the filters have insufficient capacity. What runs is
// not changed.
type UnschedulableError struct {
	Message string
}

func (e *UnschedulableError) Error() string { return e.Message }

// SpreadError: the clusters that pass the filters do not satisfy the spread constraints. What runs
// is not changed.
type SpreadError struct {
	Message string
}

func (e *SpreadError) Error() string { return e.Message }

// cause is the reason why a cluster is not selected, as a number: there may be many clusters, but
// there are few reasons.
type cause uint16

const (
	none cause = iota // it is selected
	leaving
	notServed
	perhapsNotServed
	notNear
	notOpen
	evicting
	notBest
	noReplica
	full
	noNode
	noQuota
	notTogether
	notApart
	described // from here on: those with arguments, in task.descriptions
)

var causeTexts = [described]string{
	leaving:          "cluster(s) are being removed",
	notServed:        "cluster(s) did not have the API resource",
	perhapsNotServed: "cluster(s) did not tell all APIs that they serve",
	notNear:          "cluster(s) did not match the placement cluster affinity constraint",
	notOpen:          "cluster(s) were not open to the namespace (annotation " + policyv1alpha1.AnnotationClusters + " of the Namespace)",
	evicting:         "cluster(s) is in the process of eviction",
	notBest:          "cluster(s) were not among the best that the spread constraints allow",
	noReplica:        "cluster(s) got no replica of the division",
	full:             "cluster(s) had replicas that no node there can run",
	noNode:           "cluster(s) had no room on the nodes that the pods select and tolerate",
	noQuota:          "cluster(s) had no room in the ResourceQuotas of the namespace",
	notTogether:      "cluster(s) did not run the workloads of the affinity group",
	notApart:         "cluster(s) ran workloads of the anti-affinity group",
}

// describe returns a cause with this text.
func (j *task) describe(why string) cause {
	j.descriptions = append(j.descriptions, why)
	return described + cause(len(j.descriptions)-1)
}

// Reasons why clusters were not selected.
type Reasons struct {
	of           []*clusterv1alpha1.Cluster // by name
	why          []cause                    // of each
	descriptions []string
}

// Reason why a number of clusters were not selected.
type Reason struct {
	Why      string // follows their number
	Count    int
	Clusters []string // the first of them by name
}

// Grouped returns the reasons, the most frequent first, each with the names of so many clusters at
// most.
func (r Reasons) Grouped(names int) []Reason {
	all := make([]Reason, int(described)+len(r.descriptions))
	for at, c := range r.why {
		g := &all[c]
		g.Count++
		if len(g.Clusters) < names {
			g.Clusters = append(g.Clusters, r.of[at].Name)
		}
	}
	for c := range all {
		if c < int(described) {
			all[c].Why = causeTexts[c]
		} else {
			all[c].Why = r.descriptions[c-int(described)]
		}
	}
	all = slices.DeleteFunc(all, func(g Reason) bool { return g.Why == causeTexts[none] || g.Count == 0 })
	slices.SortFunc(all, func(a, b Reason) int { return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Why, b.Why)) })
	return all
}
