package propagate

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kube"
)

// choice is which policy a template follows from now on.
type choice struct {
	policy *propagationPolicy // nil: none
	// preempts is the policy that the template followed until now, and that is still there.
	preempts *propagationPolicy
	// inert: the policy that the template follows has been made invalid, or the one that it is to follow is new and has no id yet.
	// Everything stays as it is until that is over.
	inert bool
}

// match chooses a policy for a template. held is the policy that the template's claim names, nil if there is no claim or the
// policy is gone; all are those that may select the template. A claim is kept while its policy selects the template. Only a
// policy with preemption Always takes it over: a namespaced one from a namespaced one of lower priority or from any cluster-wide
// one, a cluster-wide one only from a cluster-wide one of lower priority.
func match(template policy.Object, held *propagationPolicy, all []*propagationPolicy) (choice, error) {
	if held != nil && !held.counts() && held.GetDeletionTimestamp() == nil {
		return choice{policy: held, inert: true}, nil
	}
	var best, taker *candidate
	for _, p := range all {
		precision, err := precisionOf(p, template)
		if err == nil && precision == policy.NoMatch || !p.usable() { // most do not match: it is looked at their validity last
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

// before is the order in which policies get a template that follows none: those with a namespace first, then by priority, by
// how precisely they select, by name. Everything is before none.
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

// precisionOf says how precisely a policy selects the template, by whatever version it names its kind.
func precisionOf(p *propagationPolicy, template policy.Object) (policy.Precision, error) {
	best := policy.NoMatch
	for i := range p.Spec.ResourceSelectors {
		s := &p.Spec.ResourceSelectors[i]
		gvk, ok := selected(s)
		if !ok || gvk.GroupKind() != template.GroupVersionKind().GroupKind() {
			continue
		}
		precision, err := policy.Match(p.Spec.ResourceSelectors[i:i+1], p.GetNamespace(), versioned{template, gvk})
		if err != nil {
			return policy.NoMatch, fmt.Errorf("match %s: %w", p, err)
		}
		best = max(best, precision)
	}
	return best, nil
}

// versioned is an object by another version of its kind.
type versioned struct {
	metav1.Object
	gvk schema.GroupVersionKind
}

func (v versioned) GroupVersionKind() schema.GroupVersionKind { return v.gvk }

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

// counts reports whether the policy has an effect: the policy controller has given it its id and finalizer, nothing in it is wrong,
// and it is not being deleted.
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

// usable reports whether nothing in the policy is wrong, and it is not being deleted: it has an effect as soon as it is marked.
func (p *propagationPolicy) usable() bool {
	return p.GetDeletionTimestamp() == nil && len(policyv1alpha1.ValidatePropagation(p, *p.Spec)) == 0
}

// removes reports whether a template that fits no cluster any more is removed from all clusters.
func (p *propagationPolicy) removes() bool {
	return p.GetAnnotations()[policyv1alpha1.AnnotationOnNoClusterFit] == policyv1alpha1.OnNoClusterFitRemove
}

// claim names the policy that a template or a binding follows; the zero value is none.
type claim struct {
	id, namespace, name string
	clusterWide         bool
}

// claimOf reads the claim of an object. A namespaced policy wins over a cluster-wide one, as everywhere.
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

// claimLabels are the labels and annotations of the claim of a policy; none of nil.
func claimLabels(p *propagationPolicy) (labels, annotations map[string]string) {
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
	labels, annotations := claimLabels(p)
	for _, key := range policyv1alpha1.ClaimLabels {
		setLabel(o, key, labels[key])
	}
	for _, key := range policyv1alpha1.ClaimAnnotations {
		setAnnotation(o, key, annotations[key])
	}
}

// foreign reports whether another scheduler decides.
func foreign(schedulerName string) bool {
	return !slices.Contains([]string{"", policyv1alpha1.DefaultSchedulerName}, schedulerName)
}

// claimPatch returns a merge patch that replaces the template's claim by that of a policy (nil: removes it), with UID and
// resourceVersion as read as preconditions; no patch if the template has the claim already.
//
// A Lazy policy does not affect an older template until that is edited. The claim therefore records the hash of the template, in
// the annotation pelago.io/template, in case there is no binding that does.
func claimPatch(t *unstructured.Unstructured, p *propagationPolicy) ([]byte, error) {
	labels, annotations := claimLabels(p)
	changedLabels := difference(t.GetLabels(), labels, policyv1alpha1.ClaimLabels)
	changedAnnotations := difference(t.GetAnnotations(), annotations, policyv1alpha1.ClaimAnnotations)
	if p == nil {
		for k, v := range difference(t.GetAnnotations(), nil, []string{workv1alpha2.AnnotationTemplate}) {
			changedAnnotations[k] = v
		}
	}
	if len(changedLabels)+len(changedAnnotations) == 0 {
		return nil, nil
	}
	if lazy(p) && t.GetCreationTimestamp().Time.Before(p.GetCreationTimestamp().Time) {
		hash, err := workv1alpha2.TemplateHash(t)
		if err != nil {
			return nil, err
		}
		changedAnnotations[workv1alpha2.AnnotationTemplate] = &hash
	}
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": t.GetUID(), "resourceVersion": t.GetResourceVersion(), "labels": changedLabels, "annotations": changedAnnotations}})
	if err != nil {
		return nil, fmt.Errorf("claim %s: %w", keyOf(t), err)
	}
	return raw, nil
}

// difference is what a merge patch must say of some keys of a map; nil removes.
func difference(have, want map[string]string, keys []string) map[string]*string {
	out := map[string]*string{}
	for _, k := range keys {
		now, is := have[k]
		then, ought := want[k]
		switch {
		case ought && (!is || now != then):
			out[k] = &then
		case is && !ought:
			out[k] = nil
		}
	}
	return out
}

func lazy(p *propagationPolicy) bool {
	return p != nil && p.Spec.ActivationPreference == policyv1alpha1.LazyActivation
}

// waits reports whether a Lazy policy still waits for the user's next edit of the template. What the template was like stands on the
// binding or, before there is one, on the template.
func waits(p *propagationPolicy, t *unstructured.Unstructured, have kube.Binding) (bool, error) {
	if !lazy(p) {
		return false, nil
	}
	noted := t.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	if have.Exists() {
		noted = have.GetAnnotations()[workv1alpha2.AnnotationTemplate]
	}
	hash, err := workv1alpha2.TemplateHash(t)
	return noted == hash, err
}

// ownGroups are groups none of whose objects are templates: what propagation itself consists of, and the network's.
var ownGroups = []string{"cluster.karmada.io", "policy.karmada.io", "work.karmada.io", "config.karmada.io", "pelago.io",
	"submariner.io", "events.k8s.io", "coordination.k8s.io", "discovery.k8s.io"}

// ownKind reports whether objects of a kind are never templates. Of discovery.k8s.io and coordination.k8s.io nothing is left without
// EndpointSlices and Leases.
func ownKind(gk schema.GroupKind) bool {
	return slices.Contains(ownGroups, gk.Group) || gk == schema.GroupKind{Kind: "Event"}
}

// ignored reports whether an object is none of ours although its kind is watched.
func ignored(o client.Object, gk schema.GroupKind) bool {
	return ownKind(gk) || workv1alpha2.ReservedNamespace(o.GetNamespace()) || o.GetLabels()[workv1alpha2.LabelClaimedBy] != "" ||
		gk == schema.GroupKind{Kind: "Namespace"} && workv1alpha2.ReservedNamespace(o.GetName())
}

// changed reports whether an update of a template is relevant: not if only status or metadata maintained by the API server changed.
func changed(before, after *unstructured.Unstructured) bool {
	return before.GetUID() != after.GetUID() || (before.GetDeletionTimestamp() == nil) != (after.GetDeletionTimestamp() == nil) ||
		!maps.Equal(before.GetLabels(), after.GetLabels()) || !maps.Equal(before.GetAnnotations(), after.GetAnnotations()) ||
		!equality.Semantic.DeepEqual(bare(before), bare(after))
}

// bare is an object without metadata and status.
func bare(t *unstructured.Unstructured) map[string]any {
	out := maps.Clone(t.Object)
	delete(out, "metadata")
	delete(out, "status")
	return out
}
