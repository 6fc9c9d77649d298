package ipam

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// fencingDelay is the requeue interval while blocks of the node have yet to be marked as orphaned.
const fencingDelay = 500 * time.Millisecond

// The record of the last allocated index: two agents that race for an index race for its
// resourceVersion.
const (
	recordName = "pelago-node-indexes"
	recordKey  = "last"
)

// Index fields of the cache.
const (
	numberIndex = "nodeindex.number" // NodeIndex by its number
	// PortBlock by the UID of its node, unless marked as orphaned
	nodeIndexBlockIndex = "nodeindex.block"
)

// NodeIndexOptions are the options of the controller of node indexes.
type NodeIndexOptions struct {
	// Namespace is that of the record.
	Namespace string
	// Globalnet: the controller of port blocks runs too. A NodeIndex then stays until the blocks of
	// its node are marked as orphaned, because the mark needs the node's last boot id.
	Globalnet bool
}

type nodeIndexReconciler struct {
	client client.Client
	live   client.Reader
	opts   NodeIndexOptions
}

// SetupNodeIndexes adds the controller to the manager.
func SetupNodeIndexes(mgr ctrl.Manager, opts NodeIndexOptions) error {
	r := &nodeIndexReconciler{client: mgr.GetClient(), live: mgr.GetAPIReader(), opts: opts}
	if err := nodeIndexAddIndexes(mgr); err != nil {
		return fmt.Errorf("set up the controller of node indexes: %w", err)
	}
	err := ctrl.NewControllerManagedBy(mgr).Named("nodeindex").
		WatchesMetadata(&corev1.Node{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(predicate.Or(comingAndGoing(), datapathChanged()))).
		Watches(&pelagov1alpha1.NodeIndex{}, &handler.EnqueueRequestForObject{}, builder.WithPredicates(comingAndGoing())).
		Complete(r)
	if err != nil {
		return fmt.Errorf("set up the controller of node indexes: %w", err)
	}
	return nil
}

// Reconcile creates the NodeIndex of a node, or retires it. A node without pelago-node has none: its
// pods are no backends then.
func (r *nodeIndexReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return kube.Result(r.reconcile(ctx, req.Name))
}

func (r *nodeIndexReconciler) reconcile(ctx context.Context, name string) (time.Duration, error) {
	node, err := getNode(ctx, r.client, name)
	if err != nil {
		return 0, err
	}
	ni := new(pelagov1alpha1.NodeIndex)
	err = r.client.Get(ctx, client.ObjectKey{Name: name}, ni)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read NodeIndex %s: %w", name, err)
	}
	switch {
	case err == nil && (node == nil || string(node.UID) != ni.Spec.NodeUID || !topology.HasDatapath(node.Labels)):
		return r.retire(ctx, ni)
	case err != nil && node != nil && topology.HasDatapath(node.Labels):
		return 0, r.create(ctx, node)
	}
	return 0, nil
}

// create allocates an index to a node: first the record, then the object. A crash between the two
// wastes a number.
func (r *nodeIndexReconciler) create(ctx context.Context, node *metav1.PartialObjectMetadata) error {
	number, err := r.take(ctx)
	if err != nil {
		return fmt.Errorf("allocate an index to node %s: %w", node.Name, err)
	}
	err = r.client.Create(ctx, &pelagov1alpha1.NodeIndex{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name},
		Spec:       pelagov1alpha1.NodeIndexSpec{Index: number, NodeUID: string(node.UID)},
	})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create NodeIndex %s: %w", node.Name, err)
	}
	return nil
}

// take writes the next free number into the record and returns it.
func (r *nodeIndexReconciler) take(ctx context.Context) (int32, error) {
	record := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: r.opts.Namespace, Name: recordName}}
	err := r.live.Get(ctx, client.ObjectKeyFromObject(record), record)
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("read ConfigMap %s/%s: %w", record.Namespace, record.Name, err)
	}
	last, parseErr := strconv.ParseInt(record.Data[recordKey], 10, 32)
	if parseErr != nil { // new, lost or invalid: continue after the highest number
		if last, err = r.highest(ctx); err != nil {
			return 0, err
		}
	}
	number, err := r.next(ctx, int32(last))
	if err != nil {
		return 0, err
	}
	record.Data = map[string]string{recordKey: strconv.Itoa(int(number))}
	write := r.client.Update
	if record.ResourceVersion == "" {
		write = func(ctx context.Context, o client.Object, _ ...client.UpdateOption) error {
			return r.client.Create(ctx, o)
		}
	}
	if err := write(ctx, record); err != nil { // a conflict if another agent wrote it first
		return 0, fmt.Errorf("write ConfigMap %s/%s: %w", record.Namespace, record.Name, err)
	}
	return number, nil
}

