package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// explainedPolicy is a policy that selects the template.
type explainedPolicy struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Priority  int32  `json:"priority"`
	// Selects is how: by name, by labels, all of the kind.
	Selects string `json:"selects"`
	// Why it is not the one.
	Why string `json:"why,omitempty"`

	precision policy.Precision
	claims    bool
	unusable  string
}

func (p explainedPolicy) title() string {
	return p.Kind + " " + manifests.Title(client.ObjectKey{Namespace: p.Namespace, Name: p.Name})
}

// explainPolicies returns the policy that has claimed the template, and the others that select it,
// in the order in which they would be tried.
func (f *Subject) explainPolicies() (claimed *explainedPolicy, others []explainedPolicy) {
	var all []explainedPolicy
	add := func(
		kind string, m *metav1.ObjectMeta, spec policyv1alpha1.PropagationSpec, status policyv1alpha1.PolicyStatus, label string,
	) {
		p := explainedPolicy{Kind: kind, Namespace: m.Namespace, Name: m.Name, Priority: spec.Priority}
		id := m.Labels[label]
		p.claims = id != "" && f.template.GetLabels()[label] == id
		var err error
		if p.precision, err = policy.Match(spec.Defaulted(m.Namespace).ResourceSelectors, m.Namespace, f.template); err != nil {
			p.unusable = err.Error()
		}
		p.Selects = howSelected[p.precision]
		switch accepted := meta.FindStatusCondition(status.Conditions, policyv1alpha1.ConditionAccepted); {
		case m.DeletionTimestamp != nil:
			p.unusable = "it is being deleted"
		case accepted != nil && accepted.Status == metav1.ConditionFalse:
			p.unusable = "it is not valid: " + accepted.Message
		}
		if p.claims || p.precision != policy.NoMatch || p.unusable != "" && err != nil {
			all = append(all, p)
		}
	}
	for i := range f.policies {
		p := &f.policies[i]
		add("PropagationPolicy", &p.ObjectMeta, p.Spec, p.Status, policyv1alpha1.LabelPropagationPolicyID)
	}
	for i := range f.clusterPolicies {
		p := &f.clusterPolicies[i]
		add("ClusterPropagationPolicy", &p.ObjectMeta, p.Spec, p.Status, policyv1alpha1.LabelClusterPropagationPolicyID)
	}
	slices.SortStableFunc(all, before)
	if i := slices.IndexFunc(all, func(p explainedPolicy) bool { return p.claims }); i >= 0 {
		claimed = &all[i]
	}
	for i := range all {
		if claimed != &all[i] {
			all[i].Why = lost(&all[i], claimed)
			others = append(others, all[i])
		}
	}
	return claimed, others
}

// howSelected describes a precision.
var howSelected = map[policy.Precision]string{
	policy.Name: "by name", policy.Labels: "by its labels", policy.Kind: "all of its kind", policy.NoMatch: "not any more",
}

// before orders policies as a template without one tries them.
func before(a, b explainedPolicy) int {
	return cmp.Or(
		strings.Compare(b.Kind, a.Kind), // PropagationPolicy before ClusterPropagationPolicy
		cmp.Compare(b.Priority, a.Priority),
		cmp.Compare(b.precision, a.precision),
		strings.Compare(a.Name, b.Name))
}

// lost is the reason why a policy has not claimed the template.
func lost(p, claimed *explainedPolicy) string {
	switch {
	case p.unusable != "":
		return p.unusable
	case claimed == nil:
		return "no policy has claimed it yet"
	case before(*p, *claimed) < 0:
		return "it came later: a template keeps its policy unless a policy of higher priority says `preemption: Always`"
	case p.Kind != claimed.Kind:
		return "a policy of the namespace goes before it"
	case p.Priority < claimed.Priority:
		return fmt.Sprintf("its priority is lower than %d", claimed.Priority)
	case p.precision < claimed.precision:
		return "it selects less precisely"
	}
	return "its name comes later, all else is equal"
}
