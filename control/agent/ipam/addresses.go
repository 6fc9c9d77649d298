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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/kube"
)

// Options of the controller.
type AddressOptions struct {
	// GlobalCIDR are the cluster's own ranges; without any the controller is not started.
	GlobalCIDR []netip.Prefix
	// Clock is the machine's if nil.
	Clock clock.PassiveClock
}

type reconciler struct {
	client   client.Client
	live     client.Reader // past the cache, for what must not be decided from an old picture
	recorder record.EventRecorder
	clock    clock.PassiveClock
	ledger   *ledger
	filled   bool
}

// Setup adds the controllers of the package to the manager.
func SetupAddresses(mgr ctrl.Manager, opts AddressOptions) error {
	if len(opts.GlobalCIDR) == 0 {
		return nil
	}
	if opts.Clock == nil {
		opts.Clock = clock.RealClock{}
	}
	r := &reconciler{
		client: mgr.GetClient(), live: mgr.GetAPIReader(), recorder: mgr.GetEventRecorderFor("pelago-agent"),
		clock: opts.Clock, ledger: newLedger(NewPool(opts.GlobalCIDR...)),
	}
	if err := r.watch(mgr); err != nil {
		return fmt.Errorf("set up the controller of global addresses: %w", err)
	}
	if err := setupConflicts(mgr); err != nil {
		return fmt.Errorf("set up the controller of egress conflicts: %w", err)
	}
	return nil
}

// Reconcile brings one owner's claims and status in line. One worker does it: allocation has an order.
func (r *reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	if err := r.fill(ctx); err != nil {
		return ctrl.Result{}, err
	}
	return kube.Result(r.reconcile(ctx, req))
}

// fill takes the claims that exist into the picture, once: event handlers may come later than the first reconcile.
func (r *reconciler) fill(ctx context.Context) error {
	if r.filled {
		return nil
	}
	var list pelagov1alpha1.GlobalAddressList
	if err := r.client.List(ctx, &list); err != nil {
		return fmt.Errorf("list GlobalAddresses: %w", err)
	}
	for i := range list.Items {
		if ip, err := netip.ParseAddr(list.Items[i].Spec.IP); err == nil {
			r.ledger.seen(ip)
		}
	}
	r.filled = true
	return nil
}

func (r *reconciler) reconcile(ctx context.Context, req request) (time.Duration, error) {
	r.ledger.waits(req, true, true) // before anything is read: what changes from here on brings us here again
	owner, err := read(ctx, r.client, req)
	if err != nil {
		return 0, err
	}
	claims, err := r.claims(ctx, req)
	if err != nil {
		return 0, err
	}
	plan := DesiredAddresses(owner.AddressOwner, values(claims), r.ledger.contains, r.clock.Now())
	if len(plan.Rest) > 0 { // a cache may be older than the claims: nothing is let go on its word
		if owner, err = read(ctx, r.live, req); err != nil {
			return 0, err
		}
		plan = DesiredAddresses(owner.AddressOwner, values(claims), r.ledger.contains, r.clock.Now())
	}
	if err := r.give(ctx, req, owner, &plan); err != nil {
		return 0, err
	}
	if err := r.show(ctx, req, owner, plan); err != nil {
		return 0, err
	}
	// Only now, when the status names no address that is let go.
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
	for _, c := range r.ledger.unseen(req) {
		claims[c.IP] = recorded{AddressClaim: c}
	}
	var list pelagov1alpha1.GlobalAddressList
	if err := r.client.List(ctx, &list, client.MatchingFields{ownerIndex: req.String()}); err != nil {
		return nil, fmt.Errorf("list GlobalAddresses of %s: %w", req, err)
	}
	for i := range list.Items {
		a := &list.Items[i]
		ip, err := netip.ParseAddr(a.Spec.IP)
		if err != nil {
			continue // not ours: the agent writes addresses
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

// give claims what is missing, all of it or nothing. The cluster's pool comes first, so that its addresses are the
// lowest ones whatever the order of events at the start.
func (r *reconciler) give(ctx context.Context, req request, owner object, plan *AddressPlan) error {
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
		ips, ok := r.ledger.reserve(plan.Missing, plan.Lost)
		if !ok {
			return nil // the status says so
		}
		for i, ip := range ips {
			mine, err := r.claim(ctx, ip, ref)
			if err != nil {
				r.ledger.unreserve(ips[i:]...)
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

// claim creates the GlobalAddress and says whether the address belongs to the owner now. If it exists already it may be
// our own, made by an earlier attempt whose answer was lost; else the pool's picture was old, and the address stays
// marked as taken until its claim is seen to be deleted.
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
		r.ledger.claimed(ip, owner)
	}
	return mine, nil
}

// show writes the status if it is another one than before.
func (r *reconciler) show(ctx context.Context, req request, owner object, plan AddressPlan) error {
	if owner.Object == nil {
		r.ledger.waits(req, false, false)
		return nil
	}
	ready, err := gatewayIndex.List(ctx, r.client)
	if err != nil {
		return err
	}
	before := owner.DeepCopyObject().(client.Object)
	changed, condition := owner.show(plan.Have, ready, r.ledger.supply())
	r.ledger.waits(req, condition.Reason == submarinerv1.ReasonIPPoolAllocationFailed, condition.Reason == submarinerv1.ReasonAwaitingGateways)
	if !changed {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.client.Status().Patch(ctx, owner.Object, patch); err != nil {
		return client.IgnoreNotFound(fmt.Errorf("write the status of %s: %w", req, err))
	}
	if condition.Reason == submarinerv1.ReasonIPPoolAllocationFailed {
		r.recorder.Event(owner.Object, corev1.EventTypeWarning, condition.Reason, condition.Message)
	}
	return nil
}

// release marks claims as released; the event of that write brings the owner here again.
func (r *reconciler) release(ctx context.Context, claims map[netip.Addr]recorded, ips []netip.Addr) error {
	var errs []error
	for _, ip := range ips {
		a := claims[ip].object
		if a == nil {
			continue // made a moment ago; its event brings us here again
		}
		patch := client.MergeFromWithOptions(a.DeepCopy(), client.MergeFromWithOptimisticLock{})
		a.Spec.ReleasedAt = &metav1.Time{Time: r.clock.Now().Add(time.Second).Truncate(time.Second)} // the API keeps seconds
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
		only := client.Preconditions{UID: &a.UID, ResourceVersion: &a.ResourceVersion}
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
