package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// Bounds of the blocks that a node has of a pool without demand (Minimum).
const (
	leastBlocks = 2
	// mostBlocks are 12,288 ports: as many new connections to one endpoint before more have to be
	// leased.
	mostBlocks = 48
	// batch bounds the blocks that are leased in one reconcile: nodes take turns, and the first
	// blocks are usable early.
	batch = 8
)

// BlockOptions are the options of the controller of port blocks.
type BlockOptions struct {
	// GlobalCIDR are the cluster's own ranges; without any the controller is not started.
	GlobalCIDR []netip.Prefix
	// Minimum is the number of blocks that a node has of each pool that it uses; 0: by the function
	// Minimum.
	Minimum int
	// Clock is the machine's if nil.
	Clock clock.PassiveClock
}

// blockRequest names the blocks of one pool on one node.
type blockRequest struct {
	Pool pelagov1alpha1.EgressPool
	Node string
}

func (r blockRequest) String() string {
	return fmt.Sprintf("%s/%s on %s", r.Pool.Namespace, r.Pool.Name, r.Node)
}

func blockRequestOf(b *pelagov1alpha1.PortBlock) blockRequest {
	return blockRequest{Pool: b.Spec.Pool, Node: b.Spec.Node}
}

type blockReconciler struct {
	client   client.Client
	live     client.Reader // uncached, for decisions that a stale cache must not make
	recorder record.EventRecorder
	clock    clock.PassiveClock
	minimum  int
	ledger   *ledger[PortSpace, pelagov1alpha1.PortBlock, *Space]
	// shares is that of the number of nodes at the last event.
	shares atomic.Int64
	// exhausted nodes wait for blocks that their pool lacks.
	exhausted waiters[blockRequest]
}

// SetupBlocks adds the controller to the manager.
func SetupBlocks(mgr ctrl.Manager, opts BlockOptions) error {
	if len(opts.GlobalCIDR) == 0 {
		return nil
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &blockReconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: kube.EventRecorder(mgr, "pelago-agent"),
		clock: opts.Clock, minimum: opts.Minimum, ledger: newLedger[pelagov1alpha1.PortBlock](new(Space)),
	}
	if err := r.watch(mgr); err != nil {
		return fmt.Errorf("set up the controller of port blocks: %w", err)
	}
	return nil
}

// Reconcile brings a node's blocks of one pool in line. One worker does it: a node gets its blocks
// on one IP.
func (r *blockReconciler) Reconcile(ctx context.Context, req blockRequest) (ctrl.Result, error) {
	if err := r.ledger.fill(ctx, r.client, &pelagov1alpha1.PortBlockList{}, leaseOf); err != nil {
		return ctrl.Result{}, err
	}
	return kube.Result(r.reconcile(ctx, req))
}

func (r *blockReconciler) reconcile(ctx context.Context, req blockRequest) (time.Duration, error) {
	pool, err := r.pool(ctx, req.Pool)
	if err != nil {
		return 0, err
	}
	node, err := r.node(ctx, r.client, req, pool)
	if err != nil {
		return 0, err
	}
	leases, list, err := r.leases(ctx, req)
	if err != nil {
		return 0, err
	}
	plan := DesiredBlocks(node.BlockNode, pool.ips, list, r.clock.Now())
	if len(plan.Orphan)+len(plan.Fenced) > 0 { // a stale cache must not end leases
		if node, err = r.node(ctx, r.live, req, pool); err != nil {
			return 0, err
		}
		plan = DesiredBlocks(node.BlockNode, pool.ips, list, r.clock.Now())
	}
	errs := []error{
		r.each(leases, plan.Activate, func(b *pelagov1alpha1.PortBlock) error { return r.setState(ctx, b, pelagov1alpha1.BlockActive) }),
		r.each(leases, plan.Release, func(b *pelagov1alpha1.PortBlock) error { return r.setState(ctx, b, pelagov1alpha1.BlockReleasing) }),
		r.each(leases, plan.Orphan, func(b *pelagov1alpha1.PortBlock) error { return r.orphan(ctx, b, node) }),
		r.each(leases, plan.Delete, func(b *pelagov1alpha1.PortBlock) error { return r.delete(ctx, b) }),
	}
	// before the search: a block freed from here on requeues the request
	waited := r.exhausted.update(req, plan.Missing > 0)
	missing, err := r.lease(ctx, req, node, plan, leases, plan.Granted(r.free(pool.ips), len(pool.ips)))
	errs = append(errs, err)
	if err == nil {
		r.exhausted.update(req, missing > 0)
		errs = append(errs, r.report(ctx, req, node, pool, missing, !waited))
	}
	if err == nil && missing == 0 && plan.Missing > batch {
		return time.Nanosecond, errors.Join(errs...) // after the other requests
	}
	return plan.Wait, errors.Join(errs...)
}

