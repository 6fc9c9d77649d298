package policy

import (
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// policy is one policy and what its kind has.
type policy struct {
	client.Object
	status   *policyv1alpha1.PolicyStatus
	validate func(namespace string) field.ErrorList
	// claims is nil for policies that claim nothing.
	claims *claims
}

// claims is how a policy marks what it has claimed, and which kinds that may be.
type claims struct {
	label, finalizer string
	selectors        []policyv1alpha1.ResourceSelector
}

// kinds are the four kinds: the name of the controller, and a policy without content.
var policyKinds = map[string]func() (client.Object, func() policy){
	"propagationpolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.PropagationPolicy{}
		return o, func() policy {
			return policy{o, &o.Status, o.Spec.Validate, &claims{
				policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.FinalizerPropagationPolicy, o.Spec.ResourceSelectors}}
		}
	},
	"clusterpropagationpolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.ClusterPropagationPolicy{}
		return o, func() policy {
			return policy{o, &o.Status, o.Spec.Validate, &claims{
				policyv1alpha1.LabelClusterPropagationPolicyID, policyv1alpha1.FinalizerClusterPropagationPolicy, o.Spec.ResourceSelectors}}
		}
	},
	"overridepolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.OverridePolicy{}
		return o, func() policy { return policy{o, &o.Status, o.Spec.Validate, nil} }
	},
	"clusteroverridepolicy": func() (client.Object, func() policy) {
		o := &policyv1alpha1.ClusterOverridePolicy{}
		return o, func() policy { return policy{o, &o.Status, o.Spec.Validate, nil} }
	},
}
