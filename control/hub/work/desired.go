package work

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/utils/ptr"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
	"github.com/pelago-net/pelago/scheduler"
)

// BindingInput is all that the Works of one template are computed from.
type BindingInput struct {
	Interpreter *kinds.Interpreter
	HubID       string
	Binding     binding.Binding
	Template    *unstructured.Unstructured
	// Clusters are those that exist and are not being deleted.
	Clusters map[string]*clusterv1alpha1.Cluster
	// Overrides are the valid policies.
	Overrides policy.OverridePolicies
	// MemberOwned is the policy's AnnotationMemberOwned; nil: the policy is gone, and its last
	// value stays in effect.
	MemberOwned *string
	// Works are those of the template that exist, whatever binding they were made for. One that was
	// made for none, such as the alias of a MultiClusterService, is taken over in a target;
	// elsewhere its writer deletes it.
	Works []*workv1alpha1.Work
	// Owners are the bindings of spec.requiredBy, if those have no cluster.
	Owners []binding.Binding
	// Names are those that a new Work may have.
	Names Names
	// NewID makes a permanent id.
	NewID func() string
}

// BindingPlan is what is to be written, in the order of the fields; Works in the order of their
// clusters.
type BindingPlan struct {
	// Purge is deleted before anything is written. While Wait names clusters nothing is written:
	// these still have a Work that must be gone before the template starts elsewhere.
	Purge []*workv1alpha1.Work
	Wait  []string
	// Writes are the Works of targets.
	Writes
	// Surplus is deleted last. It is empty as long as a target has no Work and gets none: the
	// surplus copies may be the only ones that run.
	Surplus []*workv1alpha1.Work
}

// DesiredWorks computes the plan. An error concerns the template: no Work can be rendered for any
// cluster. Works of clusters that are leaving, or that do not exist, are left unchanged: their
// namespace is being deleted, or the Cluster has not been restored yet.
func DesiredWorks(in *BindingInput) (BindingPlan, error) {
	all, barred, refuses := in.open()
	directly, later := leaving(in.Binding.Spec, all)
	have, double := byCluster(in.Works, in.Binding.GetLabels()[in.Binding.IDLabel()], in.Binding.IDLabel())

	wanted := func(cluster string) bool {
		return slices.ContainsFunc(all, func(t target) bool { return t.name == cluster })
	}

	var plan BindingPlan
	for cluster, w := range have {
		switch {
		case in.Clusters[cluster] == nil, later[cluster], wanted(cluster), !OfBinding(w):
		case directly[cluster]:
			plan.Purge = append(plan.Purge, w)
			plan.Wait = append(plan.Wait, cluster)
		default:
			plan.Surplus = append(plan.Surplus, w)
		}
	}
	plan.Surplus = append(plan.Surplus, double...)
	if in.undecided() {
		plan.Surplus = nil
	}
	inOrder(plan.Purge)
	inOrder(plan.Surplus)
	slices.Sort(plan.Wait)
	if len(plan.Wait) > 0 {
		plan.Surplus = nil // it follows what is written
		return plan, nil
	}

	r, err := newRenderer(in)
	if err != nil {
		return BindingPlan{}, err
	}
	works := assigner{interpreter: in.Interpreter, hubID: in.HubID, newID: in.NewID}
	works.Failed = barred
	for _, t := range all {
		w := have[t.name]
		if err := refuses(t.name); err != nil && (w == nil || w.DeletionTimestamp != nil) {
			works.fail(in.Binding.String(), t.name, err)
			plan.Surplus = nil
			continue
		}
		if in.Clusters[t.name] == nil {
			if w == nil || w.DeletionTimestamp != nil {
				plan.Surplus = nil
			}
			continue
		}
		input := func() (RenderInput, error) { return r.input(t, w) }
		if !works.assign(in.Binding.String(), t.name, w, in.Names, input) {
			plan.Surplus = nil
		}
	}
	plan.Writes = works.Writes
	inOrder(plan.Create)
	inOrder(plan.Update)
	slices.SortFunc(plan.Failed, func(a, b Failure) int { return strings.Compare(a.Cluster, b.Cluster) })
	return plan, nil
}