// leases lists the blocks of a request, as objects by name and as values.
func (r *blockReconciler) leases(ctx context.Context, req blockRequest) (map[string]*pelagov1alpha1.PortBlock, []Block, error) {
	ready, err := blockGatewayIndex.List(ctx, r.client)
	if err != nil {
		return nil, nil, err
	}
	var found pelagov1alpha1.PortBlockList
	if err := r.client.List(ctx, &found, client.MatchingFields{requestIndex: req.String()}); err != nil {
		return nil, nil, fmt.Errorf("list port blocks of %s: %w", req, err)
	}
	leases := map[string]*pelagov1alpha1.PortBlock{}
	created := r.ledger.unobserved(func(b pelagov1alpha1.PortBlock) bool { return blockRequestOf(&b) == req })
	for _, b := range created {
		leases[b.Name] = &b
	}
	for i := range found.Items {
		leases[found.Items[i].Name] = &found.Items[i]
	}
	var list []Block
	for name, b := range leases {
		ports, ok := portsOf(b)
		if !ok {
			delete(leases, name) // not ours: the agent writes addresses
			continue
		}
		value := Block{
			Name: name, Ports: ports, State: b.Spec.State, NodeUID: b.Spec.NodeUID, Released: b.Status.Released,
			Acked: ready.Have(b.UID), OrphanBootID: b.Annotations[pelagov1alpha1.AnnotationOrphanBootID],
		}
		if b.Spec.OrphanedAt != nil {
			value.OrphanedAt = b.Spec.OrphanedAt.Time
		}
		list = append(list, value)
	}
	slices.SortFunc(list, func(a, b Block) int { return strings.Compare(a.Name, b.Name) })
	return leases, list, nil
}

// lease creates missing blocks, at most batch and granted, and returns how many of the batch the pool
// lacks.
func (r *blockReconciler) lease(ctx context.Context, req blockRequest, node member, plan BlockPlan, leases map[string]*pelagov1alpha1.PortBlock, granted int) (missing int, err error) {
	missing = min(plan.Missing, batch)
	for withheld := max(0, missing-granted); missing > 0; {
		var ports []PortSpace
		r.ledger.use(func(space *Space) { ports = space.Next(plan.Order, missing-withheld) })
		if len(ports) == 0 {
			return missing, nil
		}
		for i, p := range ports {
			got, err := r.create(ctx, req, node, p)
			if err != nil {
				r.ledger.release(ports[i:]...)
				return missing, err
			}
			if _, known := leases[blockName(p)]; got && !known {
				missing--
			}
		}
	}
	return 0, nil
}

