package services

import (
	"fmt"
	"slices"
	"strings"

	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// audienceOf reads the clusters to which an export is restricted.
func audienceOf(export *mcs.ServiceExport) (a topology.Audience, restricted bool, err error) {
	text, restricted := export.Annotations[v1alpha1.AnnotationExportTo]
	if !restricted {
		return a, false, nil
	}
	if a, err = topology.ParseAudience(text); err != nil {
		err = fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationExportTo, err)
	}
	return a, true, err
}

// exportTo returns the clusters of an audience, the own one among them, and the message of
// condition Valid.
func (c cluster) exportTo(a topology.Audience, members map[string]map[string]string) (to []string, message string) {
	to = append(a.Named(), c.id)
	for id, labels := range members {
		if a.Includes(id, labels) {
			to = append(to, id)
		}
	}
	slices.Sort(to)
	to = slices.Compact(to)
	others := slices.DeleteFunc(slices.Clone(to), func(id string) bool { return id == c.id })
	message = "the Service can be exported"
	if len(others) > 0 {
		message += ", to " + list(others)
	} else if members != nil {
		message += ", but its annotation " + v1alpha1.AnnotationExportTo + " selects no other cluster"
	}
	absent := slices.DeleteFunc(others, func(id string) bool { _, member := members[id]; return member })
	if len(absent) > 0 && members != nil {
		message += "; not in the clusterset: " + list(absent)
	}
	return to, message
}

// list names clusters, a few of many.
func list(clusters []string) string {
	const most = 10
	if len(clusters) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(clusters[:most], ", "), len(clusters)-most)
	}
	return strings.Join(clusters, ", ")
}

// exportedTo reports whether a contribution is exported to a cluster.
func exportedTo(x v1alpha1.ServiceContribution, id string) bool {
	return len(x.Spec.ExportTo) == 0 || x.Spec.Cluster == id || slices.Contains(x.Spec.ExportTo, id)
}

// meeting returns the contributions that at least one cluster imports together with that of cluster
// id. Others cannot conflict with it.
func meeting(contributions []v1alpha1.ServiceContribution, id string) []v1alpha1.ServiceContribution {
	own := slices.IndexFunc(contributions, func(x v1alpha1.ServiceContribution) bool { return x.Spec.Cluster == id })
	if own < 0 {
		return nil
	}
	audience := contributions[own].Spec.ExportTo
	return slices.DeleteFunc(slices.Clone(contributions), func(x v1alpha1.ServiceContribution) bool {
		return len(audience) > 0 && !slices.ContainsFunc(audience, func(id string) bool { return exportedTo(x, id) })
	})
}
