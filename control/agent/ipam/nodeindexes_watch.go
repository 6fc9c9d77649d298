package ipam

import (
	"errors"
	"strconv"

	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

func nodeIndexAddIndexes(mgr ctrl.Manager) error {
	return errors.Join(
		kube.AddIndex(mgr, &pelagov1alpha1.NodeIndex{}, numberIndex, func(n *pelagov1alpha1.NodeIndex) []string {
			return []string{strconv.Itoa(int(n.Spec.Index))}
		}),
		kube.AddIndex(mgr, &pelagov1alpha1.PortBlock{}, nodeIndexBlockIndex, func(b *pelagov1alpha1.PortBlock) []string {
			if b.Spec.OrphanedAt != nil {
				return nil
			}
			return []string{b.Spec.NodeUID}
		}),
	)
}

// comingAndGoing drops updates (heartbeats of nodes, reports of node daemons), except for one that replaces an object
// by another of its name, as a watch shows it that missed the deletion.
func comingAndGoing() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	}}
}
