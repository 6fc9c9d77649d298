package propagate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// unheard says whether a cluster was made a moment ago that has not said yet what it serves, or is not ready yet. First decisions
// wait for it: in a hub that has been restored with new UIDs all clusters are like that, and whoever reports first would get
// everything, for good.
func (r *reconciler) unheard(ctx context.Context) (bool, error) {
	var list clusterv1alpha1.ClusterList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return false, fmt.Errorf("list Clusters: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		tainted := slices.ContainsFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool {
			return t.Key == clusterv1alpha1.TaintNotReady
		})
		silent := (len(c.Status.APIEnablements) == 0 || tainted) && c.DeletionTimestamp == nil && !c.Refused()
		if silent && time.Since(c.CreationTimestamp.Time) < r.FirstReport {
			return true, nil
		}
	}
	return false, nil
}
