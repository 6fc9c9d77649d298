package ipam

import (
	"context"
	"errors"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
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
	stateIndex   = "addresses.state" // PortBlock by poolState and by nodeState
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
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{},
			handler.TypedEnqueueRequestsFromMapFunc(unacknowledged[*pelagov1alpha1.NodeIndex](r)), gatewaysChanged)).
		WatchesRawSource(source.TypedKind(cache, &corev1.Node{},
			handler.TypedEnqueueRequestsFromMapFunc(unacknowledged[*corev1.Node](r)), updates(topology.GatewayNodeChanged))).
		WatchesRawSource(source.TypedKind(cache, topology.RouteAgentMetadata(),
			handler.TypedEnqueueRequestsFromMapFunc(unacknowledged[*metav1.PartialObjectMetadata](r)), updates(otherReport))).
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
		kube.AddIndex(mgr, &pelagov1alpha1.PortBlock{}, stateIndex, func(b *pelagov1alpha1.PortBlock) []string {
			return []string{poolState(b.Spec.Pool, b.Spec.State), nodeState(b.Spec.Pool, b.Spec.State, b.Spec.Node)}
		}),
		gatewayIndex.AddTo(mgr),
	)
}

func poolState(p pelagov1alpha1.EgressPool, state pelagov1alpha1.BlockState) string {
	return poolName(p) + " " + string(state)
}

func nodeState(p pelagov1alpha1.EgressPool, state pelagov1alpha1.BlockState, node string) string {
	return poolState(p, state) + " " + node
}

// owners enqueues the object of an event.
func owners[T client.Object](kind string) handler.TypedEventHandler[T, request] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(_ context.Context, o T) []request {
		return []request{{Kind: kind, Namespace: o.GetNamespace(), Name: o.GetName()}}
	})
}

// onClaim updates the ledger and enqueues the owner of a claim, which may have been deleted while
// no agent ran. A freed address enqueues the owners that wait for one.
func (r *reconciler) onClaim() handler.TypedEventHandler[*pelagov1alpha1.GlobalAddress, request] {
	observed := func(a *pelagov1alpha1.GlobalAddress, q queue) {
		if ip, err := netip.ParseAddr(a.Spec.IP); err == nil {
			r.ledger.observed(ip)
		}
		addOwner(a, q)
	}
	return handler.TypedFuncs[*pelagov1alpha1.GlobalAddress, request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			observed(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			observed(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.GlobalAddress], q queue) {
			addOwner(e.Object, q)
			ip, err := netip.ParseAddr(e.Object.Spec.IP)
			if err != nil {
				return
			}
			r.ledger.deleted(ip)
			for _, waiting := range r.exhausted.list() {
				q.Add(waiting)
			}
		},
	}
}

// addOwner enqueues the owner of a claim. Claims of other kinds only take their address.
func addOwner(a *pelagov1alpha1.GlobalAddress, q queue) {
	switch a.Spec.Owner.Kind {
	case kindCluster, kindNamespace, kindIngress:
		q.Add(requestOf(a.Spec.Owner))
	}
}

// onBlock enqueues the egress object of a block: its nodes have ports once one is active, and its
// claim may rest once the last lease has ended.
func (r *reconciler) onBlock() handler.TypedEventHandler[*pelagov1alpha1.PortBlock, request] {
	return handler.TypedFuncs[*pelagov1alpha1.PortBlock, request]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*pelagov1alpha1.PortBlock], q queue) {
			q.Add(poolOwner(e.Object.Spec.Pool))
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.PortBlock], q queue) {
			if e.ObjectOld.Spec.State != e.ObjectNew.Spec.State {
				q.Add(poolOwner(e.ObjectNew.Spec.Pool))
			}
		},
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

// unacknowledged enqueues the owners that wait for gateways, at an event that may change for which.
func unacknowledged[T client.Object](r *reconciler) handler.TypedMapFunc[T, request] {
	return func(context.Context, T) []request { return r.unacknowledged.list() }
}

func otherReport(was, is *metav1.PartialObjectMetadata) bool { return !topology.SameReport(was, is) }

// gatewaysChanged is the predicate of events that change the set of ready gateways or their
// acknowledgements.
var gatewaysChanged = predicate.TypedFuncs[*pelagov1alpha1.NodeIndex]{
	CreateFunc: func(e event.TypedCreateEvent[*pelagov1alpha1.NodeIndex]) bool { return topology.GatewayReady(e.Object) },
	UpdateFunc: func(e event.TypedUpdateEvent[*pelagov1alpha1.NodeIndex]) bool {
		return topology.NodeIndexChanged(e.ObjectOld, e.ObjectNew)
	},
	DeleteFunc: func(e event.TypedDeleteEvent[*pelagov1alpha1.NodeIndex]) bool { return topology.GatewayReady(e.Object) },
}

// updates is the predicate of updates that change an object. Creations and deletions pass.
func updates[T client.Object](changed func(was, is T) bool) predicate.TypedFuncs[T] {
	return predicate.TypedFuncs[T]{
		UpdateFunc: func(e event.TypedUpdateEvent[T]) bool { return changed(e.ObjectOld, e.ObjectNew) },
	}
}
