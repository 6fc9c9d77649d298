package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
)

// AddressOptions are the options of the controller of global addresses.
type AddressOptions struct {
	// GlobalCIDR are the cluster's own ranges; without any the controller is not started.
	GlobalCIDR []netip.Prefix
	// Clock is the machine's if nil.
	Clock clock.PassiveClock
}

type reconciler struct {
	client   client.Client
	live     client.Reader // uncached, for decisions that a stale cache must not make
	recorder record.EventRecorder
	clock    clock.PassiveClock
	ledger   *ledger[netip.Addr, pelagov1alpha1.AddressOwner, *Pool]
	// exhausted owners wait for free addresses, unacknowledged ones for the acknowledgements of
	// gateways.
	exhausted, unacknowledged waiters[request]
}

// SetupAddresses adds the controllers of the package to the manager.
func SetupAddresses(mgr ctrl.Manager, opts AddressOptions) error {
	if len(opts.GlobalCIDR) == 0 {
		return nil
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: kube.EventRecorder(mgr, "pelago-agent"),
		clock: opts.Clock, ledger: newLedger[pelagov1alpha1.AddressOwner](NewPool(opts.GlobalCIDR...)),
	}
	if err := r.watch(mgr); err != nil {
		return fmt.Errorf("set up the controller of global addresses: %w", err)
	}
	if err := setupConflicts(mgr); err != nil {
		return fmt.Errorf("set up the controller of egress conflicts: %w", err)
	}
	return nil
}

// Reconcile brings one owner's claims and status in line. One worker does it: allocation has an
// order.
func (r *reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	if err := r.ledger.fill(ctx, r.client, &pelagov1alpha1.GlobalAddressList{}, addressOf); err != nil {
		return ctrl.Result{}, err
	}
	return kube.Result(r.reconcile(ctx, req))
}

func (r *reconciler) reconcile(ctx context.Context, req request) (time.Duration, error) {
	r.waits(req, true, true) // before anything is read: every later change requeues the request
	owner, err := read(ctx, r.client, req)
	if err != nil {
		return 0, err
	}
	claims, err := r.claims(ctx, req)
	if err != nil {
		return 0, err
	}
	plan := DesiredAddresses(owner.AddressOwner, values(claims), r.contains, r.clock.Now())
	if len(plan.Rest) > 0 { // a stale cache must not release addresses
		if owner, err = read(ctx, r.live, req); err != nil {
			return 0, err
		}
		plan = DesiredAddresses(owner.AddressOwner, values(claims), r.contains, r.clock.Now())
	}
	if err := r.allocate(ctx, req, owner, &plan); err != nil {
		return 0, err
	}
	if err := r.show(ctx, req, owner, plan); err != nil {
		return 0, err
	}
	// Last: the status no longer contains the released addresses.
	return plan.Wait, errors.Join(r.release(ctx, claims, plan.Rest), r.free(ctx, claims, plan.Free))
}

// recorded is a claim with its object; the object is nil as long as the cache does not show it.
type recorded struct {
	AddressClaim
	object *pelagov1alpha1.GlobalAddress
}

func values(claims map[netip.Addr]recorded) []AddressClaim {
	var list []AddressClaim
	for _, c := range claims {
		list = append(list, c.AddressClaim)
	}
	slices.SortFunc(list, func(a, b AddressClaim) int { return a.IP.Compare(b.IP) })
	return list
}

// claims lists the claims that were made for objects of this kind and name.
func (r *reconciler) claims(ctx context.Context, req request) (map[netip.Addr]recorded, error) {
	claims := map[netip.Addr]recorded{}
	created := r.ledger.unobserved(func(owner pelagov1alpha1.AddressOwner) bool { return requestOf(owner) == req })
	for ip, owner := range created {
		claims[ip] = recorded{AddressClaim: AddressClaim{IP: ip, Owner: types.UID(owner.UID)}}
	}
	var list pelagov1alpha1.GlobalAddressList
	if err := r.client.List(ctx, &list, client.MatchingFields{ownerIndex: req.String()}); err != nil {
		return nil, fmt.Errorf("list GlobalAddresses of %s: %w", req, err)
	}
	for i := range list.Items {
		a := &list.Items[i]
		ip, ok := addressOf(a)
		if !ok {
			continue
		}
		leased, err := r.leased(ctx, a.Spec.IP)
		if err != nil {
			return nil, err
		}
		claims[ip] = recorded{object: a, AddressClaim: AddressClaim{
			IP: ip, Owner: types.UID(a.Spec.Owner.UID), ReleasedAt: ptr.Deref(a.Spec.ReleasedAt, metav1.Time{}).Time, Leased: leased,
		}}
	}
	return claims, nil
}

