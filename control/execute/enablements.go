package execute

import (
	"errors"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// enablements are the kinds that discovery has listed, in the order of their names, without subresources, and the condition
// CompleteAPIEnablements, without times. Of groups that could not be discovered the former kinds stay: an aggregated API that is
// away for a moment is no API that the cluster has lost.
func enablements(
	found []*metav1.APIResourceList, err error, former []clusterv1alpha1.APIEnablement,
) ([]clusterv1alpha1.APIEnablement, metav1.Condition) {
	condition := metav1.Condition{Type: clusterv1alpha1.ConditionCompleteAPIEnablements}
	if len(found) == 0 {
		condition.Status, condition.Reason = metav1.ConditionFalse, clusterv1alpha1.ReasonAPIEnablementsEmpty
		condition.Message = "discovery of the kinds that the cluster serves found none"
		if err != nil {
			condition.Message = "discovery of the kinds that the cluster serves failed: " + cause(err)
		}
		return former, condition
	}
	all := map[string]clusterv1alpha1.APIEnablement{}
	for _, list := range found {
		e := clusterv1alpha1.APIEnablement{GroupVersion: list.GroupVersion}
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				e.Resources = append(e.Resources, clusterv1alpha1.APIResource{Name: r.Name, Kind: r.Kind})
			}
		}
		slices.SortFunc(e.Resources, func(a, b clusterv1alpha1.APIResource) int { return strings.Compare(a.Name, b.Name) })
		all[e.GroupVersion] = e
	}
	condition.Status, condition.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonAPIEnablementsComplete
	condition.Message = "all kinds that the cluster serves are listed"
	if err != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, clusterv1alpha1.ReasonAPIEnablementsPartial
		condition.Message = "discovery of some of the kinds that the cluster serves failed: " + cause(err)
		if failed := undiscovered(err); len(failed) > 0 {
			condition.Message = "the cluster serves these groups, but does not say what is in them: " + strings.Join(failed, ", ")
			for _, e := range former {
				if _, listed := all[e.GroupVersion]; !listed && slices.Contains(failed, e.GroupVersion) {
					all[e.GroupVersion] = e
				}
			}
		}
	}
	sorted := make([]clusterv1alpha1.APIEnablement, 0, len(all))
	for _, gv := range slices.Sorted(maps.Keys(all)) {
		sorted = append(sorted, all[gv])
	}
	return sorted, condition
}

// undiscovered are the groups and versions that discovery could not read, sorted.
func undiscovered(err error) []string {
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) {
		return nil
	}
	var names []string
	for gv := range failed.Groups {
		names = append(names, gv.String())
	}
	slices.Sort(names)
	return names
}
