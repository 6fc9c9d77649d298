package scheduler

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Request is the input of a decision for one template, besides the clusters.
type Request struct {
	// UID of the template: breaks ties in a division.
	UID types.UID
	// Kind must be served by a cluster.
	Kind schema.GroupVersionKind
	// Namespace of the template; "": none. Its ResourceQuotas in the clusters count.
	Namespace string
	// Assumed is what workloads of the namespace request that the quotas of a cluster may not include
	// yet, by cluster; control/hub/placement computes it.
	Assumed map[string]Load
	// Placement of the policy; nil: everywhere.
	Placement *policyv1alpha1.Placement
	// Within is the value of policyv1alpha1.AnnotationClusters of the namespace: no other cluster is
	// selected, not even one where the template runs. "": all.
	Within string
	// Replicas and the requests of each. A template with neither is no workload.
	Replicas     int32
	Requirements *workv1alpha2.ReplicaRequirements
	// Components is the number of components of a template whose pods have several forms; 0: none.
	// Such a template is not divided.
	Components int
	// ComponentsLoad is what its components request together in each cluster: with spread
	// constraints, those with room for most such sets are preferred.
	ComponentsLoad Load
	// Current is the result of the last decision.
	Current []workv1alpha2.TargetCluster
	// Returning are those of Current in which it does not run yet, but did before it left them:
	// they have to pass the filters, and get no more replicas than they have capacity for.
	Returning []string
	// Stopped is the division before the template was scaled to 0; it counts while Current has no
	// replicas, in clusters of Current, within their capacity: a workload that is scaled up again
	// runs in the clusters with its data.
	Stopped []workv1alpha2.TargetCluster
	// Empty: a template that is created with 0 replicas is scheduled to all selected clusters; without
	// it, to none. One that is scaled to 0 keeps its clusters in both cases.
	Empty bool
	// Undivided is why one cluster has to have all replicas even if the placement divides them;
	// empty: none.
	Undivided string
	// Evicted are clusters from which the template is being evicted.
	Evicted []string
	// Full are clusters that get no more replicas: no node there can run those that they have.
	Full []string
	// Term is the name of the affinity group of the last decision; "": none.
	Term string
	// Fresh: ignore the last decision (a rebalancing was requested).
	Fresh bool
	// Groups are the workload affinity groups of the template. Together are the clusters of the
	// others of its affinity group: it runs in these only, if there are any. Apart are those of its
	// anti-affinity group: it runs in none of them. Where it runs already it stays. A decision
	// depends on the latter two; control/hub/placement computes them.
	Groups          *workv1alpha2.WorkloadAffinityGroups
	Together, Apart []string
	// Near: round-trip times bear on the decision; nil: they do not.
	Near *Near
	// Scores order clusters, after Near.
	Scores []Score
}

// workload reports whether the template has replicas to be divided.
func (r *Request) workload() bool {
	return r.Components == 0 && (r.Replicas > 0 || r.Requirements != nil)
}

// TakesRoom reports whether the number of replicas in a cluster depends on its capacity, which is
// not so with static weights or if duplicated.
func (r *Request) TakesRoom() bool {
	s := strategyOf(r.Placement)
	return r.workload() && (s == dynamic || s == aggregated)
}

// strategy of the division of replicas over clusters.
type strategy int

const (
	duplicated strategy = iota
	static
	dynamic
	aggregated
)

// strategyOf is that of a placement. Without replicaScheduling the template is duplicated; Weighted
// without weights means equal ones.
func strategyOf(p *policyv1alpha1.Placement) strategy {
	if !p.Divided() {
		return duplicated
	}
	s := p.ReplicaScheduling
	switch {
	case s.ReplicaDivisionPreference == policyv1alpha1.ReplicaDivisionPreferenceAggregated:
		return aggregated
	case s.WeightPreference != nil && s.WeightPreference.DynamicWeight != "":
		return dynamic
	}
	return static
}

// Decision is the result for a template.
type Decision struct {
	// Clusters by name, with the replicas of each; 0 if it is no workload.
	Clusters []workv1alpha2.TargetCluster
	// Term is the name of the affinity group; "" if the placement has none.
	Term string
	// Note is what the placement wants and the decision has not; empty: nothing.
	Note string
	// Reasons of all other clusters.
	Reasons Reasons
}
