package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/hubclient"
	"github.com/pelago-net/pelago/control/kube"
)

// indexVIP finds the GlobalAddresses of a service's ClusterSetIPs by `<namespace>/<service>`.
const indexVIP = "export.cluster-set-ip"

// reasonReclaimed is the reason of the Event that reports another ClusterSetIP of a service.
const reasonReclaimed = "ClusterSetIPChanged"

// usesVIP reports whether an export is to have a ClusterSetIP; note is what is wrong with its
// annotation.
func (c cluster) usesVIP(export *mcs.ServiceExport, o offer) (uses bool, note string) {
	if export == nil || o.contribution == nil {
		return false, ""
	}
	uses = c.clusterSetIPs
	text, set := export.Annotations[submarinerv1.AnnotationUseClusterSetIP]
	if given, err := strconv.ParseBool(text); set && err == nil {
		uses = given
	} else if set {
		note = fmt.Sprintf("annotation %s=%q is neither true nor false", submarinerv1.AnnotationUseClusterSetIP, text)
	}
	if o.contribution.Spec.Type != v1alpha1.ContributionHeadless {
		return uses, note
	}
	if set && uses && note == "" {
		note = "a headless service has no ClusterSetIP"
	}
	return false, note
}

// readVIPs collects what decides on the ClusterSetIP of a service.
func readVIPs(ctx context.Context, hub *hubclient.Hub, contributions []v1alpha1.ServiceContribution, joined map[string]time.Time) (vips, error) {
	v := vips{joined: joined}
	var err error
	if v.ranges, err = hub.ClusterSetIPRanges(ctx); err != nil {
		return v, err
	}
	var seen []string
	for _, c := range contributions {
		ip := c.Spec.ClusterSetIP
		if ip == "" || slices.Contains(seen, ip) {
			continue
		}
		seen = append(seen, ip)
		naming, err := hub.ContributionsNaming(ctx, ip)
		if err != nil {
			return v, err
		}
		for _, x := range naming {
			if x.Spec.Namespace != c.Spec.Namespace || x.Spec.Service != c.Spec.Service {
				v.rivals = append(v.rivals, x)
			}
		}
	}
	return v, nil
}

// assignVIP sets the ClusterSetIP of the contribution to be published, claims one if needed and
// keeps the GlobalAddresses of the service. The hub must be synced.
func (r *reconciler) assignVIP(ctx context.Context, service types.NamespacedName, export *mcs.ServiceExport, o *offer) (*metav1.Condition, time.Duration, error) {
	s := vipState{now: time.Now()}
	var err error
	if s.present, err = r.hub.Contributions(ctx, service); err != nil {
		return nil, 0, err
	}
	joined, err := r.hub.Members(ctx)
	if err != nil {
		return nil, 0, err
	}
	if s.vips, err = readVIPs(ctx, r.hub, s.present, joined); err != nil {
		return nil, 0, err
	}
	var list v1alpha1.GlobalAddressList
	if err := r.local.List(ctx, &list, client.MatchingFields{indexVIP: service.String()}); err != nil {
		return nil, 0, fmt.Errorf("read the GlobalAddresses of service %s: %w", service, err)
	}
	objects := map[netip.Addr]*v1alpha1.GlobalAddress{}
	for i := range list.Items {
		a := &list.Items[i]
		ip, err := netip.ParseAddr(a.Spec.IP)
		if err != nil {
			continue // not ours: the agent writes addresses
		}
		objects[ip] = a
		record := vipRecord{ip: ip}
		if a.Spec.ReleasedAt != nil {
			record.releasedAt = a.Spec.ReleasedAt.Time
		}
		s.records = append(s.records, record)
	}
	uses, note := r.cluster.usesVIP(export, *o)
	if uses {
		s.own = o.contribution
	}
	if since, waiting := r.awaits.Load(service); waiting {
		s.waited = s.now.Sub(since.(time.Time)) >= claimGrace
	}
	p := r.cluster.vip(s)
	wait, failed := p.wait, ""
	if p.awaits != "" {
		since, _ := r.awaits.LoadOrStore(service, s.now)
		wait = sooner(wait, since.(time.Time).Add(claimGrace).Sub(s.now))
	} else {
		r.awaits.Delete(service)
	}
	own := s.ranges[r.cluster.id]
	kept := slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Contains(p.ip) })
	if p.claim || kept && objects[p.ip] == nil {
		ip, err := r.claimVIP(ctx, service, own, p.ip)
		if err != nil {
			return nil, 0, err
		}
		if ip.IsValid() {
			p.ip, p.from = ip, r.cluster.id
			delete(objects, ip) // claimVIP has written it: the cached object is outdated
		} else {
			wait = sooner(wait, freedGrace)
			p.ip, failed = ip, fmt.Sprintf("all addresses of this cluster's range %v of ClusterSetIPs are allocated, or released less than 120 s ago: un-export services, or unjoin and join with a larger --clusterset-ip-cidr", own)
		}
	}
	if uses && p.ip.IsValid() {
		o.contribution.Spec.ClusterSetIP = p.ip.String()
		if former := s.remembered(r.cluster.id); former != "" && former != p.ip.String() {
			r.events.Eventf(export, corev1.EventTypeWarning, reasonReclaimed, "the ClusterSetIP changes from %s to %s: %s",
				former, p.ip, strings.Join(append(p.refused, "that of cluster "+p.from+" is used"), "; "))
		}
	}
	err = r.keepVIPs(ctx, p, objects, s.now)
	return r.cluster.vipCondition(uses, p, note, failed), wait, err
}

