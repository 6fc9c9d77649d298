package work

import (
	"fmt"
	"maps"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// renderer makes the Works of one template. It holds what is the same for all clusters.
type renderer struct {
	in          *BindingInput
	workload    bool
	completions map[string]int64 // of a divided Job; nil: not divided
	skipped     []policy.SkippedRule
}

func newRenderer(in *BindingInput) (*renderer, error) {
	r := &renderer{in: in}
	_, _, workload, err := in.Interpreter.Replicas(in.Template)
	if err != nil {
		return nil, err
	}
	r.workload = workload
	if in.Template.GroupVersionKind() == batchv1.SchemeGroupVersion.WithKind("Job") && divided(in.Binding.Spec) {
		assigned := map[string]int64{}
		for _, c := range in.Binding.Spec.Clusters {
			assigned[c.Name] = int64(c.Replicas)
		}
		if r.completions, err = kinds.Completions(in.Template, assigned); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func divided(spec *workv1alpha2.ResourceBindingSpec) bool {
	return spec.Placement != nil && spec.Placement.ReplicaScheduling != nil &&
		spec.Placement.ReplicaScheduling.ReplicaSchedulingType == policyv1alpha1.ReplicaSchedulingTypeDivided
}

// render makes the Work of a target; have is the one that exists, nil if none does.
func (r *renderer) render(t target, name, id string, have *workv1alpha1.Work) (*workv1alpha1.Work, error) {
	obj, err := r.share(t)
	if err != nil {
		return nil, err
	}
	b, p := r.in.Binding, r.policy(have)
	labels, annotations := b.marks(p.labels, p.annotations)
	in := RenderInput{
		Object: obj, Cluster: r.in.Clusters[t.name], Overrides: r.in.Overrides, Name: name, ID: id, HubID: r.in.HubID,
		Labels: labels, Annotations: annotations, Conflict: b.Spec.ConflictResolution, MemberOwned: p.memberOwned,
		Template: b.GetAnnotations()[workv1alpha2.AnnotationTemplate],
	}
	if suspended(b.Spec.Suspension, t.name) {
		in.SuspendDispatching = ptr.To(true)
	}
	if ptr.Deref(b.Spec.PreserveResourcesOnDeletion, false) {
		in.PreserveResourcesOnDeletion = ptr.To(true)
	}
	w, skipped, err := Render(r.in.Interpreter, in)
	r.skipped = append(r.skipped, skipped...)
	return w, err
}

// share is a copy of the template with the cluster's replicas and completions, and the state that is carried over to it.
func (r *renderer) share(t target) (*unstructured.Unstructured, error) {
	obj := r.in.Template.DeepCopy()
	if state := preserved(r.in.Binding.Spec, t.name); len(state) > 0 {
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, state)
		obj.SetLabels(labels)
	}
	if !t.scheduled || !r.workload {
		return obj, nil
	}
	if err := r.in.Interpreter.Revise(obj, t.replicas); err != nil {
		return nil, fmt.Errorf("cluster %s: %w", t.name, err)
	}
	if r.completions != nil {
		return obj, kinds.SetCompletions(obj, r.completions[t.name])
	}
	return obj, nil
}

// policy is what a Work says of the policy.
type bindingPolicy struct {
	labels, annotations map[string]string
	memberOwned         string
}

// policy is the one that claims the binding. Once that has been deleted Works stay as they are: their marks are those that they
// have, in a further cluster those of any other.
func (r *renderer) policy(have *workv1alpha1.Work) bindingPolicy {
	if have == nil && len(r.in.Works) > 0 {
		have = r.in.Works[0]
	}
	var p bindingPolicy
	switch {
	case r.in.Binding.claimed():
		p.labels, p.annotations = PolicyMarks(r.in.Binding.GetLabels(), r.in.Binding.GetAnnotations())
	case have != nil:
		p.labels, p.annotations = PolicyMarks(have.Labels, have.Annotations)
	default:
		p.labels, p.annotations = map[string]string{}, map[string]string{}
	}
	switch {
	case r.in.MemberOwned != nil:
		p.memberOwned = *r.in.MemberOwned
	case have != nil:
		p.memberOwned = have.Annotations[policyv1alpha1.AnnotationMemberOwned]
	}
	return p
}