// next finds the free number after last, with wraparound.
func (r *nodeIndexReconciler) next(ctx context.Context, last int32) (int32, error) {
	var failed error
	number, ok := NextNodeIndex(last, func(candidate int32) bool {
		var list pelagov1alpha1.NodeIndexList
		err := r.client.List(ctx, &list, client.MatchingFields{numberIndex: strconv.Itoa(int(candidate))}, client.Limit(1))
		failed = err
		return err == nil && len(list.Items) > 0
	})
	switch {
	case failed != nil:
		return 0, fmt.Errorf("list NodeIndexes: %w", failed)
	case !ok:
		return 0, fmt.Errorf("all %d indexes are used: delete Nodes that do not exist any more", MaxNodeIndex)
	}
	return number, nil
}

// highest is the highest number in use, 0 if none exists. It reads uncached: there is no record
// to fence it.
func (r *nodeIndexReconciler) highest(ctx context.Context) (int64, error) {
	var list pelagov1alpha1.NodeIndexList
	if err := r.live.List(ctx, &list); err != nil {
		return 0, fmt.Errorf("list NodeIndexes: %w", err)
	}
	var highest int32
	for i := range list.Items {
		highest = max(highest, list.Items[i].Spec.Index)
	}
	return int64(highest), nil
}

// retire deletes the NodeIndex of a Node that is gone, or was replaced by another of its name.
func (r *nodeIndexReconciler) retire(ctx context.Context, ni *pelagov1alpha1.NodeIndex) (time.Duration, error) {
	node, err := getNode(ctx, r.live, ni.Name) // the cache may be older than the NodeIndex
	if err != nil {
		return 0, err
	}
	if node != nil && string(node.UID) == ni.Spec.NodeUID && topology.HasDatapath(node.Labels) {
		return kube.RequeueStale, nil
	}
	// a node that lives without a data path uses no port
	if lives := node != nil && string(node.UID) == ni.Spec.NodeUID; r.opts.Globalnet && !lives {
		var blocks pelagov1alpha1.PortBlockList
		if err := r.client.List(ctx, &blocks, client.MatchingFields{nodeIndexBlockIndex: ni.Spec.NodeUID}, client.Limit(1)); err != nil {
			return 0, fmt.Errorf("list the port blocks of %s: %w", ni.Name, err)
		}
		if len(blocks.Items) > 0 {
			return fencingDelay, nil
		}
	}
	err = r.client.Delete(ctx, ni, client.Preconditions{UID: &ni.UID})
	if client.IgnoreNotFound(err) != nil {
		return 0, fmt.Errorf("delete NodeIndex %s: %w", ni.Name, err)
	}
	return 0, nil
}

// getNode reads what is needed of a Node; nil if none exists.
func getNode(ctx context.Context, from client.Reader, name string) (*metav1.PartialObjectMetadata, error) {
	node := new(metav1.PartialObjectMetadata)
	node.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Node"))
	err := from.Get(ctx, client.ObjectKey{Name: name}, node)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Node %s: %w", name, err)
	}
	return node, nil
}

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

// comingAndGoing drops updates (heartbeats of nodes, reports of node daemons), except one that
// replaces an object with another of the same name: a watch that missed the deletion shows the
// replacement as an update.
func comingAndGoing() predicate.Predicate {
	return predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		return e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
	}}
}

// datapathChanged selects nodes whose labels make them one with or without pelago-node.
func datapathChanged() predicate.Predicate {
	never := func(event.CreateEvent) bool { return false }
	return predicate.Funcs{
		CreateFunc: never, DeleteFunc: func(event.DeleteEvent) bool { return false }, GenericFunc: func(event.GenericEvent) bool { return false },
		UpdateFunc: func(e event.UpdateEvent) bool {
			return !topology.SameDatapath(e.ObjectOld.GetLabels(), e.ObjectNew.GetLabels())
		},
	}
}

// MaxNodeIndex is the highest index: a fabric address has 14 bits for it.
const MaxNodeIndex = 1<<14 - 1

// NextNodeIndex is the index to allocate after last. Indexes wrap around from MaxNodeIndex to 1, so
// that a freed one is allocated again as late as possible. It reports false if all of them are
// used.
func NextNodeIndex(last int32, used func(int32) bool) (int32, bool) {
	for i := int32(1); i <= MaxNodeIndex; i++ {
		candidate := (max(0, last)+i-1)%MaxNodeIndex + 1
		if !used(candidate) {
			return candidate, true
		}
	}
	return 0, false
}