// byCluster returns the Work of each cluster. If there are several, a Work with the binding's id is
// kept, otherwise the oldest Work of a binding; further Works of bindings are duplicates (double).
// A Work that is being deleted is kept only if there is no other.
func byCluster(works []*workv1alpha1.Work, id, label string) (one map[string]*workv1alpha1.Work, double []*workv1alpha1.Work) {
	sorted := slices.Clone(works)
	rank := func(w *workv1alpha1.Work) int {
		switch {
		case w.DeletionTimestamp != nil:
			return 3
		case !OfBinding(w):
			return 2
		case id == "" || w.Labels[label] != id:
			return 1
		}
		return 0
	}
	slices.SortFunc(sorted, func(a, b *workv1alpha1.Work) int {
		age := a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
		return cmp.Or(cmp.Compare(rank(a), rank(b)), age, strings.Compare(a.Name, b.Name))
	})
	one = map[string]*workv1alpha1.Work{}
	for _, w := range sorted {
		cluster, ok := workv1alpha2.ClusterOfNamespace(w.Namespace)
		switch {
		case !ok: // somewhere a user keeps a copy
		case one[cluster] == nil:
			one[cluster] = w
		case OfBinding(w):
			double = append(double, w)
		}
	}
	return one, double
}

func inOrder(works []*workv1alpha1.Work) {
	slices.SortFunc(works, func(a, b *workv1alpha1.Work) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
}

// undecided reports whether there is no decision yet that could have made a Work surplus: Works of
// an undecided binding exist only in a restored hub, in which Clusters may still be missing.
func (in *BindingInput) undecided() bool {
	if len(targets(in.Binding.Spec)) > 0 {
		return false
	}
	if in.Binding.Spec.Placement != nil {
		return !decided(in.Binding)
	}
	if in.Binding.GetAnnotations()[workv1alpha2.AnnotationRequiredByMore] != "" {
		return true // some are not named
	}
	nowhere := func(owner binding.Binding) bool { return decided(owner) && len(targets(owner.Spec)) == 0 }
	for _, by := range in.Binding.Spec.RequiredBy {
		named := func(owner binding.Binding) bool {
			return owner.GetNamespace() == by.Namespace && owner.GetName() == by.Name
		}
		if i := slices.IndexFunc(in.Owners, named); i < 0 || !nowhere(in.Owners[i]) {
			return true // it has no decision, or one that is not in requiredBy yet
		}
	}
	return false
}

func decided(b binding.Binding) bool {
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	return d != nil && !d.Scheduled.IsZero()
}

// target is a cluster that is to hold the template.
type target struct {
	name string
	// replicas are the cluster's share; scheduled is false for a cluster in which only a parent
	// binding requires the template: there the template's own number of replicas stays.
	replicas  int32
	scheduled bool
	// foreign: a binding of another namespace requires the template.
	foreign bool
}

// open returns the targets that the namespace may use, those of others that are not, and what refuses
// clusters that get a first Work. One that has a Work keeps it until its eviction ends, except where
// another namespace alone requires it.
func (in *BindingInput) open() (all []target, barred []Failure, refuses func(cluster string) error) {
	text := in.Binding.GetAnnotations()[policyv1alpha1.AnnotationClusters]
	all = targets(in.Binding.Spec)
	if text == "" {
		return all, nil, func(string) error { return nil }
	}
	open, invalid := scheduler.Open(in.Binding.GetNamespace(), text)
	refuses = func(cluster string) error {
		c := in.Clusters[cluster]
		if c == nil || invalid != nil {
			return invalid
		}
		return open(c)
	}
	all = slices.DeleteFunc(all, func(t target) bool {
		if !t.foreign || invalid != nil {
			return false
		}
		err := refuses(t.name)
		if err != nil {
			barred = append(barred, Failure{in.Binding.String(), t.name, err})
		}
		return err != nil
	})
	return all, barred, refuses
}

// targets are the clusters of the decision, then those to which bindings go that require this one;
// each once.
func targets(spec *workv1alpha2.ResourceBindingSpec) []target {
	var out []target
	seen := map[string]bool{}
	add := func(t target) {
		if !seen[t.name] {
			seen[t.name] = true
			out = append(out, t)
		}
	}
	for _, c := range spec.Clusters {
		add(target{name: c.Name, replicas: spec.ReplicasIn(c), scheduled: true})
	}
	for _, by := range spec.RequiredBy {
		for _, c := range by.Clusters {
			add(target{name: c.Name, foreign: by.Namespace != spec.Resource.Namespace})
		}
	}
	return out
}

// leaving returns the clusters that the template is being evicted from: with purge mode Directly
// its copy is deleted at once, else when the eviction task ends. Targets are not among them.
func leaving(spec *workv1alpha2.ResourceBindingSpec, targets []target) (directly, later map[string]bool) {
	directly, later = map[string]bool{}, map[string]bool{}
	for _, task := range spec.GracefulEvictionTasks {
		if slices.ContainsFunc(targets, func(t target) bool { return t.name == task.FromCluster }) {
			continue
		}
		if task.PurgeMode.Current() == policyv1alpha1.PurgeModeDirectly {
			directly[task.FromCluster] = true
		} else {
			later[task.FromCluster] = true
		}
	}
	return directly, later
}

// preserved are the labels that carry the state of a template that was moved away from its only
// cluster to the next one: those of the newest eviction task, if that is Directly and the cluster
// is none of those that had the template before.
func preserved(spec *workv1alpha2.ResourceBindingSpec, cluster string) map[string]string {
	tasks := spec.GracefulEvictionTasks
	if len(tasks) == 0 || len(targets(spec)) != 1 {
		return nil
	}
	newest := tasks[len(tasks)-1]
	if newest.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly || slices.Contains(newest.ClustersBeforeFailover, cluster) {
		return nil
	}
	return newest.PreservedLabelState
}

// clustersOf are all clusters that a binding names.
func clustersOf(spec *workv1alpha2.ResourceBindingSpec) []string {
	var out []string
	for _, t := range targets(spec) {
		out = append(out, t.name)
	}
	for _, task := range spec.GracefulEvictionTasks {
		out = append(out, task.FromCluster)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Labels and annotations of a Work that are ours: unwanted ones are removed; all others belong to
// others.
var (
	ownLabels      = append([]string{workv1alpha2.LabelBindingID, workv1alpha2.LabelClusterBindingID}, policyv1alpha1.ClaimLabels...)
	ownAnnotations = append([]string{
		workv1alpha2.AnnotationBindingNamespace, workv1alpha2.AnnotationBindingName, workv1alpha2.AnnotationClusterBindingName,
		policyv1alpha1.AnnotationAppliedOverrides, policyv1alpha1.AnnotationAppliedClusterOverrides, policyv1alpha1.AnnotationMemberOwned,
		workv1alpha2.AnnotationTemplate, workv1alpha2.AnnotationRevision, workv1alpha2.AnnotationKeptRevision, workv1alpha1.AnnotationReleased,
	}, policyv1alpha1.ClaimAnnotations...)
)

// Updated returns the existing Work updated to the wanted one; nil if they are equal. Manifests are
// compared by content: their bytes may differ after a round trip through the API server.
func Updated(have, want *workv1alpha1.Work) *workv1alpha1.Work {
	next := have.DeepCopy()
	next.Labels = marked(next.Labels, want.Labels, ownLabels)
	next.Annotations = marked(next.Annotations, want.Annotations, ownAnnotations)
	for _, f := range want.Finalizers {
		if !slices.Contains(next.Finalizers, f) {
			next.Finalizers = append(next.Finalizers, f)
		}
	}
	if !equalSpec(&have.Spec, &want.Spec) {
		next.Spec = *want.Spec.DeepCopy()
	}
	if equality.Semantic.DeepEqual(have, next) {
		return nil
	}
	return next
}

func marked(have, want map[string]string, own []string) map[string]string {
	out := map[string]string{}
	for key, value := range have {
		if !slices.Contains(own, key) {
			out[key] = value
		}
	}
	for key, value := range want {
		out[key] = value
	}
	return out
}

func equalSpec(have, want *workv1alpha1.WorkSpec) bool {
	return ptr.Deref(have.SuspendDispatching, false) == ptr.Deref(want.SuspendDispatching, false) &&
		ptr.Deref(have.PreserveResourcesOnDeletion, false) == ptr.Deref(want.PreserveResourcesOnDeletion, false) &&
		slices.EqualFunc(have.Workload.Manifests, want.Workload.Manifests, func(a, b workv1alpha1.Manifest) bool {
			return sameContent(a.Raw, b.Raw)
		})
}

// sameContent compares two JSON objects.
func sameContent(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y map[string]any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	return equality.Semantic.DeepEqual(x, y)
}