// claimVIP creates the GlobalAddress of a ClusterSetIP: of the given address if it is valid and not
// another service's, else of the first candidate that is free. An address that only other clusters
// name for another service is taken if no other is left: one of them could name the whole range,
// and this cluster's claim comes before theirs (vips.valid). None is free if the result is not
// valid.
func (r *reconciler) claimVIP(ctx context.Context, service types.NamespacedName, ranges []netip.Prefix, given netip.Addr) (netip.Addr, error) {
	try := func(ip netip.Addr, named bool) (mine bool, err error) {
		if !named {
			naming, err := r.hub.ContributionsNaming(ctx, ip.String())
			if err != nil || slices.ContainsFunc(naming, func(x v1alpha1.ServiceContribution) bool {
				return x.Spec.Namespace != service.Namespace || x.Spec.Service != service.Name
			}) {
				return false, err
			}
		}
		owner := v1alpha1.AddressOwner{Kind: mcs.ServiceImportKindName, Namespace: service.Namespace, Name: service.Name}
		a := &v1alpha1.GlobalAddress{ObjectMeta: metav1.ObjectMeta{Name: strings.ReplaceAll(ip.String(), ".", "-")}}
		if err := r.local.Get(ctx, client.ObjectKeyFromObject(a), a); err == nil && a.Spec.Owner != owner {
			return false, nil // as the cache has it: no request is needed
		}
		a = &v1alpha1.GlobalAddress{ObjectMeta: metav1.ObjectMeta{Name: a.Name}, Spec: v1alpha1.GlobalAddressSpec{IP: ip.String(), Owner: owner}}
		if err := kube.Claim(ctx, r.local, r.live, a); err != nil {
			return false, fmt.Errorf("claim ClusterSetIP %s for service %s: %w", ip, service, err)
		}
		if a.Spec.Owner != owner {
			return false, nil
		}
		return true, r.setReleased(ctx, a, nil)
	}
	if given.IsValid() {
		if mine, err := try(given, false); mine || err != nil {
			return given, err
		}
	}
	for _, named := range []bool{false, true} {
		for ip := range candidates(service, ranges) {
			if mine, err := try(ip, named); mine || err != nil {
				return ip, err
			}
		}
	}
	return netip.Addr{}, nil
}

// keepVIPs writes what becomes of a service's GlobalAddresses.
func (r *reconciler) keepVIPs(ctx context.Context, p vipPlan, objects map[netip.Addr]*v1alpha1.GlobalAddress, now time.Time) error {
	var errs []error
	released := metav1.NewTime(now.Add(time.Second).Truncate(time.Second)) // the API keeps seconds
	for ip, a := range objects {
		switch {
		case ip == p.ip && a.Spec.ReleasedAt == nil:
		case ip == p.ip || slices.Contains(p.renew, ip):
			errs = append(errs, r.setReleased(ctx, a, nil))
		case slices.Contains(p.release, ip):
			errs = append(errs, r.setReleased(ctx, a, &released))
		case slices.Contains(p.free, ip):
			if err := r.local.Delete(ctx, a, kube.Exactly(a)); client.IgnoreNotFound(err) != nil {
				errs = append(errs, fmt.Errorf("free ClusterSetIP %s: %w", ip, err))
			}
		}
	}
	return errors.Join(errs...)
}

// setReleased writes when an address was released; nil: it is in use.
func (r *reconciler) setReleased(ctx context.Context, a *v1alpha1.GlobalAddress, at *metav1.Time) error {
	if a.Spec.ReleasedAt.Equal(at) {
		return nil
	}
	before := a.DeepCopy()
	a.Spec.ReleasedAt = at
	if err := r.local.Patch(ctx, a, kube.MergeFrom(before)); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write GlobalAddress %s: %w", a.Name, err)
	}
	return nil
}

// vipService is the service whose ClusterSetIP a GlobalAddress keeps.
func vipService(a *v1alpha1.GlobalAddress) []string {
	if a.Spec.Owner.Kind != mcs.ServiceImportKindName {
		return nil
	}
	return []string{types.NamespacedName{Namespace: a.Spec.Owner.Namespace, Name: a.Spec.Owner.Name}.String()}
}

// ofVIP requests the service of a GlobalAddress: its export may have gone while no agent ran.
func ofVIP(_ context.Context, obj client.Object) []reconcile.Request {
	a, ok := obj.(*v1alpha1.GlobalAddress)
	if !ok || vipService(a) == nil {
		return nil
	}
	return []reconcile.Request{request(a.Spec.Owner.Namespace, a.Spec.Owner.Name)}
}
