package scheduler

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Request asks where one template is to run. It is all that a decision depends on besides the clusters.
type Request struct {
	// UID of the template: it decides who gets what is left over by a division.
	UID types.UID
	// Kind must be served by a cluster.
	Kind schema.GroupVersionKind
	// Placement of the policy; nil: everywhere.
	Placement *policyv1alpha1.Placement
	// Replicas and what each of them needs. A template with neither is no workload: it has no numbers.
	Replicas     int32
	Requirements *workv1alpha2.ReplicaRequirements
	// Components of a workload that has several kinds of replicas: it runs whole in each cluster.
	Components int
	// Current is the result of the last decision.
	Current []workv1alpha2.TargetCluster
	// Evicted are clusters that the template is just leaving.
	Evicted []string
	// Term is the name of the affinity group that the last decision used; "" if there was none.
	Term string
	// Fresh: decide as if nothing ran anywhere yet (a rebalancing was asked for).
	Fresh bool
}

// workload says whether the template has replicas to be divided.
func (r *Request) workload() bool {
	return r.Components <= 1 && (r.Replicas > 0 || r.Requirements != nil)
}

// TakesRoom says whether the number of replicas in a cluster depends on its room: by weights of the policy, or as many in each, it
// does not.
func (r *Request) TakesRoom() bool {
	s := strategyOf(r.Placement)
	return r.workload() && (s == dynamic || s == aggregated)
}

// strategy is how replicas are spread over clusters.
type strategy int

const (
	duplicated strategy = iota
	static
	dynamic
	aggregated
)

// strategyOf is that of a placement. Without replicaScheduling all clusters get all replicas; Weighted without weights means
// equal ones.
func strategyOf(p *policyv1alpha1.Placement) strategy {
	if p == nil || p.ReplicaScheduling == nil || p.ReplicaScheduling.ReplicaSchedulingType == policyv1alpha1.ReplicaSchedulingTypeDuplicated {
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

// Decision is where a template is to run.
type Decision struct {
	// Clusters by name, with the replicas of each; 0 for what has no replicas.
	Clusters []workv1alpha2.TargetCluster
	// Term is the name of the affinity group that fitted; "" if the placement has no groups.
	Term string
	// Reasons say of each other cluster why it was not chosen, in no order.
	Reasons []Reason
}

// Reason is why a cluster was not chosen, in words that follow a number of clusters.
type Reason struct {
	Cluster, Why string
}
