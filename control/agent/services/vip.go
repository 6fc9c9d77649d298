package services

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

const (
	// clusterSetIPRest is the time between the release of a ClusterSetIP and its allocation to
	// another service.
	clusterSetIPRest = 120 * time.Second
	// claimGrace is how long an exporter waits for the claim of an older one before it claims a
	// ClusterSetIP itself: the agent of the older one may be down, or its range exhausted.
	claimGrace = 10 * time.Second
	// freedGrace is how long a service without address waits before it polls again: other services
	// free theirs.
	freedGrace = time.Minute
)

// vips is what decides on the ClusterSetIP of one service, besides its contributions.
type vips struct {
	joined map[string]time.Time // members, and when they joined
	// ranges are the members' ranges of ClusterSetIPs.
	ranges map[string][]netip.Prefix
	// rivals are contributions to other services that name the same ClusterSetIP as a contribution
	// to this service.
	rivals []v1alpha1.ServiceContribution
}

// chosenVIP is the ClusterSetIP of a service.
type chosenVIP struct {
	ip   netip.Addr // not valid: none
	from string     // the cluster whose contribution decides
	// refused are the addresses that contributions name and that cannot be used, and why.
	refused []string
}

// choose returns the ClusterSetIP of a service: that of the oldest contribution with a valid one.
// The other exporters copy it into their contributions, so it stays when the oldest export goes.
// The result depends on the arguments only, so all clusters agree.
func (v vips) choose(contributions []v1alpha1.ServiceContribution) chosenVIP {
	var c chosenVIP
	contributions = claims(OfMembers(contributions, v.joined))
	for _, x := range byAge(contributions, v.joined) {
		ip, why := v.valid(x, contributions)
		switch {
		case why != "":
			c.refused = append(c.refused, fmt.Sprintf("%s of cluster %s %s", x.Spec.ClusterSetIP, x.Spec.Cluster, why))
		case !c.ip.IsValid():
			c.ip, c.from = ip, x.Spec.Cluster
		}
	}
	return c
}

// claims are the contributions that name a ClusterSetIP.
func claims(contributions []v1alpha1.ServiceContribution) []v1alpha1.ServiceContribution {
	return slices.DeleteFunc(contributions, func(x v1alpha1.ServiceContribution) bool {
		return x.Spec.ClusterSetIP == "" || x.Spec.Type != v1alpha1.ContributionClusterSetIP
	})
}

// valid returns the ClusterSetIP of a contribution, or why the service cannot have it. of are the
// contributions to the service. If two services claim the same address, the one to which the
// range's owner contributes gets it, else the one with the oldest contribution that names it.
func (v vips) valid(x v1alpha1.ServiceContribution, of []v1alpha1.ServiceContribution) (ip netip.Addr, why string) {
	ip, err := netip.ParseAddr(x.Spec.ClusterSetIP)
	if err != nil || !ip.Is4() {
		return ip, "is no IPv4 address"
	}
	owner := v.owner(ip)
	if owner == "" {
		return ip, "lies in no cluster's range of ClusterSetIPs"
	}
	names := func(c v1alpha1.ServiceContribution) bool { return c.Spec.ClusterSetIP != ip.String() }
	holder := slices.MinFunc(slices.Concat(
		slices.DeleteFunc(slices.Clone(of), names), slices.DeleteFunc(claims(OfMembers(v.rivals, v.joined)), names), []v1alpha1.ServiceContribution{x},
	), func(a, b v1alpha1.ServiceContribution) int {
		if aOwns, bOwns := a.Spec.Cluster == owner, b.Spec.Cluster == owner; aOwns != bOwns {
			if aOwns {
				return -1
			}
			return 1
		}
		return cmp.Or(
			age(a, v.joined).Compare(age(b, v.joined)), cmp.Compare(a.Spec.Cluster, b.Spec.Cluster),
			cmp.Compare(a.Spec.Namespace, b.Spec.Namespace), cmp.Compare(a.Spec.Service, b.Spec.Service))
	})
	if h := holder.Spec; h.Namespace != x.Spec.Namespace || h.Service != x.Spec.Service {
		return ip, fmt.Sprintf("belongs to service %s/%s of cluster %s, which claimed it before", h.Namespace, h.Service, h.Cluster)
	}
	return ip, ""
}

// owner is the member in whose range an address lies; empty if none exists.
func (v vips) owner(ip netip.Addr) string {
	for cluster, ranges := range v.ranges {
		if _, member := v.joined[cluster]; member && slices.ContainsFunc(ranges, func(p netip.Prefix) bool { return p.Contains(ip) }) {
			return cluster
		}
	}
	return ""
}

// vipState is what an exporter knows of the ClusterSetIP of one service.
type vipState struct {
	vips
	// own is the contribution to be published; nil if the service is not exported, or its export
	// uses no ClusterSetIP.
	own *v1alpha1.ServiceContribution
	// present are all contributions to the service at the hub, also an earlier state of own.
	present []v1alpha1.ServiceContribution
	// records are the addresses of the own range that this cluster keeps for the service.
	records []vipRecord
	// waited: older exporters had claimGrace to claim an address.
	waited bool
	now    time.Time
}

// vipRecord is a GlobalAddress of a service.
type vipRecord struct {
	ip         netip.Addr
	releasedAt time.Time // zero: in use
}

