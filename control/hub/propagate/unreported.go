package propagate

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// unreported is a StaleCacheError if a cluster younger than FirstReport has not reported its APIs yet or is not ready. First decisions
// wait for it: in a hub that has been restored with new UIDs all clusters are in this state, and the first one to report would get
// all replicas for good.
func (r *reconciler) unreported(ctx context.Context) error {
	var list clusterv1alpha1.ClusterList
	if err := r.cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list Clusters: %w", err)
	}
	for i := range list.Items {
		c := &list.Items[i]
		tainted := slices.ContainsFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool {
			return t.Key == clusterv1alpha1.TaintNotReady
		})
		silent := (len(c.Status.APIEnablements) == 0 || tainted) && c.DeletionTimestamp == nil && !c.Refused()
		if silent && time.Since(c.CreationTimestamp.Time) < r.FirstReport {
			return kube.StaleCache(c.DeepCopy(), c.ResourceVersion, "its first report")
		}
	}
	return nil
}
