package work

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/control/kube"
)

// templateIndex finds Works by the identity of what they hold.
const templateIndex = "manifest.template"

// AddIndexes indexes the Works in the manager's cache by what they hold, as Writer.Works needs it: once for all controllers.
func AddIndexes(mgr ctrl.Manager) error {
	return kube.AddIndex(mgr, &workv1alpha1.Work{}, templateIndex, func(w *workv1alpha1.Work) []string {
		if id, ok := OfWork(w); ok {
			return []string{id.String()}
		}
		return nil
	})
}

func find(ctx context.Context, cache client.Reader, holds Identity) ([]*workv1alpha1.Work, error) {
	var list workv1alpha1.WorkList
	if err := cache.List(ctx, &list, client.MatchingFields{templateIndex: holds.String()}); err != nil {
		name := types.NamespacedName{Namespace: holds.Namespace, Name: holds.Name}
		return nil, fmt.Errorf("list the Works of %s %s: %w", holds.Kind, name, err)
	}
	return kube.Pointers(list.Items), nil
}

// Overrides reads from a cache the override policies that select an object and are valid. The others stop nothing:
// control/hub/policy reports those that are not valid.
func Overrides(ctx context.Context, cache client.Reader, obj *unstructured.Unstructured) (policy.OverridePolicies, error) {
	var out policy.OverridePolicies
	var wide policyv1alpha1.ClusterOverridePolicyList
	if err := cache.List(ctx, &wide, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return out, fmt.Errorf("list ClusterOverridePolicies: %w", err)
	}
	for _, p := range wide.Items {
		if applies(p.Spec, "", obj) {
			out.Cluster = append(out.Cluster, p)
		}
	}
	if obj.GetNamespace() == "" {
		return out, nil
	}
	var own policyv1alpha1.OverridePolicyList
	if err := cache.List(ctx, &own, client.InNamespace(obj.GetNamespace()), client.UnsafeDisableDeepCopy); err != nil {
		return out, fmt.Errorf("list the OverridePolicies of namespace %s: %w", obj.GetNamespace(), err)
	}
	for _, p := range own.Items {
		if applies(p.Spec, p.Namespace, obj) {
			out.Namespaced = append(out.Namespaced, p)
		}
	}
	return out, nil
}

// applies reports whether an override policy selects an object and is valid. Without selectors it selects everything.
func applies(spec policyv1alpha1.OverrideSpec, namespace string, obj policy.Object) bool {
	if len(spec.ResourceSelectors) > 0 {
		precision, err := policy.Match(spec.ResourceSelectors, namespace, obj)
		if err != nil || precision == policy.NoMatch { // an error is one that Validate finds, too
			return false
		}
	}
	return len(spec.Validate(namespace)) == 0
}

// Names gives names to the Works of one object.
type Names struct {
	Of workv1alpha2.ObjectReference
	// Taken are the names that Works of other objects have.
	Taken map[types.NamespacedName]bool
}

// ReadNames reads from a cache which names are taken by Works of other objects.
func ReadNames(ctx context.Context, cache client.Reader, of workv1alpha2.ObjectReference, clusters []string) (Names, error) {
	out := Names{Of: of, Taken: map[types.NamespacedName]bool{}}
	for _, cluster := range clusters {
		for _, name := range []string{workv1alpha2.WorkName(of), workv1alpha2.AlternateWorkName(of)} {
			key := types.NamespacedName{Namespace: workv1alpha2.ExecutionNamespace(cluster), Name: name}
			var w workv1alpha1.Work
			switch err := cache.Get(ctx, key, &w, client.UnsafeDisableDeepCopy); {
			case apierrors.IsNotFound(err):
			case err != nil:
				return out, fmt.Errorf("read Work %s: %w", key, err)
			default:
				id, ok := OfWork(&w)
				out.Taken[key] = !ok || id != OfReference(of)
			}
		}
	}
	return out, nil
}

// Free is the name for a new Work of a cluster.
func (n Names) Free(cluster string) (string, error) {
	ns := workv1alpha2.ExecutionNamespace(cluster)
	for _, name := range []string{workv1alpha2.WorkName(n.Of), workv1alpha2.AlternateWorkName(n.Of)} {
		if !n.Taken[types.NamespacedName{Namespace: ns, Name: name}] {
			return name, nil
		}
	}
	return "", fmt.Errorf("name the Work: %s and %s in namespace %s belong to others: delete those that nobody needs",
		workv1alpha2.WorkName(n.Of), workv1alpha2.AlternateWorkName(n.Of), ns)
}