func (r *reconciler) leased(ctx context.Context, ip string) (bool, error) {
	var blocks pelagov1alpha1.PortBlockList
	if err := r.client.List(ctx, &blocks, client.MatchingFields{blockIndex: ip}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the port blocks of %s: %w", ip, err)
	}
	return len(blocks.Items) > 0, nil
}

// allocate claims the missing addresses, all or none. The cluster's pool comes first, so that its
// addresses are the lowest ones whatever the order of events at the start.
func (r *reconciler) allocate(ctx context.Context, req request, owner object, plan *AddressPlan) error {
	if plan.Missing == 0 {
		return nil
	}
	if req != clusterPool {
		if _, err := r.reconcile(ctx, clusterPool); err != nil {
			return err
		}
	}
	ref := pelagov1alpha1.AddressOwner{Kind: req.Kind, Namespace: req.Namespace, Name: req.Name, UID: string(owner.UID)}
	for plan.Missing > 0 {
		ips, ok := r.reserve(plan.Missing, plan.Lost)
		if !ok {
			return nil // reported by the condition
		}
		for i, ip := range ips {
			mine, err := r.claim(ctx, ip, ref)
			if err != nil {
				r.ledger.release(ips[i:]...)
				return err
			}
			if mine && !slices.Contains(plan.Have, ip) {
				plan.Have = append(plan.Have, ip)
				plan.Missing--
			}
		}
	}
	return nil
}

// reserve picks n free addresses, those of prefer first, or none if fewer are free.
func (r *reconciler) reserve(n int, prefer []netip.Addr) (ips []netip.Addr, ok bool) {
	r.ledger.use(func(pool *Pool) {
		if n > pool.Free() {
			return
		}
		for _, ip := range prefer {
			if len(ips) < n && pool.Take(ip) {
				ips = append(ips, ip)
			}
		}
		var rest []netip.Addr
		rest, ok = pool.Next(n - len(ips))
		ips = append(ips, rest...)
	})
	return ips, ok
}

func (r *reconciler) contains(ip netip.Addr) (in bool) {
	r.ledger.use(func(pool *Pool) { in = pool.Contains(ip) })
	return in
}

func (r *reconciler) supply() (s supply) {
	r.ledger.use(func(pool *Pool) { s = supply{cidr: pool.String(), size: pool.Size()} })
	return s
}

func (r *reconciler) waits(req request, forAddress, forGateways bool) {
	r.exhausted.update(req, forAddress)
	r.unacknowledged.update(req, forGateways)
}

// claim creates the GlobalAddress and reports whether it belongs to the owner. An existing one may
// be ours, created by an earlier attempt whose response was lost; else the pool was stale, and the
// address stays taken until its claim is observed to be deleted.
func (r *reconciler) claim(ctx context.Context, ip netip.Addr, owner pelagov1alpha1.AddressOwner) (bool, error) {
	address := &pelagov1alpha1.GlobalAddress{
		ObjectMeta: metav1.ObjectMeta{Name: name(ip)},
		Spec:       pelagov1alpha1.GlobalAddressSpec{IP: ip.String(), Owner: owner},
	}
	if err := kube.Claim(ctx, r.client, r.live, address); err != nil {
		return false, fmt.Errorf("claim %s for %s: %w", ip, requestOf(owner), err)
	}
	mine := address.Spec.Owner == owner && address.Spec.ReleasedAt == nil
	if mine {
		r.ledger.add(ip, owner)
	}
	return mine, nil
}

