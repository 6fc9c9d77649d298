package propagate

import (
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// policy is one of either kind.
type propagationPolicy struct {
	client.Object
	spec        *policyv1alpha1.PropagationSpec
	clusterWide bool
}

func policyOf(o client.Object) *propagationPolicy {
	switch p := o.(type) {
	case *policyv1alpha1.PropagationPolicy:
		return &propagationPolicy{Object: p, spec: &p.Spec}
	case *policyv1alpha1.ClusterPropagationPolicy:
		return &propagationPolicy{Object: p, spec: &p.Spec, clusterWide: true}
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

// counts says whether the policy has an effect: the policy controller has given it its id and finalizer, nothing in it is wrong,
// and it is not being deleted.
func (p *propagationPolicy) counts() bool {
	finalizer := policyv1alpha1.FinalizerPropagationPolicy
	if p.clusterWide {
		finalizer = policyv1alpha1.FinalizerClusterPropagationPolicy
	}
	return p.id() != "" && controllerutil.ContainsFinalizer(p, finalizer) && p.GetDeletionTimestamp() == nil &&
		len(p.spec.Validate(p.GetNamespace())) == 0
}

// removes says whether what no cluster fits any more is taken away from everywhere.
func (p *propagationPolicy) removes() bool {
	return p.GetAnnotations()[policyv1alpha1.AnnotationOnNoClusterFit] == policyv1alpha1.OnNoClusterFitRemove
}

// claim names the policy that a template or a binding follows; the zero value is none.
type claim struct {
	id, namespace, name string
	clusterWide         bool
}

// claimOf reads the marks of an object. A namespaced policy wins over a cluster-wide one, as everywhere.
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

// of says whether the claim is that of a policy.
func (c claim) of(p *propagationPolicy) bool {
	return p != nil && c.id == p.id() && c.clusterWide == p.clusterWide
}

// markLabels and markAnnotations are what the claim of any policy consists of.
var (
	markLabels      = []string{policyv1alpha1.LabelPropagationPolicyID, policyv1alpha1.LabelClusterPropagationPolicyID}
	markAnnotations = []string{policyv1alpha1.AnnotationPropagationPolicyNamespace, policyv1alpha1.AnnotationPropagationPolicyName,
		policyv1alpha1.AnnotationClusterPropagationPolicyName}
)

// marks are the labels and annotations of the claim of a policy; none of nil.
func marks(p *propagationPolicy) (labels, annotations map[string]string) {
	switch {
	case p == nil:
		return nil, nil
	case p.clusterWide:
		return map[string]string{policyv1alpha1.LabelClusterPropagationPolicyID: p.id()},
			map[string]string{policyv1alpha1.AnnotationClusterPropagationPolicyName: p.GetName()}
	}
	return map[string]string{policyv1alpha1.LabelPropagationPolicyID: p.id()},
		map[string]string{policyv1alpha1.AnnotationPropagationPolicyNamespace: p.GetNamespace(),
			policyv1alpha1.AnnotationPropagationPolicyName: p.GetName()}
}

// mark gives an object the claim of a policy instead of any other; nil: none.
func mark(o client.Object, p *propagationPolicy) {
	labels, annotations := marks(p)
	for _, key := range markLabels {
		setLabel(o, key, labels[key])
	}
	for _, key := range markAnnotations {
		setAnnotation(o, key, annotations[key])
	}
}

// foreign says whether another scheduler decides.
func foreign(schedulerName string) bool {
	return !slices.Contains([]string{"", policyv1alpha1.DefaultSchedulerName}, schedulerName)
}
