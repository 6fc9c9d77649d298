package ipam

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// The functions below list the requests that a change may affect. They read only indexes of the
// cache: the cost of a change depends on the affected objects, not on the size of the cluster.

// ofNode: what the node has, the cluster's pool, and the pools of the namespaces of its pods.
func (r *blockReconciler) ofNode(ctx context.Context, node string) []blockRequest {
	found := sets.New(blockRequest{Pool: topology.ClusterPool, Node: node})
	r.addBlocks(ctx, found, client.MatchingFields{nodeIndex: node})
	var pods corev1.PodList
	r.list(ctx, &pods, client.MatchingFields{podIndex: node})
	namespaces := sets.New[string]()
	for i := range pods.Items {
		namespaces.Insert(pods.Items[i].Namespace)
	}
	for namespace := range namespaces {
		r.addPools(ctx, found, namespace, sets.New(node))
	}
	return found.UnsortedList()
}

// ofClusterPool: every node.
func (r *blockReconciler) ofClusterPool(ctx context.Context, c *submarinerv1.ClusterGlobalEgressIP) []blockRequest {
	if c.Name != submarinerv1.ClusterGlobalEgressIPName {
		return nil
	}
	found := sets.New[blockRequest]()
	r.addBlocks(ctx, found, client.MatchingFields{poolIndex: poolName(topology.ClusterPool)})
	var nodes pelagov1alpha1.NodeIndexList
	r.list(ctx, &nodes)
	for i := range nodes.Items {
		found.Insert(blockRequest{Pool: topology.ClusterPool, Node: nodes.Items[i].Name})
	}
	return found.UnsortedList()
}

// ofNamespacePool: the nodes that have blocks of it, and all pools of the namespace on the nodes
// where its pods run, because one GlobalEgressIP can take pods from another.
func (r *blockReconciler) ofNamespacePool(ctx context.Context, g *submarinerv1.GlobalEgressIP) []blockRequest {
	found := sets.New[blockRequest]()
	r.addBlocks(ctx, found, client.MatchingFields{poolIndex: g.Namespace + "/" + g.Name})
	var pods corev1.PodList
	r.list(ctx, &pods, client.InNamespace(g.Namespace))
	nodes := sets.New[string]()
	for i := range pods.Items {
		if runs(&pods.Items[i]) {
			nodes.Insert(pods.Items[i].Spec.NodeName)
		}
	}
	r.addPools(ctx, found, g.Namespace, nodes)
	return found.UnsortedList()
}

// ofPod: the pools of the pod's namespace on its node.
func (r *blockReconciler) ofPod(ctx context.Context, pod *corev1.Pod) []blockRequest {
	found := sets.New[blockRequest]()
	if pod.Spec.NodeName != "" {
		r.addPools(ctx, found, pod.Namespace, sets.New(pod.Spec.NodeName))
	}
	return found.UnsortedList()
}

// ofOwnAddress: the pools of a headless pod, which needs none while it has an address of its own.
func (r *blockReconciler) ofOwnAddress(ctx context.Context, g *submarinerv1.GlobalIngressIP) []blockRequest {
	if g.Spec.PodRef == nil {
		return nil
	}
	pod := new(corev1.Pod)
	if err := r.client.Get(ctx, client.ObjectKey{Namespace: g.Namespace, Name: g.Spec.PodRef.Name}, pod); err != nil {
		return nil // its deletion is an event of its own
	}
	return r.ofPod(ctx, pod)
}

// ofShares: all, if the number of nodes has changed Minimum since the last call.
func (r *blockReconciler) ofShares(ctx context.Context, _ *pelagov1alpha1.NodeIndex) []blockRequest {
	nodes, err := r.nodes(ctx)
	if err != nil {
		log.FromContext(ctx).Error(err, "read the cache for port blocks")
		return nil
	}
	if n := int64(shares(nodes)); r.shares.Swap(n) == n {
		return nil
	}
	found := sets.New[blockRequest]()
	r.addBlocks(ctx, found)
	return found.UnsortedList()
}

// pending: the blocks that wait for gateways, at an event that may change for which.
func pending[T client.Object](r *blockReconciler) handler.TypedMapFunc[T, blockRequest] {
	return func(ctx context.Context, _ T) []blockRequest {
		found := sets.New[blockRequest]()
		r.addBlocks(ctx, found, client.MatchingFields{pendingIndex: kube.IndexFlag})
		return found.UnsortedList()
	}
}

func (r *blockReconciler) addBlocks(ctx context.Context, to sets.Set[blockRequest], which ...client.ListOption) {
	var list pelagov1alpha1.PortBlockList
	r.list(ctx, &list, which...)
	for i := range list.Items {
		to.Insert(blockRequestOf(&list.Items[i]))
	}
}

func (r *blockReconciler) addPools(ctx context.Context, to sets.Set[blockRequest], namespace string, nodes sets.Set[string]) {
	var pools submarinerv1.GlobalEgressIPList
	r.list(ctx, &pools, client.InNamespace(namespace))
	for i := range pools.Items {
		for node := range nodes {
			to.Insert(blockRequest{Pool: pelagov1alpha1.EgressPool{Namespace: namespace, Name: pools.Items[i].Name}, Node: node})
		}
	}
}

// list reads the cache, which fails only while the process ends or if an index is missing.
func (r *blockReconciler) list(ctx context.Context, list client.ObjectList, options ...client.ListOption) {
	if err := r.client.List(ctx, list, options...); err != nil {
		log.FromContext(ctx).Error(err, "read the cache for port blocks")
	}
}

// ownChange reports whether the node may now need other blocks, or whether its orphaned blocks may
// now be deleted.
func ownChange(was, is *pelagov1alpha1.NodeIndex) bool {
	return was.UID != is.UID || was.Status.BootID != is.Status.BootID || !slices.Equal(was.Status.Demand, is.Status.Demand)
}