// show writes the status if it changed.
func (r *reconciler) show(ctx context.Context, req request, owner object, plan AddressPlan) error {
	if owner.Object == nil {
		r.waits(req, false, false)
		return nil
	}
	ready, err := gatewayIndex.List(ctx, r.client)
	if err != nil {
		return err
	}
	blocks, err := r.pendingBlocks(ctx, req, ready)
	if err != nil {
		return err
	}
	before := owner.DeepCopyObject().(client.Object)
	changed, condition := owner.show(plan.Have, ready, blocks, r.supply())
	r.waits(req, condition.Reason == submarinerv1.ReasonIPPoolAllocationFailed, condition.Reason == submarinerv1.ReasonAwaitingGateways)
	if !changed {
		return nil
	}
	patch := kube.MergeFrom(before)
	if err := r.client.Status().Patch(ctx, owner.Object, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of %s: %w", req, err))
	}
	if condition.Reason == submarinerv1.ReasonIPPoolAllocationFailed {
		r.recorder.Event(owner.Object, corev1.EventTypeWarning, condition.Reason, condition.Message)
	}
	return nil
}

// pendingBlocks reads which nodes have only pending blocks of an egress object.
func (r *reconciler) pendingBlocks(ctx context.Context, req request, ready topology.Gateways) (b pendingBlocks, err error) {
	if req.Kind == kindIngress {
		return b, nil
	}
	pool := pelagov1alpha1.EgressPool{Namespace: req.Namespace, Name: req.Name}
	var pending pelagov1alpha1.PortBlockList
	if err := r.client.List(ctx, &pending, client.MatchingFields{stateIndex: poolState(pool, pelagov1alpha1.BlockPending)}, client.UnsafeDisableDeepCopy); err != nil {
		return b, fmt.Errorf("list the pending port blocks of %s: %w", req, err)
	}
	nodes, gateways := sets.New[string](), sets.New[string]()
	for i := range pending.Items {
		p := &pending.Items[i]
		active := nodes.Has(p.Spec.Node)
		if !active {
			if active, err = r.hasBlock(ctx, nodeState(pool, pelagov1alpha1.BlockActive, p.Spec.Node)); err != nil {
				return b, err
			}
			if active {
				continue
			}
		}
		nodes.Insert(p.Spec.Node)
		gateways.Insert(ready.Missing(p.UID)...)
	}
	if len(nodes) > 0 {
		b.elsewhere, err = r.hasBlock(ctx, poolState(pool, pelagov1alpha1.BlockActive))
	}
	b.nodes, b.gateways = sets.List(nodes), sets.List(gateways)
	return b, err
}

// hasBlock reports whether a block has this value of stateIndex.
func (r *reconciler) hasBlock(ctx context.Context, state string) (bool, error) {
	var blocks pelagov1alpha1.PortBlockList
	if err := r.client.List(ctx, &blocks, client.MatchingFields{stateIndex: state}, client.Limit(1)); err != nil {
		return false, fmt.Errorf("list the port blocks of %s: %w", state, err)
	}
	return len(blocks.Items) > 0, nil
}

// release marks claims as released; the event of that write requeues the owner.
func (r *reconciler) release(ctx context.Context, claims map[netip.Addr]recorded, ips []netip.Addr) error {
	var errs []error
	for _, ip := range ips {
		a := claims[ip].object
		if a == nil {
			continue // just created; its event requeues the owner
		}
		patch := kube.MergeFrom(a.DeepCopy())
		// the API keeps seconds
		a.Spec.ReleasedAt = &metav1.Time{Time: r.clock.Now().Add(time.Second).Truncate(time.Second)}
		if err := r.client.Patch(ctx, a, patch); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", ip, err))
		}
	}
	return errors.Join(errs...)
}

// free deletes claims that have rested.
func (r *reconciler) free(ctx context.Context, claims map[netip.Addr]recorded, ips []netip.Addr) error {
	var errs []error
	for _, ip := range ips {
		a := claims[ip].object
		only := kube.Exactly(a)
		if err := r.client.Delete(ctx, a, only); client.IgnoreNotFound(err) != nil {
			errs = append(errs, fmt.Errorf("free %s: %w", ip, err))
		}
	}
	return errors.Join(errs...)
}

// name is the name of the GlobalAddress of an address: 120-1-0-9.
func name(ip netip.Addr) string {
	return strings.NewReplacer(".", "-", ":", "-").Replace(ip.StringExpanded())
}

// addressOf is the address of a GlobalAddress. ok is false if it is not ours: the agent writes
// addresses.
func addressOf(o runtime.Object) (ip netip.Addr, ok bool) {
	a, is := o.(*pelagov1alpha1.GlobalAddress)
	if !is {
		return ip, false
	}
	ip, err := netip.ParseAddr(a.Spec.IP)
	return ip, err == nil
}
