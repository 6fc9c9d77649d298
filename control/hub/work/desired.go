package work

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kinds"
)

// Input is all that the Works of one template are computed from.
type BindingInput struct {
	Interpreter *kinds.Interpreter
	HubID       string
	Binding     Binding
	Template    *unstructured.Unstructured
	// Clusters are those that exist and are not being deleted.
	Clusters map[string]*clusterv1alpha1.Cluster
	// Overrides are the valid policies.
	Overrides policy.OverridePolicies
	// MemberOwned is what the policy says of it; nil: the policy is gone, and what it said holds on.
	MemberOwned *string
	// Works are those of the template that exist, whatever binding they were made for.
	Works []*workv1alpha1.Work
	// Names are those that a new Work may have.
	Names Names
	// NewID makes a permanent id.
	NewID func() string
}

// Plan is what is to be written, in the order of the fields; Works in the order of their clusters.
type BindingPlan struct {
	// Purge goes before anything is written, and if Wait names clusters nothing is written yet: these still have a Work that must
	// be gone before the template starts elsewhere.
	Purge []*workv1alpha1.Work
	Wait  []string
	// Create and Update are the Works of targets.
	Create, Update []*workv1alpha1.Work
	// Surplus goes last. It is empty as long as a target has no Work and gets none: what runs where it is no longer wanted may be
	// all that runs.
	Surplus []*workv1alpha1.Work
	// Failed are the clusters whose Work could not be made; it stays as it was.
	Failed []Failure
	// Skipped are the override rules that were not applied, of all clusters.
	Skipped []policy.SkippedRule
}

// Failure is a cluster whose Work could not be made.
type Failure struct {
	Cluster string
	Err     error
}

// Desired computes the plan. The error is one of the template: nothing can be made of it for any cluster. Works of clusters
// that are leaving, or that do not exist, are left as they are: their namespace goes, or the Cluster is yet to come (a hub that
// is being restored).
func DesiredWorks(in *BindingInput) (BindingPlan, error) {
	all := targets(in.Binding.Spec)
	directly, later := leaving(in.Binding.Spec, all)
	have, double := byCluster(in.Works, in.Binding.GetLabels()[in.Binding.idLabel()], in.Binding.idLabel())

	wanted := func(cluster string) bool {
		return slices.ContainsFunc(all, func(t target) bool { return t.name == cluster })
	}

	var plan BindingPlan
	for cluster, w := range have {
		switch {
		case in.Clusters[cluster] == nil, later[cluster], wanted(cluster):
		case directly[cluster]:
			plan.Purge = append(plan.Purge, w)
			plan.Wait = append(plan.Wait, cluster)
		default:
			plan.Surplus = append(plan.Surplus, w)
		}
	}
	plan.Surplus = append(plan.Surplus, double...)
	if undecided(in.Binding) {
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
	for _, t := range all {
		w := have[t.name]
		if ending := w != nil && w.DeletionTimestamp != nil; in.Clusters[t.name] == nil || ending {
			if w == nil || ending { // where a Work is being deleted another can be made when it has gone
				plan.Surplus = nil
			}
			continue
		}
		next, err := in.work(r, t, w)
		switch {
		case err != nil:
			plan.Failed = append(plan.Failed, Failure{t.name, err})
			if w == nil {
				plan.Surplus = nil
			}
		case w == nil:
			plan.Create = append(plan.Create, next)
		case next != nil:
			plan.Update = append(plan.Update, next)
		}
	}
	plan.Skipped = r.skipped
	inOrder(plan.Create)
	inOrder(plan.Update)
	slices.SortFunc(plan.Failed, func(a, b Failure) int { return strings.Compare(a.Cluster, b.Cluster) })
	return plan, nil
}

// work is the Work of a target as it is to be created or updated; nil if the one that exists is right.
func (in *BindingInput) work(r *renderer, t target, have *workv1alpha1.Work) (*workv1alpha1.Work, error) {
	if have == nil {
		name, err := in.Names.Free(t.name)
		if err != nil {
			return nil, err
		}
		return r.render(t, name, in.NewID(), nil)
	}
	id := have.Labels[workv1alpha1.LabelWorkID]
	if id == "" {
		id = in.NewID()
	}
	want, err := r.render(t, have.Name, id, have)
	if err != nil {
		return nil, err
	}
	return Updated(have, want), nil
}

// byCluster gives each cluster its Work. Of several the one that has the binding's id goes on, then the oldest; the others are
// double. One that is being deleted comes after all others.
func byCluster(works []*workv1alpha1.Work, id, label string) (one map[string]*workv1alpha1.Work, double []*workv1alpha1.Work) {
	sorted := slices.Clone(works)
	rank := func(w *workv1alpha1.Work) int {
		switch {
		case w.DeletionTimestamp != nil:
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
		default:
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

// undecided says whether there is no decision yet that could have made a Work surplus: Works of such a binding are those of a
// hub that has been restored, where clusters may be yet to come.
func undecided(b Binding) bool {
	if len(targets(b.Spec)) > 0 {
		return false
	}
	if b.Spec.Placement == nil {
		return len(b.Spec.RequiredBy) > 0 // those that require it have no decision
	}
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	return d == nil || d.Scheduled.IsZero()
}