// create creates a lease and reports whether the ports belong to the node. An existing lease may be
// the node's, created by an earlier attempt whose response was lost; else the ledger was stale, and
// the ports stay taken.
func (r *blockReconciler) create(ctx context.Context, req blockRequest, node member, p PortSpace) (bool, error) {
	b := &pelagov1alpha1.PortBlock{
		ObjectMeta: metav1.ObjectMeta{Name: blockName(p)},
		Spec: pelagov1alpha1.PortBlockSpec{
			EgressIP: p.IP.String(), FirstPort: p.First, Node: req.Node, NodeUID: node.UID, Pool: req.Pool,
			State: pelagov1alpha1.BlockPending,
		},
	}
	if err := kube.Claim(ctx, r.client, r.live, b); err != nil {
		return false, fmt.Errorf("lease port block %s to node %s: %w", blockName(p), req.Node, err)
	}
	mine := b.Spec.NodeUID == node.UID && b.Spec.Pool == req.Pool && b.Spec.OrphanedAt == nil && b.Spec.State != pelagov1alpha1.BlockReleasing
	if mine {
		r.ledger.add(p, *b)
		log.FromContext(ctx).Info("leased a port block", "egressIP", b.Spec.EgressIP, "firstPort", b.Spec.FirstPort, "ports", pelagov1alpha1.BlockPorts,
			"node", b.Spec.Node, "nodeUID", b.Spec.NodeUID, "from", b.CreationTimestamp.UTC().Format(time.RFC3339))
	}
	return mine, nil
}

// each applies a change to the named leases, all of them even if one fails.
func (r *blockReconciler) each(leases map[string]*pelagov1alpha1.PortBlock, names []string, change func(*pelagov1alpha1.PortBlock) error) error {
	var errs []error
	for _, name := range names {
		if err := change(leases[name]); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("port block %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// The changes below carry the resourceVersion that the plan was made from: a concurrent write makes
// them fail.

func (r *blockReconciler) setState(ctx context.Context, b *pelagov1alpha1.PortBlock, state pelagov1alpha1.BlockState) error {
	patch := kube.MergeFrom(b.DeepCopy())
	b.Spec.State = state
	if err := r.client.Patch(ctx, b, patch); err != nil {
		return fmt.Errorf("make it %s: %w", state, err)
	}
	return nil
}

func (r *blockReconciler) orphan(ctx context.Context, b *pelagov1alpha1.PortBlock, node member) error {
	patch := kube.MergeFrom(b.DeepCopy())
	// the API keeps seconds
	b.Spec.OrphanedAt = &metav1.Time{Time: r.clock.Now().Add(time.Second).Truncate(time.Second)}
	if boot := node.bootOf[b.Spec.NodeUID]; boot != "" {
		metav1.SetMetaDataAnnotation(&b.ObjectMeta, pelagov1alpha1.AnnotationOrphanBootID, boot)
	}
	if err := r.client.Patch(ctx, b, patch); err != nil {
		return fmt.Errorf("mark it as orphaned: %w", err)
	}
	return nil
}

func (r *blockReconciler) delete(ctx context.Context, b *pelagov1alpha1.PortBlock) error {
	if err := r.client.Delete(ctx, b, kube.Exactly(b)); err != nil {
		return fmt.Errorf("delete it: %w", err)
	}
	log.FromContext(ctx).Info("ended the lease of a port block", "egressIP", b.Spec.EgressIP, "firstPort", b.Spec.FirstPort, "ports", pelagov1alpha1.BlockPorts,
		"node", b.Spec.Node, "nodeUID", b.Spec.NodeUID, "from", b.CreationTimestamp.UTC().Format(time.RFC3339), "until", r.clock.Now().UTC().Format(time.RFC3339))
	return nil
}

// leaseOf are the ports of a PortBlock. ok is false if it is not ours: the agent writes addresses.
func leaseOf(o runtime.Object) (p PortSpace, ok bool) {
	if b, is := o.(*pelagov1alpha1.PortBlock); is {
		return portsOf(b)
	}
	return p, false
}

func portsOf(b *pelagov1alpha1.PortBlock) (PortSpace, bool) {
	ip, err := netip.ParseAddr(b.Spec.EgressIP)
	return PortSpace{IP: ip, First: b.Spec.FirstPort}, err == nil && slot(b.Spec.FirstPort) >= 0
}

// blockName is the name of the PortBlock of these ports: 120-1-0-1-1024.
func blockName(p PortSpace) string {
	return fmt.Sprintf("%s-%d", strings.NewReplacer(".", "-", ":", "-").Replace(p.IP.StringExpanded()), p.First)
}
