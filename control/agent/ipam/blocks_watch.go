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
		WatchesRawSource(source.TypedKind(cache, node, r.onNode())).
		WatchesRawSource(source.TypedKind(cache, &pelagov1alpha1.NodeIndex{}, r.onIndex())).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.ClusterGlobalEgressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofClusterPool))).
		WatchesRawSource(source.TypedKind(cache, &submarinerv1.GlobalEgressIP{},
			handler.TypedEnqueueRequestsFromMapFunc(r.ofNamespacePool))).
		WatchesRawSource(source.TypedKind(cache, &corev1.Pod{}, r.onPod())).
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

// onNode enqueues the blocks of a node that was created or deleted.
func (r *blockReconciler) onNode() handler.TypedEventHandler[*metav1.PartialObjectMetadata, blockRequest] {
	return handler.TypedFuncs[*metav1.PartialObjectMetadata, blockRequest]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*metav1.PartialObjectMetadata], q blockQueue) {
			add(q, r.ofNode(ctx, e.Object.Name)...)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*metav1.PartialObjectMetadata], q blockQueue) {
			if e.ObjectOld.UID != e.ObjectNew.UID {
				add(q, r.ofNode(ctx, e.ObjectNew.Name)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*metav1.PartialObjectMetadata], q blockQueue) {
			add(q, r.ofNode(ctx, e.Object.Name)...)
		},
	}
}

// onIndex enqueues the blocks of a node whose index, boot or demand changed, and the pending blocks of all nodes when the
// set of ready gateways or their acknowledgements changed.
func (r *blockReconciler) onIndex() handler.TypedEventHandler[*pelagov1alpha1.NodeIndex, blockRequest] {
	return handler.TypedFuncs[*pelagov1alpha1.NodeIndex, blockRequest]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*pelagov1alpha1.NodeIndex], q blockQueue) {
			add(q, r.ofNode(ctx, e.Object.Name)...)
			add(q, r.ofShares(ctx)...)
			if topology.GatewayReady(e.Object) {
				add(q, r.pending(ctx)...)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*pelagov1alpha1.NodeIndex], q blockQueue) {
			if ownChange(e.ObjectOld, e.ObjectNew) {
				add(q, r.ofNode(ctx, e.ObjectNew.Name)...)
			}
			if topology.NodeIndexChanged(e.ObjectOld, e.ObjectNew) {
				add(q, r.pending(ctx)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*pelagov1alpha1.NodeIndex], q blockQueue) {
			add(q, r.ofNode(ctx, e.Object.Name)...)
			add(q, r.ofShares(ctx)...)
			if topology.GatewayReady(e.Object) {
				add(q, r.pending(ctx)...)
			}
		},
	}
}

// onPod enqueues the pools of a pod's namespace on the nodes where it ran and runs.
func (r *blockReconciler) onPod() handler.TypedEventHandler[*corev1.Pod, blockRequest] {
	return handler.TypedFuncs[*corev1.Pod, blockRequest]{
		CreateFunc: func(ctx context.Context, e event.TypedCreateEvent[*corev1.Pod], q blockQueue) {
			add(q, r.ofPods(ctx, e.Object)...)
		},
		UpdateFunc: func(ctx context.Context, e event.TypedUpdateEvent[*corev1.Pod], q blockQueue) {
			if runs(e.ObjectOld) != runs(e.ObjectNew) || e.ObjectOld.UID != e.ObjectNew.UID || !maps.Equal(e.ObjectOld.Labels, e.ObjectNew.Labels) {
				add(q, r.ofPods(ctx, e.ObjectOld, e.ObjectNew)...)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.TypedDeleteEvent[*corev1.Pod], q blockQueue) {
			add(q, r.ofPods(ctx, e.Object)...)
		},
	}
}