// RenderInput is what a Work is made of.
type RenderInput struct {
	// Object is the hub's, with the cluster's share of replicas. It is not changed.
	Object    *unstructured.Unstructured
	Cluster   *clusterv1alpha1.Cluster
	Overrides policy.OverridePolicies
	// Name and ID of the Work; HubID of the hub.
	Name, ID, HubID string
	// Labels and Annotations go onto the Work and onto the object in it: the binding's and the policy's.
	Labels, Annotations map[string]string
	// Conflict is the policy's; the object's own annotation goes before it. Empty: abort.
	Conflict policyv1alpha1.ConflictResolution
	// Template is the hash of the object that the Work is made of, where one is kept; it goes onto the Work alone.
	Template string
	// MemberOwned are the fields that the policy leaves to the member, as AnnotationMemberOwned lists them; those of the object
	// are added.
	MemberOwned string
	// SuspendDispatching and PreserveResourcesOnDeletion are those of the Work.
	SuspendDispatching, PreserveResourcesOnDeletion *bool
}

// OverrideError reports that the overrides cannot be applied; it names policy, rule and field.
type OverrideError struct{ Err error }

func (e *OverrideError) Error() string { return "apply the overrides: " + e.Err.Error() }
func (e *OverrideError) Unwrap() error { return e.Err }

// Render makes the Work of one cluster, and returns the override rules that were skipped. An *OverrideError comes from an override
// policy, any other from the interpreter.
func Render(interpreter *kinds.Interpreter, in RenderInput) (*workv1alpha1.Work, []policy.SkippedRule, error) {
	obj, applied, err := policy.ApplyOverrides(in.Object, in.Cluster, in.Overrides)
	if err != nil {
		return nil, nil, &OverrideError{err}
	}
	if err := interpreter.Prune(obj); err != nil {
		return nil, nil, err
	}
	work := &workv1alpha1.Work{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: workv1alpha2.ExecutionNamespace(in.Cluster.Name), Name: in.Name,
			Labels: maps.Clone(in.Labels), Finalizers: []string{workv1alpha1.FinalizerExecution},
		},
		Spec: workv1alpha1.WorkSpec{
			SuspendDispatching: in.SuspendDispatching, PreserveResourcesOnDeletion: in.PreserveResourcesOnDeletion,
		},
	}
	if work.Labels == nil {
		work.Labels = map[string]string{}
	}
	work.Labels[workv1alpha1.LabelWorkID] = in.ID
	if work.Annotations, err = applied.Annotations(); err != nil {
		return nil, nil, err
	}
	maps.Copy(work.Annotations, in.Annotations)
	if in.MemberOwned != "" {
		work.Annotations[policyv1alpha1.AnnotationMemberOwned] = in.MemberOwned
	}
	if in.Template != "" {
		work.Annotations[workv1alpha2.AnnotationTemplate] = in.Template
	}
	mark(obj, work, in)
	raw, err := json.Marshal(obj.Object)
	if err != nil {
		return nil, nil, fmt.Errorf("write the manifest of %s %s: %w", obj.GetKind(), obj.GetName(), err)
	}
	work.Spec.Workload.Manifests = []workv1alpha1.Manifest{{RawExtension: runtime.RawExtension{Raw: raw}}}
	return work, applied.Skipped, nil
}

// mark sets the labels and annotations that identify the object in the member. It runs last, so that no override changes them
// and the lists of managed keys are complete.
func mark(obj *unstructured.Unstructured, work *workv1alpha1.Work, in RenderInput) {
	labels := obj.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	for _, key := range policyv1alpha1.ClaimLabels {
		delete(labels, key) // the template's claim may be newer or older than the binding's
	}
	maps.Copy(labels, work.Labels)
	labels[workv1alpha1.LabelManaged] = "true"
	obj.SetLabels(labels)

	a := obj.GetAnnotations()
	if a == nil {
		a = map[string]string{}
	}
	for _, key := range policyv1alpha1.ClaimAnnotations {
		delete(a, key)
	}
	maps.Copy(a, in.Annotations)
	a[workv1alpha1.AnnotationWorkNamespace], a[workv1alpha1.AnnotationWorkName] = work.Namespace, work.Name
	a[workv1alpha2.AnnotationTemplateUID] = string(in.Object.GetUID())
	a[workv1alpha2.AnnotationTemplateGeneration] = strconv.FormatInt(in.Object.GetGeneration(), 10)
	a[workv1alpha1.AnnotationConflictResolution] = conflict(in)
	a[pelagov1alpha1.AnnotationHubID] = in.HubID
	if owned := memberOwned(in.MemberOwned, a[policyv1alpha1.AnnotationMemberOwned]); owned != "" {
		a[policyv1alpha1.AnnotationMemberOwned] = owned
	}
	a[workv1alpha2.AnnotationManagedLabels] = ledger(labels)
	a[workv1alpha2.AnnotationManagedAnnotations] = ""
	a[workv1alpha2.AnnotationManagedAnnotations] = ledger(a)
	obj.SetAnnotations(a)
}

