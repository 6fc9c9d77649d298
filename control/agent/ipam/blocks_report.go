package ipam

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// report writes the condition and the Events of a pool and of a node that lack blocks, and clears
// the condition. isNew: the node lacked none before.
func (r *blockReconciler) report(ctx context.Context, req blockRequest, node member, pool blockSupply, missing int, isNew bool) error {
	lacking := missing > 0 && len(pool.ips) > 0 // a pool without addresses has its own condition
	if pool.object == nil {
		return nil
	}
	total := len(pool.ips) * pelagov1alpha1.BlocksPerIP
	switch {
	case lacking:
		message := fmt.Sprintf("more of the %d port blocks of its %d egress IPs are needed than can be leased (the last quarter is for "+
			"what nodes have without demand): new flows are dropped where the leased ports are used up; raise numberOfIPs", total, len(pool.ips))
		shown, err := r.show(ctx, req, pool, metav1.Condition{
			Type: submarinerv1.ConditionPortBlocksExhausted, Status: metav1.ConditionTrue, Reason: submarinerv1.ReasonAllBlocksLeased, Message: message,
		})
		if shown {
			r.recorder.Event(pool.object, corev1.EventTypeWarning, submarinerv1.ReasonAllBlocksLeased, message)
		}
		if isNew && node.object != nil {
			r.recorder.Eventf(node.object, corev1.EventTypeWarning, submarinerv1.ReasonAllBlocksLeased,
				"%d more port blocks of the egress pool %s are needed and none can be leased: raise its numberOfIPs", missing, poolName(req.Pool))
		}
		return err
	case meta.IsStatusConditionTrue(*pool.conditions, submarinerv1.ConditionPortBlocksExhausted) &&
		len(r.waiting(req.Pool)) == 0 && r.free(pool.ips) > 0:
		_, err := r.show(ctx, req, pool, metav1.Condition{
			Type: submarinerv1.ConditionPortBlocksExhausted, Status: metav1.ConditionFalse, Reason: submarinerv1.ReasonBlocksAvailable, Message: "Nodes get the port blocks that they need",
		})
		return err
	}
	return nil
}

// show writes the condition if it changed, and reports whether it did.
func (r *blockReconciler) show(ctx context.Context, req blockRequest, pool blockSupply, c metav1.Condition) (bool, error) {
	before := pool.object.DeepCopyObject().(client.Object)
	c.ObservedGeneration = pool.object.GetGeneration()
	if !meta.SetStatusCondition(pool.conditions, c) {
		return false, nil
	}
	patch := kube.MergeFrom(before)
	if err := r.client.Status().Patch(ctx, pool.object, patch); err != nil {
		return false, client.IgnoreNotFound(fmt.Errorf("write the status of egress pool %s: %w", poolName(req.Pool), err))
	}
	return true, nil
}

// waiting lists the requests that wait for a block of the pool.
func (r *blockReconciler) waiting(pool pelagov1alpha1.EgressPool) []blockRequest {
	return slices.DeleteFunc(r.exhausted.list(), func(req blockRequest) bool { return req.Pool != pool })
}

func (r *blockReconciler) free(ips []netip.Addr) (n int) {
	r.ledger.use(func(space *Space) { n = space.Free(ips) })
	return n
}

func poolName(p pelagov1alpha1.EgressPool) string {
	if p.Namespace == "" {
		return p.Name
	}
	return p.Namespace + "/" + p.Name
}
