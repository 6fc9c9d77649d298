package scheduler

import (
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// Observed is what the last decision for a template was made from, as its binding tells it.
type Observed struct {
	// Placement is the value of the binding's annotation policy.karmada.io/applied-placement; "": there was no decision.
	Placement string
	// Rescheduled is when a new decision from zero was last asked for, Scheduled when the last decision was made; zero: never.
	Rescheduled, Scheduled time.Time
}

// Need says why a new decision is due; "": none is. What is divided by room does not move when clusters join, recover or change
// their labels: only Duplicated workloads and what has no replicas follow.
func Need(r *Request, o Observed, s *Snapshot) string {
	switch {
	case o.Placement == "" || !r.samePlacement(o.Placement):
		return "the placement changed"
	case r.replicasChanged():
		return "the number of replicas changed"
	case o.Rescheduled.After(o.Scheduled):
		return "a rebalancing was asked for"
	case !r.workload() || strategyOf(r.Placement) == duplicated:
		return "it follows the clusters"
	}
	for i := range r.Current {
		if at, ok := s.index[r.Current[i].Name]; ok && s.traits[at].deleting {
			return fmt.Sprintf("cluster %s is being removed", r.Current[i].Name)
		}
	}
	return ""
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

// samePlacement compares what of a placement bears on a running template: a group behind the one in use does not, nor does
// workloadAffinity.
func (r *Request) samePlacement(applied string) bool {
	var before policyv1alpha1.Placement
	if err := json.Unmarshal([]byte(applied), &before); err != nil {
		return false // it was not written by us: decide
	}
	now := r.Placement
	if now == nil {
		now = &policyv1alpha1.Placement{}
	}
	return equality.Semantic.DeepEqual(r.bearing(&before), r.bearing(now))
}

func (r *Request) bearing(p *policyv1alpha1.Placement) policyv1alpha1.Placement {
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

// Applied is the placement as Observed.Placement keeps it.
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
