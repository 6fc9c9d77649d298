package ipam

import (
	"context"
	"errors"
	"net/netip"

	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/source"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// Index fields of the cache; the prefix keeps them apart from those of other controllers.
const (
	ownerIndex   = "addresses.owner" // GlobalAddress by its owner's request
	blockIndex   = "addresses.block" // PortBlock by egress IP
	gatewayIndex = topology.GatewayIndex("addresses.gateway")
)

type queue = workqueue.TypedRateLimitingInterface[request]

func (r *reconciler) watch(mgr ctrl.Manager) error {
	if err := addIndexes(mgr); err != nil {
		return err
	}
	cache := mgr.GetCache()
	return builder.TypedControllerManagedBy[request](mgr).Named("addresses").
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.ClusterGlobalEgressIP{}, owners[*submarinerv1.ClusterGlobalEgressIP](kindCluster))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalEgressIP{}, owners[*submarinerv1.GlobalEgressIP](kindNamespace))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalIngressIP{}, owners[*submarinerv1.GlobalIngressIP](kindIngress))).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.GlobalAddress{}, r.onClaim())).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.PortBlock{}, r.onBlock())).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{}, r.onGateway())).
		WithOptions(controller.TypedOptions[request]{MaxConcurrentReconciles: 1}).
		Complete(r)
}

func addIndexes(mgr ctrl.Manager) error {
	return errors.Join(
		kube.AddIndex(mgr, &pelagov1alpha1.GlobalAddress{}, ownerIndex, func(a *pelagov1alpha1.GlobalAddress) []string {
			return []string{requestOf(a.Spec.Owner).String()}
		}),
		kube.AddIndex(mgr, &pelagov1alpha1.PortBlock{}, blockIndex, func(b *pelagov1alpha1.PortBlock) []string {
			return []string{b.Spec.EgressIP}
		}),
		gatewayIndex.AddTo(mgr),
	)
}

// owners asks for the object that an event is about.
func owners[T client.Object](kind string) handler.TypedEventHandler[T, request] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o T) []request {
		return []request{{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}}
	})
}

// onClaim keeps the picture of the pool, and asks for the owner of a claim: it may be gone since we last ran. A freed
// address wakes who waits for one.
func (r *reconciler) onClaim() handler.TypedEventHandler[*pelagov1alpha1.GlobalAddress, request] {
	seen := func(a *pelagov1alpha1.GlobalAddress, q queue) {
		if ip, err := netip.ParseAddr(a.Spec.IP); err == nil {
			r.ledger.seen(ip)
		}
		addOwner(a, q)
	}
	return handler.TypedFuncs[*pelagov1alpha1.GlobalAddress, request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			seen(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			seen(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			addOwner(e.Object, q)
			ip, err := netip.ParseAddr(e.Object.Spec.IP)
			if err != nil {
				return
			}
			for _, starving := range r.ledger.gone(ip) {
				q.Add(starving)
			}
		},
	}
}

// addOwner asks for the owner of a claim. Claims of kinds that are not ours only take their address.
func addOwner(a *pelagov1alpha1.GlobalAddress, q queue) {
	switch a.Spec.Owner.Kind {
	case kindCluster, kindNamespace, kindIngress:
		q.Add(requestOf(a.Spec.Owner))
	}
}

// onBlock asks for the owner of an address whose last lease may have ended: its claim may rest now.
func (r *reconciler) onBlock() handler.TypedEventHandler[*pelagov1alpha1.PortBlock, request] {
	return handler.TypedFuncs[*pelagov1alpha1.PortBlock, request]{
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.PortBlock], q queue) {
			q.Add(poolOwner(e.Object.Spec.Pool))
		},
	}
}

func poolOwner(p pelagov1alpha1.EgressPool) request {
	if p.Namespace == "" {
		return request{Kind: kindCluster, Name: p.Name}
	}
	return request{Kind: kindNamespace, Namespace: p.Namespace, Name: p.Name}
}

// onGateway asks for the owners that wait for acknowledgements when what gateways say has changed.
func (r *reconciler) onGateway() handler.TypedEventHandler[*pelagov1alpha1.NodeIndex, request] {
	wake := func(q queue) {
		for _, req := range r.ledger.pending() {
			q.Add(req)
		}
	}
	return handler.TypedFuncs[*pelagov1alpha1.NodeIndex, request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*pelagov1alpha1.NodeIndex], q queue) {
			if topology.GatewayReady(e.Object) {
				wake(q)
			}
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.NodeIndex], q queue) {
			if topology.NodeIndexChanged(e.ObjectOld, e.ObjectNew) {
				wake(q)
			}
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.NodeIndex], q queue) {
			if topology.GatewayReady(e.Object) {
				wake(q)
			}
		},
	}
}
