package ipam

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
)

// blockSupply is a pool at the border between the API and the decision.
type blockSupply struct {
	object     client.Object // nil if it does not exist
	ips        []netip.Addr
	conditions *[]metav1.Condition // of object's status
}

// pool reads the egress object of a pool.
func (r *blockReconciler) pool(ctx context.Context, name pelagov1alpha1.EgressPool) (blockSupply, error) {
	var s blockSupply
	var status *submarinerv1.GlobalEgressIPStatus
	if name.Namespace == "" {
		o := new(submarinerv1.ClusterGlobalEgressIP)
		s.object, status = o, &o.Status
	} else {
		o := new(submarinerv1.GlobalEgressIP)
		s.object, status = o, &o.Status
	}
	err := r.client.Get(ctx, client.ObjectKey{Namespace: name.Namespace, Name: name.Name}, s.object)
	if apierrors.IsNotFound(err) || err == nil && s.object.GetDeletionTimestamp() != nil {
		return blockSupply{}, nil
	}
	if err != nil {
		return blockSupply{}, fmt.Errorf("read egress pool %s/%s: %w", name.Namespace, name.Name, err)
	}
	s.conditions = &status.Conditions
	s.ips = topology.ParseAddresses(status.AllocatedIPs)
	return s, nil
}

// member is a node at the border between the API and the decision.
type member struct {
	BlockNode
	object *metav1.PartialObjectMetadata // nil if there is no Node
	// bootOf has the boot id that the NodeIndex of this name reports, by the UID of the Node that
	// it was made for. The NodeIndex outlives its Node until all of the node's blocks are marked as
	// orphaned.
	bootOf map[string]string
}

// node reads the Node and the NodeIndex, and how many blocks the node needs.
func (r *blockReconciler) node(ctx context.Context, from client.Reader, req blockRequest, pool blockSupply) (member, error) {
	m := member{bootOf: map[string]string{}, BlockNode: BlockNode{Want: KeepBlocks}}
	object := new(metav1.PartialObjectMetadata)
	object.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := from.Get(ctx, client.ObjectKey{Name: req.Node}, object)
	if client.IgnoreNotFound(err) != nil {
		return m, fmt.Errorf("read Node %s: %w", req.Node, err)
	}
	if err == nil {
		m.object, m.UID = object, string(object.UID)
	}
	ni := new(pelagov1alpha1.NodeIndex)
	err = from.Get(ctx, client.ObjectKey{Name: req.Node}, ni)
	if client.IgnoreNotFound(err) != nil {
		return m, fmt.Errorf("read NodeIndex %s: %w", req.Node, err)
	}
	if err == nil {
		m.bootOf[ni.Spec.NodeUID] = ni.Status.BootID
	}
	if pool.object == nil {
		m.Want = 0
		return m, nil
	}
	if err != nil || m.UID == "" || ni.Spec.NodeUID != m.UID {
		return m, nil // no index yet, or one that is about to go: what the node has stays
	}
	m.BootID, m.Index = ni.Status.BootID, ni.Spec.Index
	m.Want, m.Minimum, err = r.want(ctx, req, len(pool.ips), ni.Status.Demand)
	return m, err
}

// nodes returns the number of nodes that have an index.
func (r *blockReconciler) nodes(ctx context.Context) (int, error) {
	var list pelagov1alpha1.NodeIndexList
	if err := r.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("list NodeIndexes: %w", err)
	}
	return len(list.Items), nil
}

// want is how many blocks of the pool the node needs, and has without demand.
func (r *blockReconciler) want(ctx context.Context, req blockRequest, ips int, demand []pelagov1alpha1.BlockDemand) (want, minimum int, err error) {
	minimum = r.minimum
	if minimum == 0 {
		nodes, err := r.nodes(ctx)
		if err != nil {
			return 0, 0, err
		}
		minimum = Minimum(ips, nodes)
	}
	if req.Pool == topology.ClusterPool {
		return WantedBlocks(req.Pool, minimum, demand, nil, nil), minimum, nil
	}
	var pools submarinerv1.GlobalEgressIPList
	if err := r.client.List(ctx, &pools, client.InNamespace(req.Pool.Namespace)); err != nil {
		return 0, 0, fmt.Errorf("list GlobalEgressIPs of %s: %w", req.Pool.Namespace, err)
	}
	var list corev1.PodList
	if err := r.client.List(ctx, &list, client.InNamespace(req.Pool.Namespace), client.MatchingFields{podIndex: req.Node}); err != nil {
		return 0, 0, fmt.Errorf("list pods of %s on %s: %w", req.Pool.Namespace, req.Node, err)
	}
	var pods []topology.EgressPod
	var own []submarinerv1.GlobalIngressIP
	for i := range list.Items {
		pods = append(pods, topology.EgressPodOf(&list.Items[i]))
		var ingress submarinerv1.GlobalIngressIPList
		err := r.client.List(ctx, &ingress, client.InNamespace(req.Pool.Namespace), client.MatchingFields{ownIndex: list.Items[i].Name})
		if err != nil {
			return 0, 0, fmt.Errorf("list GlobalIngressIPs of pod %s/%s: %w", req.Pool.Namespace, list.Items[i].Name, err)
		}
		own = append(own, ingress.Items...)
	}
	return WantedBlocks(req.Pool, minimum, demand, pods, topology.NewEgressTable(nil, pools.Items, own)), minimum, nil
}