// conflict is the conflict resolution of the template's annotation, else the policy's.
func conflict(in RenderInput) string {
	own := in.Object.GetAnnotations()[workv1alpha1.AnnotationConflictResolution]
	switch {
	case own == workv1alpha1.ConflictResolutionOverwrite, own == workv1alpha1.ConflictResolutionAbort:
		return own
	case in.Conflict == policyv1alpha1.ConflictOverwrite:
		return workv1alpha1.ConflictResolutionOverwrite
	}
	return workv1alpha1.ConflictResolutionAbort
}

// memberOwned is the union of two lists of fields, sorted.
func memberOwned(lists ...string) string {
	var all []string
	for _, list := range lists {
		for field := range strings.SplitSeq(list, ",") {
			if field = strings.TrimSpace(field); field != "" {
				all = append(all, field)
			}
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

func ledger(m map[string]string) string {
	return strings.Join(slices.Sorted(maps.Keys(m)), ",")
}

// settle is how long after an event of a Work it is compared with what is wanted. An event of our own write may arrive
// before the response to it, while the cache still lacks the other writes of the same round.
const settle = 500 * time.Millisecond

// Events enqueues what a Work was made of (owner): at once when a Work is gone, as a new one may wait for that; else after settle,
// unless the event is that of a write by this Writer.
func (w *Writer) Events(owner func(client.Object) (client.ObjectKey, bool)) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	add := func(o client.Object, q queue, after time.Duration) {
		if key, ok := owner(o); ok {
			q.AddAfter(reconcile.Request{NamespacedName: key}, after)
		}
	}
	ownWrite := func(o client.Object) bool {
		return w.written.OwnWrite(client.ObjectKeyFromObject(o), o.GetResourceVersion())
	}
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, q queue) {
			if !ownWrite(e.Object) {
				add(e.Object, q, settle)
			}
		},
		UpdateFunc: func(_ context.Context, e event.UpdateEvent, q queue) {
			if !ownWrite(e.ObjectNew) {
				add(e.ObjectOld, q, settle)
				add(e.ObjectNew, q, settle)
			}
		},
		DeleteFunc: func(_ context.Context, e event.DeleteEvent, q queue) {
			w.written.Forget(client.ObjectKeyFromObject(e.Object))
			add(e.Object, q, 0)
		},
	}
}

// renderer makes the Works of one template. It holds what is the same for all clusters.
type renderer struct {
	in          *BindingInput
	workload    bool
	completions map[string]int64 // of a divided Job; nil: not divided
	skipped     []policy.SkippedRule
	// recorded is the hash of the template that the binding follows; edited: the template differs from it.
	recorded string
	edited   bool
}

func newRenderer(in *BindingInput) (*renderer, error) {
	r := &renderer{in: in, recorded: in.Binding.GetAnnotations()[workv1alpha2.AnnotationTemplate]}
	hash, err := workv1alpha2.TemplateHash(in.Template)
	if err != nil {
		return nil, err
	}
	r.edited = r.recorded != "" && r.recorded != hash
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

// source is the Work whose object is rendered again instead of the template: the target's own, for a new one that of another cluster.
// It is nil unless the template was edited and the binding does not follow it, since no policy claims it or the policy cannot be used.
// A Work that was not rendered from the recorded template is none: it is behind, or the binding is about to follow.
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

// render makes the Work of a target; have is the one that exists, nil if none does.
func (r *renderer) render(t target, name, id string, have *workv1alpha1.Work) (*workv1alpha1.Work, error) {
	obj, overrides := r.in.Template.DeepCopy(), r.in.Overrides
	source := r.source(have)
	if source != nil { // its overrides are applied
		overrides = policy.OverridePolicies{}
		var err error
		if obj, err = rendered(source); err != nil {
			return nil, err
		}
	}
	if err := r.share(obj, t); err != nil {
		return nil, err
	}
	b, p := r.in.Binding, r.policy(have)
	labels, annotations := marks(b, p.labels, p.annotations)
	in := RenderInput{
		Object: obj, Cluster: r.in.Clusters[t.name], Overrides: overrides, Name: name, ID: id, HubID: r.in.HubID,
		Labels: labels, Annotations: annotations, Conflict: b.Spec.ConflictResolution, MemberOwned: p.memberOwned,
		Template: r.recorded,
	}
	if suspended(b.Spec.Suspension, t.name) {
		in.SuspendDispatching = ptr.To(true)
	}
	if ptr.Deref(b.Spec.PreserveResourcesOnDeletion, false) {
		in.PreserveResourcesOnDeletion = ptr.To(true)
	}
	w, skipped, err := Render(r.in.Interpreter, in)
	r.skipped = append(r.skipped, skipped...)
	if source != nil && err == nil {
		maps.Copy(w.Annotations, only(source.Annotations,
			[]string{policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides}))
	}
	return w, err
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

// share gives an object the cluster's replicas and completions, and the state that is carried over to it.
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

// policy returns the fields that come from the policy that claims the binding. After the policy was deleted, existing Works keep
// theirs, and a Work for a further cluster copies those of another one.
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
