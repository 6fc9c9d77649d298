package cluster

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// named is how many clusters a message names.
const named = 3

// reports are the clusters that reach a cluster in the data plane, and those that do not.
type reports struct{ reach, not []string }

// readReports reads the reports of all members that are ready and accepted, by the name of the
// cluster that they are about.
func readReports(all []clusterv1alpha1.Cluster) map[string]reports {
	about := map[string]reports{}
	for i := range all {
		c := &all[i]
		ready := c.Ready()
		if !c.Member() || !c.Accepted() || ready == nil || ready.Status != metav1.ConditionTrue {
			continue
		}
		for _, path := range c.Status.Network {
			r := about[path.Cluster]
			switch {
			case path.Cluster == c.Name: // no cluster is a witness of itself
			case path.Reachable:
				r.reach = append(r.reach, c.Name)
			default:
				r.not = append(r.not, c.Name)
			}
			about[path.Cluster] = r
		}
	}
	return about
}

// condition is DataPlaneReachable by the majority of the reports on a cluster, True if they are
// equal; nil if none exist.
func (r reports) condition() *metav1.Condition {
	names := func(clusters []string) string {
		slices.Sort(clusters)
		if more := len(clusters) - named; more > 0 {
			return fmt.Sprintf("%s and %d more", strings.Join(clusters[:named], ", "), more)
		}
		return strings.Join(clusters, ", ")
	}
	if len(r.reach)+len(r.not) == 0 {
		return nil
	}
	c := &metav1.Condition{Type: clusterv1alpha1.ConditionDataPlaneReachable}
	switch {
	case len(r.not) == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionTrue, clusterv1alpha1.ReasonPeersReach, "its gateways answer the probes of "+names(r.reach)
	case len(r.reach) == 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, clusterv1alpha1.ReasonNoPeerReaches, "no gateway of it answers the probes of "+names(r.not)
	default:
		c.Status, c.Reason = metav1.ConditionTrue, clusterv1alpha1.ReasonPeersReach
		if len(r.reach) < len(r.not) {
			c.Status, c.Reason = metav1.ConditionFalse, clusterv1alpha1.ReasonFewPeersReach
		}
		c.Message = fmt.Sprintf("its gateways answer the probes of %d of %d clusters: of %s, but not of %s",
			len(r.reach), len(r.reach)+len(r.not), names(r.reach), names(r.not))
	}
	return c
}

// setReachable sets DataPlaneReachable among the conditions of a cluster, or removes it.
func (r reports) setReachable(conditions *[]metav1.Condition) (changed bool) {
	if is := r.condition(); is != nil {
		return meta.SetStatusCondition(conditions, *is)
	}
	return meta.RemoveStatusCondition(conditions, clusterv1alpha1.ConditionDataPlaneReachable)
}
