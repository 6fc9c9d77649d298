package services

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// MergedService is the result for one service.
type MergedService struct {
	Type                  v1alpha1.ContributionType
	Ports                 []v1alpha1.ContributionPort
	SessionAffinity       corev1.ServiceAffinity
	SessionAffinityConfig *corev1.SessionAffinityConfig
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   *string
	Labels                map[string]string
	Annotations           map[string]string
	// Clusters are the exporters whose type is that of the service, sorted. A cluster of the other
	// type is left out: one name cannot be both headless and not.
	Clusters []string
	// Conflicts is empty if all exporters agree; they concern every one of them.
	Conflicts []MergeConflict
}

// Merge merges the contributions to one service; there must be at least one. joined is the time at
// which a cluster came into the clusterset: no export counts as older than that (age), so a newcomer
// cannot take over a service by a timestamp. The order of the contributions does not matter.
func Merge(contributions []v1alpha1.ServiceContribution, joined map[string]time.Time) MergedService {
	all := byAge(contributions, joined)
	oldest := all[0].Spec
	s := MergedService{
		Type:                  oldest.Type,
		SessionAffinity:       oldest.SessionAffinity,
		SessionAffinityConfig: oldest.SessionAffinityConfig,
		InternalTrafficPolicy: oldest.InternalTrafficPolicy,
		TrafficDistribution:   oldest.TrafficDistribution,
		Conflicts:             conflicts(all),
	}
	s.Labels, s.Annotations = importable(oldest)
	for _, c := range all {
		if c.Spec.Type == s.Type {
			s.Clusters = append(s.Clusters, c.Spec.Cluster)
			s.Ports = unite(s.Ports, c.Spec.Ports)
		}
	}
	slices.Sort(s.Clusters)
	return s
}

// byAge sorts a copy, the oldest export first, clusters of one second by id.
func byAge(contributions []v1alpha1.ServiceContribution, joined map[string]time.Time) []v1alpha1.ServiceContribution {
	all := slices.Clone(contributions)
	slices.SortFunc(all, func(a, b v1alpha1.ServiceContribution) int {
		return cmp.Or(age(a, joined).Compare(age(b, joined)), cmp.Compare(a.Spec.Cluster, b.Spec.Cluster))
	})
	return all
}

// published is how much later than its ServiceExport a contribution may be created at the hub for
// the export to count as that old: agents and hub are busy, and their clocks differ.
const published = time.Minute

// age is when a service was exported: not before its cluster joined, nor long before the hub got the
// contribution, whose creationTimestamp no member can choose.
func age(c v1alpha1.ServiceContribution, joined map[string]time.Time) time.Time {
	out := c.Spec.ExportedAt.Time
	for _, floor := range []time.Time{joined[c.Spec.Cluster], c.CreationTimestamp.Add(-published)} {
		if floor.After(out) {
			out = floor
		}
	}
	return out
}

// unite adds the ports of a younger export that clash with no port of an older one, neither in name
// (no name is a name, too) nor in protocol and number.
func unite(older, younger []v1alpha1.ContributionPort) []v1alpha1.ContributionPort {
	ports := older
	for _, p := range younger {
		taken := slices.ContainsFunc(older, func(o v1alpha1.ContributionPort) bool {
			return o.Name == p.Name || o.Protocol == p.Protocol && o.Port == p.Port
		})
		if !taken {
			ports = append(ports, p)
		}
	}
	return ports
}

// OfMembers returns the contributions of clusters that are in the clusterset: those that joined
// has.
func OfMembers(contributions []v1alpha1.ServiceContribution, joined map[string]time.Time) []v1alpha1.ServiceContribution {
	return slices.DeleteFunc(slices.Clone(contributions), func(c v1alpha1.ServiceContribution) bool {
		_, ok := joined[c.Spec.Cluster]
		return !ok
	})
}
