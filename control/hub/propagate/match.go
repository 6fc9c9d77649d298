package propagate

import (
	"cmp"
	"fmt"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"strings"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
)

// choice is which policy a template follows from now on.
type choice struct {
	policy *propagationPolicy // nil: none
	// preempts is the policy that the template followed until now, and that is still there.
	preempts *propagationPolicy
	// inert: the policy that the template follows has been made invalid, or the one that it is to
	// follow is new and has no id yet. Everything stays as it is until that is over.
	inert bool
}

// match chooses a policy for a template. held is the policy that the template's claim names, nil if
// there is no claim or the policy is gone; all are those that may select the template. A claim is
// kept while its policy selects the template. Only a policy with preemption Always takes it over: a
// namespaced one from a namespaced one of lower priority or from any cluster-wide one, a
// cluster-wide one only from a cluster-wide one of lower priority.
func match(template policy.Object, held *propagationPolicy, all []*propagationPolicy) (choice, error) {
	if held != nil && !held.counts() && held.GetDeletionTimestamp() == nil {
		return choice{policy: held, inert: true}, nil
	}
	var best, taker *candidate
	for _, p := range all {
		precision, err := precisionOf(p, template)
		// most do not match: it is inspected their validity last
		if err == nil && precision == policy.NoMatch || !p.usable() {
			continue
		}
		if err != nil {
			return choice{}, err
		}
		c := &candidate{p, precision}
		if c.before(best) {
			best = c
		}
		if held != nil && p.marked() && p.preempts(held) && c.before(taker) {
			taker = c
		}
	}
	if held != nil && held.GetDeletionTimestamp() == nil {
		precision, err := precisionOf(held, template)
		if err != nil {
			return choice{}, err
		}
		switch {
		case precision == policy.NoMatch:
		case taker != nil:
			return choice{policy: taker.propagationPolicy, preempts: held}, nil
		default:
			return choice{policy: held}, nil
		}
	}
	if best == nil {
		return choice{}, nil
	}
	if !best.marked() { // a claim by the next best one would stay
		return choice{inert: true}, nil
	}
	return choice{policy: best.propagationPolicy}, nil
}

// preempts reports whether the policy takes templates from another one.
func (p *propagationPolicy) preempts(held *propagationPolicy) bool {
	switch {
	case p.Spec.Preemption != policyv1alpha1.PreemptAlways:
		return false
	case p.clusterWide != held.clusterWide:
		return held.clusterWide
	}
	return p.Spec.Priority > held.Spec.Priority
}

// candidate is a policy that selects the template.
type candidate struct {
	*propagationPolicy
	precision policy.Precision
}

// before is the order in which policies get a template that follows none: those with a namespace
// first, then by priority, by how precisely they select, by name. Everything is before none.
func (c *candidate) before(o *candidate) bool {
	if o == nil {
		return true
	}
	if c.clusterWide != o.clusterWide {
		return o.clusterWide
	}
	return cmp.Or(cmp.Compare(o.Spec.Priority, c.Spec.Priority), cmp.Compare(o.precision, c.precision),
		strings.Compare(c.GetName(), o.GetName())) < 0
}

// precisionOf returns how precisely a policy selects the template.
func precisionOf(p *propagationPolicy, template policy.Object) (policy.Precision, error) {
	best := policy.NoMatch
	for i := range p.Spec.ResourceSelectors {
		if _, ok := selected(&p.Spec.ResourceSelectors[i]); !ok {
			continue
		}
		precision, err := policy.Match(p.Spec.ResourceSelectors[i:i+1], p.GetNamespace(), template)
		if err != nil {
			return policy.NoMatch, fmt.Errorf("match %s: %w", p, err)
		}
		best = max(best, precision)
	}
	// each namespace has it, in every cluster: only one that is meant is propagated
	if best == policy.Kind && template.GroupVersionKind().GroupKind() == (schema.GroupKind{Kind: "ServiceAccount"}) && template.GetName() == "default" {
		return policy.NoMatch, nil
	}
	return best, nil
}
