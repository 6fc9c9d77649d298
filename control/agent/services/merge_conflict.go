package services

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
)

// MergeConflict is one property in which exporters disagree.
type MergeConflict struct {
	Reason  mcs.ServiceExportConditionReason
	Message string // which export decides and how many disagree
}

// ConflictReasons joins the reasons of several conflicts with commas, as the MCS API wants them.
func ConflictReasons(conflicts []MergeConflict) string {
	reasons := make([]string, len(conflicts))
	for i, c := range conflicts {
		reasons[i] = string(c.Reason)
	}
	return strings.Join(reasons, ",")
}

// ConflictMessages joins the messages of several conflicts.
func ConflictMessages(conflicts []MergeConflict) string {
	messages := make([]string, len(conflicts))
	for i, c := range conflicts {
		messages[i] = c.Message
	}
	return strings.Join(messages, "; ")
}

// property is one that exporters should agree in.
type property struct {
	reason  mcs.ServiceExportConditionReason
	name    string
	outcome string // what happens where they do not
	// of returns the value in a form that equality.Semantic compares.
	of func(v1alpha1.ServiceContributionSpec) any
}

const oldestDecides = "its value is used"

// properties stand in the order in which they are reported.
var properties = [...]property{
	{mcs.ServiceExportReasonTypeConflict, "type", "its type is used and the others are left out",
		func(s v1alpha1.ServiceContributionSpec) any { return s.Type }},
	{mcs.ServiceExportReasonPortConflict, "ports", "the import has the union, its ports first",
		func(s v1alpha1.ServiceContributionSpec) any { return portSet(s.Ports) }},
	{mcs.ServiceExportReasonSessionAffinityConflict, "sessionAffinity", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.SessionAffinity }},
	{mcs.ServiceExportReasonSessionAffinityConfigConflict, "sessionAffinityConfig", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.SessionAffinityConfig }},
	{mcs.ServiceExportReasonInternalTrafficPolicyConflict, "internalTrafficPolicy", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.InternalTrafficPolicy }},
	{mcs.ServiceExportReasonTrafficDistributionConflict, "trafficDistribution", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.TrafficDistribution }},
	{mcs.ServiceExportReasonLabelsConflict, "exportedLabels", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.ExportedLabels }},
	{mcs.ServiceExportReasonAnnotationsConflict, "exportedAnnotations", oldestDecides,
		func(s v1alpha1.ServiceContributionSpec) any { return s.ExportedAnnotations }},
	{mcs.ServiceExportReasonIPFamilyConflict, "IP families", "clients of one family reach a part of the clusters only",
		func(s v1alpha1.ServiceContributionSpec) any { return families(s.IPs) }},
}

// conflicts compares contributions, the oldest first, with the oldest.
func conflicts(all []v1alpha1.ServiceContribution) []MergeConflict {
	oldest := all[0].Spec
	var out []MergeConflict
	for _, p := range properties {
		want, differ := p.of(oldest), 0
		for _, c := range all[1:] {
			// If the type differs, all other differences follow from that and are not counted.
			judged := c.Spec.Type == oldest.Type || p.reason == mcs.ServiceExportReasonTypeConflict
			if judged && !equality.Semantic.DeepEqual(want, p.of(c.Spec)) {
				differ++
			}
		}
		if differ > 0 {
			message := fmt.Sprintf("%s: %d/%d clusters disagree with the oldest export, that of cluster %s (%s): %s",
				p.name, differ, len(all), oldest.Cluster, oldest.ExportedAt.UTC().Format(time.RFC3339), p.outcome)
			if left := unmerged(all); p.reason == mcs.ServiceExportReasonPortConflict && len(left) > 0 {
				message += "; not served: " + list(left)
			}
			out = append(out, MergeConflict{Reason: p.reason, Message: message})
		}
	}
	return out
}

// unmerged names the ports that are not in the union, since an older export has their name or
// number for another one.
func unmerged(all []v1alpha1.ServiceContribution) (out []string) {
	var union []v1alpha1.ContributionPort
	for _, c := range all {
		if c.Spec.Type != all[0].Spec.Type {
			continue
		}
		union = unite(union, c.Spec.Ports)
		for _, p := range c.Spec.Ports {
			if !slices.ContainsFunc(union, func(u v1alpha1.ContributionPort) bool {
				return u.Name == p.Name && u.Protocol == p.Protocol && u.Port == p.Port
			}) {
				out = append(out, strings.TrimSpace(fmt.Sprintf("%s %d/%s of cluster %s", p.Name, p.Port, p.Protocol, c.Spec.Cluster)))
			}
		}
	}
	return out
}

// portSet is the ports in an order of their own: exporters agree if they have the same ones,
// however listed.
func portSet(ports []v1alpha1.ContributionPort) []v1alpha1.ContributionPort {
	sorted := slices.Clone(ports)
	slices.SortFunc(sorted, func(a, b v1alpha1.ContributionPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return sorted
}

// families is which IP families the addresses have.
func families(ips []string) (f struct{ V4, V6 bool }) {
	for _, text := range ips {
		if ip, err := netip.ParseAddr(text); err == nil {
			f.V4, f.V6 = f.V4 || ip.Is4(), f.V6 || ip.Is6()
		}
	}
	return f
}
