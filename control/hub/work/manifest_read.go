package work

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/policy"
	"github.com/pelago-net/pelago/control/kube"
)

// templateIndex finds Works by the identity of what they hold.
const templateIndex = "manifest.template"

// Index has the manager's cache find Works by what they hold, as Writer.Works needs it: once for all controllers.
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

// applies says whether an override policy selects an object and is valid. Without selectors it selects everything.
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

// ReadNames looks in a cache which names are taken by Works of other objects.
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
