package work

import (
	"fmt"
	"maps"
	"strconv"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// renderer computes what the Works of one template are made of. It holds what is the same for all
// clusters.
type renderer struct {
	in          *BindingInput
	workload    bool
	completions map[string]int64 // of a divided Job; nil: not divided
	// recorded is the hash of the template that the binding follows; edited: the template differs
	// from it.
	recorded string
	edited   bool
	rollout  *revisions // nil: none
}

func newRenderer(in *BindingInput) (*renderer, error) {
	r := &renderer{in: in, recorded: in.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate]}
	hash, err := workv1alpha2.TemplateHash(in.Template)
	if err != nil {
		return nil, err
	}
	r.edited = r.recorded != "" && r.recorded != hash
	if r.rollout, err = newRevisions(in, r.edited); err != nil {
		return nil, err
	}
	r.workload = in.Interpreter.HasReplicas(in.Template) && len(in.Binding.Spec.Components) == 0
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

// source is the Work whose object is rendered again instead of the template: the target's own, for
// a new one that of another cluster. It is nil unless the template was edited and the binding does
// not follow it, since no policy claims it or the policy cannot be used. A Work that was rendered
// from another template is no source: it lags behind its binding, or the binding is about to follow
// the template.
func (r *renderer) source(have *workv1alpha1.Work) *workv1alpha1.Work {
	candidates := r.in.Works
	if have != nil {
		candidates = []*workv1alpha1.Work{have}
	}
	for _, w := range candidates {
		if r.edited && w.Annotations[workv1alpha2.AnnotationTemplate] == r.recorded {
			return w
		}
	}
	return nil
}

// revision selects what a target gets in a rollout: the template, the kept revision, or a Work
// whose object is rendered again.
func (r *renderer) revision(in *RenderInput, t target, have, source *workv1alpha1.Work) (*workv1alpha1.Work, error) {
	if r.rollout == nil {
		return source, nil
	}
	in.Kept = r.rollout.text
	switch {
	case have == nil && r.rollout.template != nil: // with its own overrides
		source = nil
	case source == nil && r.edited: // the edit is a revision that the binding does not have yet
		source = have
	}
	if source != nil {
		in.Revision = source.Annotations[workv1alpha2.AnnotationRevision]
		return source, nil
	}
	in.Revision, _ = r.rollout.In(t.name)
	switch {
	case r.edited:
		in.Revision = r.rollout.Passed
	case in.Revision == r.rollout.Revision:
		return nil, nil
	}
	if r.rollout.template != nil {
		in.Object = r.rollout.template.DeepCopy()
		in.Object.SetUID(r.in.Template.GetUID()) // another one after a restore of the hub
		return nil, nil
	}
	source = r.rollout.former(have, r.in.Works)
	switch {
	case source == nil && have != nil:
		return nil, fmt.Errorf("revision %s is not kept: it is too large, or older than annotation %s: change the template instead",
			in.Revision, policyv1alpha1.AnnotationRollout)
	case source == nil: // there is no other one
		in.Revision = r.rollout.Revision
	}
	return source, nil
}

// input is what the Work of a target is made of; have is the one that exists, nil if none does.
func (r *renderer) input(t target, have *workv1alpha1.Work) (RenderInput, error) {
	b, p := r.in.Binding, r.policy(have)
	labels, annotations := marks(b, p.labels, p.annotations)
	in := RenderInput{
		Object: r.in.Template.DeepCopy(), Cluster: r.in.Clusters[t.name], Overrides: r.in.Overrides,
		Labels: labels, Annotations: annotations, Conflict: b.Spec.ConflictResolution, MemberOwned: p.memberOwned,
		Template: r.recorded,
	}
	source, err := r.revision(&in, t, have, r.source(have))
	if err != nil {
		return RenderInput{}, err
	}
	if err := kinds.ForMembers(in.Object); err != nil {
		return RenderInput{}, err
	}
	if source != nil { // its overrides are applied
		if in.Object, err = rendered(source); err != nil {
			return RenderInput{}, err
		}
		in.Overrides, in.Applied = policy.OverridePolicies{}, only(source.Annotations,
			[]string{policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides})
	}
	if err := r.share(in.Object, t); err != nil {
		return RenderInput{}, err
	}
	if b.Spec.Suspension.Suspends(t.name) {
		in.SuspendDispatching = ptr.To(true)
	}
	if ptr.Deref(b.Spec.PreserveResourcesOnDeletion, false) {
		in.PreserveResourcesOnDeletion = ptr.To(true)
	}
	return in, nil
}

// rendered is the object of a Work, with the identity of the template that it was rendered from.
func rendered(w *workv1alpha1.Work) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(w.Spec.Workload.Manifests[0].Raw); err != nil {
		return nil, fmt.Errorf("read the manifest of Work %s/%s: %w", w.Namespace, w.Name, err)
	}
	a := u.GetAnnotations()
	u.SetUID(types.UID(a[workv1alpha2.AnnotationTemplateUID]))
	generation, err := strconv.ParseInt(a[workv1alpha2.AnnotationTemplateGeneration], 10, 64)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of Work %s/%s: %w", w.Namespace, w.Name, err)
	}
	u.SetGeneration(generation)
	return u, nil
}

// share gives an object the cluster's replicas and completions, and the state that is carried over
// to it.
func (r *renderer) share(obj *unstructured.Unstructured, t target) error {
	if state := preserved(r.in.Binding.Spec, t.name); len(state) > 0 {
		labels := obj.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		maps.Copy(labels, state)
		obj.SetLabels(labels)
	}
	if !t.scheduled || !r.workload {
		return nil
	}
	if err := r.in.Interpreter.Revise(obj, t.replicas); err != nil {
		return fmt.Errorf("cluster %s: %w", t.name, err)
	}
	if r.completions != nil {
		return kinds.SetCompletions(obj, r.completions[t.name])
	}
	return nil
}

// bindingPolicy are the fields of a Work that come from the policy.
type bindingPolicy struct {
	labels, annotations map[string]string
	memberOwned         string
}

// policy returns the fields that come from the policy that claims the binding. After the policy was
// deleted, existing Works keep theirs, and a Work for a further cluster copies those of another
// one.
func (r *renderer) policy(have *workv1alpha1.Work) bindingPolicy {
	if have == nil && len(r.in.Works) > 0 {
		have = r.in.Works[0]
	}
	var p bindingPolicy
	switch {
	case claimed(r.in.Binding):
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
