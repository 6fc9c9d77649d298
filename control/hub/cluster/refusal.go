package cluster

import (
	"fmt"
	"slices"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
)

// refusal says why a Cluster is no member: the reason of its condition Ready and the words; empty if it may be one. all are the
// hub's Clusters, hubID is the UID of the hub's namespace kube-system.
func refusal(c *clusterv1alpha1.Cluster, all []clusterv1alpha1.Cluster, hubID string) (reason, message string) {
	if c.Spec.ID == "" {
		return "", ""
	}
	if c.Spec.ID == hubID {
		return clusterv1alpha1.ReasonClusterIsHub, fmt.Sprintf("cluster %s is the hub itself, which does not run what it distributes: "+
			"delete this Cluster and join another cluster", c.Name)
	}
	for i := range all {
		if other := &all[i]; other.Name != c.Name && other.Spec.ID == c.Spec.ID && precedes(other, c) {
			return clusterv1alpha1.ReasonClusterIDTaken, fmt.Sprintf("this cluster is a member already, as %s (both have spec.id %s): "+
				"delete one of the two Clusters", other.Name, c.Spec.ID)
		}
	}
	return "", ""
}

// precedes says whether a is the member if both are one cluster: who is one already, else the older, else the first by name.
func precedes(a, b *clusterv1alpha1.Cluster) bool {
	if ma, mb := joined(a), joined(b); ma != mb {
		return ma
	}
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

func joined(c *clusterv1alpha1.Cluster) bool {
	return slices.Contains(c.Finalizers, clusterv1alpha1.FinalizerCluster)
}
