package work

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workv1alpha1 "github.com/pelago-net/pelago/api/work/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

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