// vipPlan is what an exporter does about the ClusterSetIP of one service.
type vipPlan struct {
	chosenVIP // what to publish; if ip is not valid, nothing
	// claim: an address is to be claimed from the own range.
	claim bool
	// awaits is the older exporter whose claim is awaited; empty if none is.
	awaits string
	// renew are released records that are in use again, release those that no contribution names
	// any more, free those that have rested.
	renew, release, free []netip.Addr
	// wait is the time until the next record has rested; 0 if none rests.
	wait time.Duration
}

// vip plans the ClusterSetIP of one service. The address stays while any cluster exports the
// service: it is released only when no contribution names it, those of other clusters included.
func (c cluster) vip(s vipState) vipPlan {
	var p vipPlan
	if s.own != nil {
		own := *s.own
		own.Spec.ClusterSetIP = s.remembered(c.id)
		all := append(slices.DeleteFunc(slices.Clone(s.present), func(x v1alpha1.ServiceContribution) bool { return x.Spec.Cluster == c.id }), own)
		p.chosenVIP = s.choose(all)
		if first := s.claimant(all); !p.ip.IsValid() && first != "" {
			p.claim = len(s.ranges[c.id]) > 0 && (first == c.id || s.waited)
			if !p.claim && first != c.id {
				p.awaits = first
			}
		}
	}
	for _, r := range s.records {
		named := r.ip == p.ip || slices.ContainsFunc(s.present, func(x v1alpha1.ServiceContribution) bool { return x.Spec.ClusterSetIP == r.ip.String() })
		left := r.releasedAt.Add(clusterSetIPRest).Sub(s.now)
		switch {
		case named && !r.releasedAt.IsZero():
			p.renew = append(p.renew, r.ip)
		case named:
		case r.releasedAt.IsZero():
			p.release = append(p.release, r.ip)
		case left <= 0:
			p.free = append(p.free, r.ip)
		default:
			p.wait = sooner(p.wait, left)
		}
	}
	return p
}

// sooner is the shorter of two times to wait; 0: not at all.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b != 0 && b < a {
		return b
	}
	return a
}

// remembered is the address that the own contribution at the hub names, else the one that this
// cluster holds for the service: the hub's cache may not show the own write yet.
func (s vipState) remembered(id string) string {
	for _, x := range s.present {
		if x.Spec.Cluster == id && x.Spec.ClusterSetIP != "" {
			return x.Spec.ClusterSetIP
		}
	}
	for _, r := range s.records {
		if r.releasedAt.IsZero() {
			return r.ip.String()
		}
	}
	return ""
}

// claimant is the oldest exporter that has a range to claim from.
func (s vipState) claimant(contributions []v1alpha1.ServiceContribution) string {
	for _, x := range byAge(OfMembers(contributions, s.joined), s.joined) {
		if x.Spec.Type == v1alpha1.ContributionClusterSetIP && len(s.ranges[x.Spec.Cluster]) > 0 {
			return x.Spec.Cluster
		}
	}
	return ""
}

// candidates are the addresses of the ranges in the order in which a service tries them. They start
// at a hash of its name, so that a retry after a lost response finds its own claim, and a service
// that is exported again finds its previous address. The first and the last address of a range are
// left out.
func candidates(service types.NamespacedName, ranges []netip.Prefix) iter.Seq[netip.Addr] {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(service.String())) // never fails
	return func(yield func(netip.Addr) bool) {
		for _, r := range ranges {
			size := uint32(1)<<(32-r.Bits()) - 2
			for i := range size {
				if !yield(offset(r, 1+(hash.Sum32()%size+i)%size)) {
					return
				}
			}
		}
	}
}

// offset is address n of an IPv4 range.
func offset(r netip.Prefix, n uint32) netip.Addr {
	b := r.Masked().Addr().As4()
	for i := 3; i >= 0; i-- {
		n += uint32(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	return netip.AddrFrom4(b)
}

// vipCondition is the condition ClusterSetIP of an export; nil if the export uses none. note is why
// the annotation of the export is ignored, failed why no address could be claimed.
func (c cluster) vipCondition(uses bool, p vipPlan, note, failed string) *metav1.Condition {
	if !uses && note == "" {
		return nil
	}
	out := metav1.Condition{Type: v1alpha1.ConditionClusterSetIP, Status: metav1.ConditionFalse}
	switch {
	case !uses:
		out.Reason, out.Message = v1alpha1.ReasonNoClusterSetIP, note
		return &out
	case p.ip.IsValid():
		out.Status, out.Reason, out.Message = metav1.ConditionTrue, v1alpha1.ReasonAllocated, fmt.Sprintf("%s, by the export of cluster %s", p.ip, p.from)
	case failed != "":
		out.Reason, out.Message = v1alpha1.ReasonExhausted, failed
	case p.awaits != "":
		out.Reason, out.Message = v1alpha1.ReasonAwaitingClaim, fmt.Sprintf("cluster %s, whose export is older, has not claimed one yet", p.awaits)
	default: // without a range of its own and without another exporter that has one
		out.Reason, out.Message = v1alpha1.ReasonNoClusterSetIP, "this cluster has no range of ClusterSetIPs: run `pelago deploy-broker` at the hub again, unjoin this cluster and join it"
	}
	for _, text := range append(p.refused, note) {
		if text != "" {
			out.Message += "; ignored: " + text
		}
	}
	return &out
}
