package ipam

import (
	"context"
	"errors"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	requestIndex      = "blocks.request" // PortBlock by request
	nodeIndex         = "blocks.node"    // PortBlock by node
	poolIndex         = "blocks.pool"    // PortBlock by pool
	pendingIndex      = "blocks.pending" // PortBlock: flag of the pending ones
	blockGatewayIndex = topology.GatewayIndex("blocks.gateway")
	podIndex          = "blocks.pod" // Pod by node, if it can open flows
	ownIndex          = "blocks.own" // GlobalIngressIP by pod
)

type blockQueue = workqueue.TypedRateLimitingInterface[blockRequest]

func (r *blockReconciler) watch(mgr ctrl.Manager) error {
	if err := blockAddIndexes(mgr); err != nil {
		return err
	}
	node := new(metav1.PartialObjectMetadata)
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	cache := mgr.GetCache()
	return builder.TypedControllerManagedBy[blockRequest](mgr).Named("blocks").
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.PortBlock{}, r.onBlock())).
		WatchesRawSource(source.TypedKind(cache, node, onNode[*metav1.PartialObjectMetadata](r), updates(otherUID))).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{}, onNode[*pelagov1alpha1.NodeIndex](r), updates(ownChange))).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{},
			handler.TypedEnqueueRequestsFromMapFunc(pending[*pelagov1alpha1.NodeIndex](r)), gatewaysChanged)).
		WatchesRawSource(source.TypedKind(cache, &corev1.Node{},
			handler.TypedEnqueueRequestsFromMapFunc(pending[*corev1.Node](r)), updates(topology.GatewayNodeChanged))).
		WatchesRawSource(source.TypedKind(cache, topology.RouteAgentMetadata(),
			handler.TypedEnqueueRequestsFromMapFunc(pending[*metav1.PartialObjectMetadata](r)), updates(otherReport))).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofShares), updates(sameNumber))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.ClusterGlobalEgressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofClusterPool))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalEgressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofNamespacePool))).
		WatchesRawSource(source.TypedKind(cache, &corev1.Pod{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofPod), updates(podChanged))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalIngressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofOwnAddress))).
		WithOptions(controller.TypedOptions[blockRequest]{MaxConcurrentReconciles: 1}).
		Complete(r)
}

func blockAddIndexes(mgr ctrl.Manager) error {
	block := new(pelagov1alpha1.PortBlock)
	return errors.Join(
		kube.AddIndex(mgr, block, requestIndex, func(b *pelagov1alpha1.PortBlock) []string { return []string{blockRequestOf(b).String()} }),
		kube.AddIndex(mgr, block, nodeIndex, func(b *pelagov1alpha1.PortBlock) []string { return []string{b.Spec.Node} }),
		kube.AddIndex(mgr, block, poolIndex, func(b *pelagov1alpha1.PortBlock) []string { return []string{poolName(b.Spec.Pool)} }),
		kube.AddFlagIndex(mgr, block, pendingIndex, func(b *pelagov1alpha1.PortBlock) bool { return b.Spec.State == pelagov1alpha1.BlockPending }),
		blockGatewayIndex.AddTo(mgr),
		kube.AddIndex(mgr, &corev1.Pod{}, podIndex, func(p *corev1.Pod) []string {
			if runs(p) {
				return []string{p.Spec.NodeName}
			}
			return nil
		}),
		kube.AddIndex(mgr, &submarinerv1.GlobalIngressIP{}, ownIndex, func(g *submarinerv1.GlobalIngressIP) []string {
			if g.Spec.PodRef != nil {
				return []string{g.Spec.PodRef.Name}
			}
			return nil
		}),
	)
}

func add(q blockQueue, requests ...blockRequest) {
	for _, req := range requests {
		q.Add(req)
	}
}

// onBlock updates the ledger. A freed block enqueues the nodes that wait for one of its pool.
func (r *blockReconciler) onBlock() handler.TypedEventHandler[*pelagov1alpha1.PortBlock, blockRequest] {
	observed := func(b *pelagov1alpha1.PortBlock, q blockQueue) {
		if p, ok := portsOf(b); ok {
			r.ledger.observed(p)
		}
		q.Add(blockRequestOf(b))
	}
	return handler.TypedFuncs[*pelagov1alpha1.PortBlock, blockRequest]{
		CreateFunc: func(_ context.Context, e event.TypedCreateEvent[*pelagov1alpha1.PortBlock], q blockQueue) {
			observed(e.Object, q)
		},
		UpdateFunc: func(_ context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.PortBlock], q blockQueue) {
			observed(e.ObjectNew, q)
		},
		DeleteFunc: func(_ context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.PortBlock], q blockQueue) {
			q.Add(blockRequestOf(e.Object))
			if p, ok := portsOf(e.Object); ok {
				r.ledger.deleted(p)
				add(q, r.waiting(e.Object.Spec.Pool)...)
			}
		},
	}
}

// onNode enqueues the blocks of the node that has the name of an object.
func onNode[T client.Object](r *blockReconciler) handler.TypedEventHandler[T, blockRequest] {
	return handler.TypedEnqueueRequestsFromMapFunc(func(ctx context.Context, o T) []blockRequest { return r.ofNode(ctx, o.GetName()) })
}

// sameNumber is false for all updates: only creations and deletions change the number of nodes.
func sameNumber(_, _ *pelagov1alpha1.NodeIndex) bool { return false }

func otherUID(was, is *metav1.PartialObjectMetadata) bool { return was.UID != is.UID }

// podChanged reports whether other pools may serve the pod.
func podChanged(was, is *corev1.Pod) bool {
	return runs(was) != runs(is) || was.UID != is.UID || !maps.Equal(was.Labels, is.Labels)
}
