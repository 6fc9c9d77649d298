package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Ready is the condition of that type, nil if nobody has set it yet.
func (c *Cluster) Ready() *metav1.Condition {
	return meta.FindStatusCondition(c.Status.Conditions, ConditionReady)
}

// Refused says whether the hub does not take the Cluster as a member, because of its spec.id.
func (c *Cluster) Refused() bool {
	r := c.Ready()
	return r != nil && (r.Reason == ReasonClusterIDTaken || r.Reason == ReasonClusterIsHub)
}

// Member says whether the hub has taken the Cluster as a member: it has its finalizer and is not refused. That stays so until its
// removal has ended.
func (c *Cluster) Member() bool {
	return slices.Contains(c.Finalizers, FinalizerCluster) && !c.Refused()
}
