package propagate

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/kinds"
)

// desired is the binding as it should be, with the clusters of the present one; none if the
// template needs no binding.
func desired(w inputs, in *kinds.Interpreter) (binding.Binding, error) {
	following := w.policy != nil && !w.waiting && !w.kept
	if !following && len(w.parents) == 0 && (!w.have.Exists() || attachedOnly(w.have)) {
		return binding.Binding{}, nil
	}
	b := binding.New(client.ObjectKey{Namespace: w.template.GetNamespace()})
	if w.have.Exists() {
		b = w.have.Copy()
	} else {
		b.SetName(w.name)
	}
	if b.GetLabels()[b.IDLabel()] == "" {
		setLabel(b, b.IDLabel(), string(w.id))
	}
	controllerutil.AddFinalizer(b, b.Finalizer())
	own(b, w.template)
	b.Spec.Resource.UID = w.template.GetUID()
	setAnnotation(b, policyv1alpha1.AnnotationClusters, w.within)
	// Without a policy the binding keeps its state of the template, unless other bindings need it.
	if following || w.policy == nil && !w.kept && len(w.parents) > 0 || !w.have.Exists() {
		if err := refresh(b, w.template); err != nil {
			return binding.Binding{}, err
		}
	}
	switch {
	case following:
		mark(b, w.policy)
		if err := follow(b, w, in); err != nil {
			return binding.Binding{}, err
		}
	case w.staleClaim, !w.kept && w.policy == nil:
		mark(b, nil)
	}
	if !following && b.Spec.Placement == nil {
		attach(b.Spec, w.parents)
	}
	requireBy(b, w.parents)
	return b, nil
}

// refresh records the current template. The resourceVersion changes only if the propagated content
// has changed.
func refresh(b binding.Binding, t *unstructured.Unstructured) error {
	hash, err := workv1alpha2.TemplateHash(t)
	if err != nil {
		return err
	}
	ref := workv1alpha2.ObjectReference{APIVersion: t.GetAPIVersion(), Kind: t.GetKind(), Namespace: t.GetNamespace(),
		Name: t.GetName(), UID: t.GetUID(), ResourceVersion: t.GetResourceVersion()}
	if b.GetAnnotations()[workv1alpha2.AnnotationTemplate] == hash && b.Spec.Resource.ResourceVersion != "" {
		ref.ResourceVersion = b.Spec.Resource.ResourceVersion
	}
	b.Spec.Resource = ref
	setAnnotation(b, workv1alpha2.AnnotationTemplate, hash)
	return nil
}

// errDependencies: what the template refers to cannot be read; errReplicas: how many replicas it
// has, and what each needs.
var (
	errDependencies = errors.New("get dependencies")
	errReplicas     = errors.New("get replicas")
)

// follow copies the policy into the binding.
func follow(b binding.Binding, w inputs, in *kinds.Interpreter) error {
	p := w.policy.Spec.Defaulted(w.policy.GetNamespace())
	s := b.Spec
	components, _, err := in.Components(w.template)
	s.Components, s.Replicas, s.ReplicaRequirements = components, 0, nil
	if err == nil && len(components) == 0 {
		var counted bool
		s.Replicas, s.ReplicaRequirements, counted, err = in.Replicas(w.template)
		if counted && s.Replicas == 0 && s.ReplicaRequirements == nil {
			// tells it from a template of a kind without replicas
			s.ReplicaRequirements = &workv1alpha2.ReplicaRequirements{}
		}
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errReplicas, err)
	}
	s.Placement = &p.Placement
	s.PropagateDeps = p.PropagateDeps
	s.Failover = p.Failover
	s.ConflictResolution = p.ConflictResolution
	s.PreserveResourcesOnDeletion = p.PreserveResourcesOnDeletion
	s.SchedulerName = p.SchedulerName
	s.Suspension = suspension(p.Suspension, s.Suspension)
	s.SchedulePriority = nil
	if w.priority != nil {
		s.SchedulePriority = &workv1alpha2.SchedulePriority{Priority: *w.priority}
	}
	setAnnotation(b, policyv1alpha1.AnnotationNear, w.policy.GetAnnotations()[policyv1alpha1.AnnotationNear])
	setAnnotation(b, policyv1alpha1.AnnotationScores, w.policy.GetAnnotations()[policyv1alpha1.AnnotationScores])
	setAnnotation(b, policyv1alpha1.AnnotationFailback, w.policy.GetAnnotations()[policyv1alpha1.AnnotationFailback])
	setAnnotation(b, workv1alpha2.AnnotationUndivided, kinds.Undivided(w.template))
	s.WorkloadAffinityGroups = affinityGroups(p.Placement.WorkloadAffinity, w.template.GetLabels())
	var text string
	if p.PropagateDeps {
		refs, err := in.Dependencies(w.template)
		if err != nil {
			return fmt.Errorf("%w: %w", errDependencies, err)
		}
		if len(refs) > 0 {
			raw, err := json.Marshal(refs)
			if err != nil {
				return fmt.Errorf("note the dependencies of %s: %w", keyOf(w.template), err)
			}
			text = string(raw)
		}
	}
	setAnnotation(b, workv1alpha2.AnnotationDependencies, text)
	return nil
}

// suspension is the policy's, plus the field scheduling, with which another component holds the
// first decision.
func suspension(of *policyv1alpha1.Suspension, have *workv1alpha2.Suspension) *workv1alpha2.Suspension {
	var out workv1alpha2.Suspension
	if of != nil {
		out.Suspension = *of
	}
	if have != nil {
		out.Scheduling = have.Scheduling
	}
	if of == nil && out.Scheduling == nil {
		return nil
	}
	return &out
}

