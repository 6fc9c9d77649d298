package nodeindex

import (
	"context"
	"strconv"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

func index(mgr ctrl.Manager) error {
	ctx, indexer := context.Background(), mgr.GetFieldIndexer()
	err := indexer.IndexField(ctx, &pelagov1alpha1.NodeIndex{}, numberIndex, func(o client.Object) []string {
		return []string{strconv.Itoa(int(o.(*pelagov1alpha1.NodeIndex).Spec.Index))}
	})
	if err != nil {
		return err
	}
	return indexer.IndexField(ctx, &pelagov1alpha1.PortBlock{}, blockIndex, func(o client.Object) []string {
		b := o.(*pelagov1alpha1.PortBlock)
		if b.Spec.OrphanedAt != nil {
			return nil
		}
		return []string{b.Spec.NodeUID}
	})
}

// comingAndGoing drops updates (heartbeats of nodes, reports of node daemons), except for one that replaces an object
// by another of its name, as a watch shows it that missed the deletion.
func comingAndGoing() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	}}
}
