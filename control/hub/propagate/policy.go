package propagate

import (
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// propagationPolicy is a policy of either kind.
type propagationPolicy struct {
	client.Object
	Spec        *policyv1alpha1.PropagationSpec
	clusterWide bool
}

func policyOf(o client.Object) *propagationPolicy {
	switch p := o.(type) {
	case *policyv1alpha1.PropagationPolicy:
		return &propagationPolicy{Object: p, Spec: &p.Spec}
	case *policyv1alpha1.ClusterPropagationPolicy:
		return &propagationPolicy{Object: p, Spec: &p.Spec, clusterWide: true}
	}
	return nil
}

func (p *propagationPolicy) String() string {
	if p.clusterWide {
		return "ClusterPropagationPolicy " + p.GetName()
	}
	return "PropagationPolicy " + p.GetNamespace() + "/" + p.GetName()
}

func (p *propagationPolicy) id() string {
	if p.clusterWide {
		return p.GetLabels()[policyv1alpha1.LabelClusterPropagationPolicyID]
	}
	return p.GetLabels()[policyv1alpha1.LabelPropagationPolicyID]
}

// counts reports whether the policy has an effect: the policy controller has given it its id and
// finalizer, nothing in it is wrong, and it is not being deleted.
func (p *propagationPolicy) counts() bool {
	return p.marked() && p.usable()
}

// marked reports whether the policy controller has given the policy its id and finalizer.
func (p *propagationPolicy) marked() bool {
	finalizer := policyv1alpha1.FinalizerPropagationPolicy
	if p.clusterWide {
		finalizer = policyv1alpha1.FinalizerClusterPropagationPolicy
	}
	return p.id() != "" && controllerutil.ContainsFinalizer(p, finalizer)
}

// usable reports whether nothing in the policy is wrong, and it is not being deleted: it has an
// effect as soon as it is marked.
func (p *propagationPolicy) usable() bool {
	return p.GetDeletionTimestamp() == nil && len(policyv1alpha1.ValidatePropagation(p, *p.Spec)) == 0
}

// removes reports whether a template that fits no cluster any more is removed from all clusters.
func (p *propagationPolicy) removes() bool {
	return p.GetAnnotations()[policyv1alpha1.AnnotationOnNoClusterFit] == policyv1alpha1.OnNoClusterFitRemove
}

func lazy(p *propagationPolicy) bool {
	return p != nil && p.Spec.ActivationPreference == policyv1alpha1.LazyActivation
}

// claim names the policy that a template or a binding follows; the zero value names no policy.
type claim struct {
	id, namespace, name string
	clusterWide         bool
}

// claimOf reads the claim of an object. A namespaced policy wins over a cluster-wide one, as
// everywhere.
func claimOf(o client.Object) claim {
	labels, annotations := o.GetLabels(), o.GetAnnotations()
	if id := labels[policyv1alpha1.LabelPropagationPolicyID]; id != "" {
		return claim{id: id, namespace: annotations[policyv1alpha1.AnnotationPropagationPolicyNamespace],
			name: annotations[policyv1alpha1.AnnotationPropagationPolicyName]}
	}
	if id := labels[policyv1alpha1.LabelClusterPropagationPolicyID]; id != "" {
		return claim{id: id, name: annotations[policyv1alpha1.AnnotationClusterPropagationPolicyName], clusterWide: true}
	}
	return claim{}
}

// of reports whether the claim is that of a policy.
func (c claim) of(p *propagationPolicy) bool {
	return p != nil && c.id == p.id() && c.clusterWide == p.clusterWide
}

// gone reports whether a policy does not exist or is being deleted.
func gone(p *propagationPolicy) bool { return p == nil || p.GetDeletionTimestamp() != nil }