func affinityGroups(a *policyv1alpha1.WorkloadAffinity, labels map[string]string) *workv1alpha2.WorkloadAffinityGroups {
	if a == nil {
		return nil
	}
	group := func(t *policyv1alpha1.WorkloadAffinityTerm) string {
		if t == nil || labels[t.GroupByLabelKey] == "" {
			return ""
		}
		return t.GroupByLabelKey + "=" + labels[t.GroupByLabelKey]
	}
	return &workv1alpha2.WorkloadAffinityGroups{AffinityGroup: group(a.Affinity), AntiAffinityGroup: group(a.AntiAffinity)}
}

// own makes the template the controller owner of the binding, so that the binding is deleted with
// it. The reference to a previous object of the same name (a hub restored from a backup has new
// UIDs) is replaced.
func own(b binding.Binding, template *unstructured.Unstructured) {
	ref := *metav1.NewControllerRef(template, template.GroupVersionKind())
	refs := slices.DeleteFunc(slices.Clone(b.GetOwnerReferences()), func(r metav1.OwnerReference) bool {
		return r.UID == ref.UID || ptr.Deref(r.Controller, false)
	})
	b.SetOwnerReferences(append([]metav1.OwnerReference{ref}, refs...))
}

// maxRequiredBy bounds the bindings in requiredBy, and the labels for them: names may have 253 bytes,
// an object 1.5 MiB.
const maxRequiredBy = 1000

// requireBy notes the bindings that need this one: their names, each cluster once, at the first
// binding that needs it, and a label to find it by. A cluster for each binding would exceed what an
// object may have.
func requireBy(b binding.Binding, parents []binding.Binding) {
	for key := range b.GetLabels() {
		if strings.HasPrefix(key, workv1alpha2.LabelDependedByPrefix) {
			setLabel(b, key, "")
		}
	}
	b.Spec.RequiredBy = nil
	seen := map[string]bool{}
	var more []workv1alpha2.TargetCluster // of bindings that are not named
	for i, p := range parents {
		var clusters []workv1alpha2.TargetCluster
		for _, name := range clustersOf(p) {
			if !seen[name] {
				seen[name] = true
				clusters = append(clusters, workv1alpha2.TargetCluster{Name: name})
			}
		}
		if i >= maxRequiredBy {
			more = append(more, clusters...)
			continue
		}
		setLabel(b, dependedBy(p), p.GetLabels()[p.IDLabel()])
		b.Spec.RequiredBy = append(b.Spec.RequiredBy,
			workv1alpha2.BindingSnapshot{Namespace: p.GetNamespace(), Name: p.GetName(), Clusters: clusters})
	}
	unnamed := ""
	if n := len(parents) - maxRequiredBy; n > 0 {
		last := &b.Spec.RequiredBy[maxRequiredBy-1]
		last.Clusters = append(last.Clusters, more...)
		unnamed = strconv.Itoa(n)
	}
	setAnnotation(b, workv1alpha2.AnnotationRequiredByMore, unnamed)
}

// clustersOf names the clusters of a parent, those included that it leaves gracefully: its pods
// there still need what it depends on.
func clustersOf(p binding.Binding) (names []string) {
	for _, c := range p.Spec.Clusters {
		names = append(names, c.Name)
	}
	for _, t := range p.Spec.GracefulEvictionTasks {
		if t.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly {
			names = append(names, t.FromCluster)
		}
	}
	return names
}

// dependedBy is the label that a binding has while the template of another one depends on its own.
func dependedBy(parent binding.Binding) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(capacityKey(parent))) // a hash takes everything
	return fmt.Sprintf("%s%08x", workv1alpha2.LabelDependedByPrefix, h.Sum32())
}

// attach gives a binding without a policy of its own what those that need it want: Overwrite and
// preservation if any of them does.
func attach(s *workv1alpha2.ResourceBindingSpec, parents []binding.Binding) {
	s.ConflictResolution = policyv1alpha1.ConflictAbort
	s.PreserveResourcesOnDeletion = nil
	for _, p := range parents {
		if p.Spec.PreserveResourcesOnDeletion != nil && s.PreserveResourcesOnDeletion == nil {
			s.PreserveResourcesOnDeletion = ptr.To(false)
		}
		if p.Spec.ConflictResolution == policyv1alpha1.ConflictOverwrite {
			s.ConflictResolution = policyv1alpha1.ConflictOverwrite
		}
		if ptr.Deref(p.Spec.PreserveResourcesOnDeletion, false) {
			s.PreserveResourcesOnDeletion = ptr.To(true)
		}
	}
}

// conflict names, as Karmada does, the fields on which those that need one object disagree; "":
// none.
func conflict(parents []binding.Binding) string {
	var of []string
	if disagree(parents, func(b binding.Binding) bool { return b.Spec.ConflictResolution == policyv1alpha1.ConflictOverwrite }) {
		of = append(of, "ConflictResolution conflicted (Overwrite vs Abort)")
	}
	if disagree(parents, func(b binding.Binding) bool { return ptr.Deref(b.Spec.PreserveResourcesOnDeletion, false) }) {
		of = append(of, "PreserveResourcesOnDeletion conflicted (true vs false)")
	}
	if len(of) == 0 {
		return ""
	}
	var who []string
	for _, p := range parents {
		who = append(who, p.GetName())
	}
	return fmt.Sprintf("%s in the policies of %s: Overwrite and true are used; give them the same value, or give this object a policy of its own",
		strings.Join(of, ", "), strings.Join(who, ", "))
}

func disagree(all []binding.Binding, about func(binding.Binding) bool) bool {
	return slices.ContainsFunc(all, about) && slices.ContainsFunc(all, func(b binding.Binding) bool { return !about(b) })
}
