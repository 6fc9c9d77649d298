package scheduler

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// Observed is the input of the last decision for a template, as recorded in its binding.
type Observed struct {
	// Placement is the value of the binding's annotation policy.karmada.io/applied-placement; "":
	// none yet.
	Placement string
	// Rescheduled is the time of the last request for a rebalancing, Scheduled that of the last
	// decision; zero: never.
	Rescheduled, Scheduled time.Time
}

// FollowsClusters is the Need of a Duplicated workload, and of a template without replicas,
// for which nothing else is due.
const FollowsClusters = "it follows the clusters"

// Need is the reason for a new decision; "": none. If clusters join, recover or change their
// labels, only Duplicated workloads and templates without replicas follow.
func Need(r *Request, o Observed, s *Snapshot) string {
	switch {
	case o.Placement == "" || !r.samePlacement(o.Placement):
		return "the placement changed"
	case r.replicasChanged():
		return "the number of replicas changed"
	case o.Rescheduled.After(o.Scheduled):
		return "a rebalancing was asked for"
	case strategyOf(r.Placement) == duplicated || !r.workload() && !r.dividedBefore():
		return FollowsClusters
	}
	for i := range r.Current {
		if at, ok := s.index[r.Current[i].Name]; ok && s.traits[at].deleting {
			return fmt.Sprintf("cluster %s is being removed", r.Current[i].Name)
		}
	}
	return ""
}

// dividedBefore reports whether a template with components was divided by a decision that did not
// know them. A new one, in all clusters that fit, would start it in more of them.
func (r *Request) dividedBefore() bool {
	return r.Components > 0 && slices.ContainsFunc(r.Current, func(c workv1alpha2.TargetCluster) bool { return c.Replicas > 0 })
}

func (r *Request) replicasChanged() bool {
	if !r.workload() {
		return false
	}
	var total int32
	for i := range r.Current {
		total += r.Current[i].Replicas
		if strategyOf(r.Placement) == duplicated && r.Current[i].Replicas != r.Replicas {
			return true
		}
	}
	return strategyOf(r.Placement) != duplicated && total != r.Replicas
}

// samePlacement compares the parts of a placement that affect a running template: not the affinity
// groups after the one in use, nor workloadAffinity.
func (r *Request) samePlacement(applied string) bool {
	var before policyv1alpha1.Placement
	if err := json.Unmarshal([]byte(applied), &before); err != nil {
		return false // not written by us
	}
	now := r.Placement
	if now == nil {
		now = &policyv1alpha1.Placement{}
	}
	// no group is in use yet
	if r.Term == "" && !equality.Semantic.DeepEqual(before.ClusterAffinities, now.ClusterAffinities) {
		return false
	}
	return equality.Semantic.DeepEqual(r.effective(&before), r.effective(now))
}

func (r *Request) effective(p *policyv1alpha1.Placement) policyv1alpha1.Placement {
	out := *p
	out.WorkloadAffinity = nil
	out.ClusterAffinities = nil
	for i := range p.ClusterAffinities {
		if t := p.ClusterAffinities[i]; t.AffinityName == r.Term {
			out.ClusterAffinities = append(out.ClusterAffinities, t)
		}
	}
	return out
}

// Applied is the value of Observed.Placement for a placement.
func Applied(p *policyv1alpha1.Placement) (string, error) {
	if p == nil {
		p = &policyv1alpha1.Placement{}
	}
	raw, err := json.Marshal(p)
	if err != nil {
		return "", fmt.Errorf("note the placement: %w", err)
	}
	return string(raw), nil
}
