package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Accepted reports whether an administrator of the hub lets workloads come to the cluster.
func (c *Cluster) Accepted() bool {
	return !slices.ContainsFunc(c.Spec.Taints, func(t Taint) bool { return t.Key == TaintUnapproved })
}

// Takes reports whether the hub sends anything to the cluster, and asks it for users: it is accepted,
// not refused, and stays. What it has been sent before stays there, as after `clusters reject`.
func (c *Cluster) Takes() bool {
	return c.DeletionTimestamp == nil && c.Spec.SyncMode != "" && c.Accepted() && !c.Refused()
}

// Ready is the condition of that type, nil if it is not set yet.
func (c *Cluster) Ready() *metav1.Condition {
	return meta.FindStatusCondition(c.Status.Conditions, ConditionReady)
}

// SetReady sets the condition Ready, and reports whether it changed. A change between False and
// Unknown keeps lastTransitionTime, so that it remains the time since which the cluster has not
// been ready.
func (s *ClusterStatus) SetReady(ready metav1.Condition) (changed bool) {
	before := meta.FindStatusCondition(s.Conditions, ConditionReady)
	if before != nil && before.Status != metav1.ConditionTrue && ready.Status != metav1.ConditionTrue {
		ready.LastTransitionTime = before.LastTransitionTime
	}
	return meta.SetStatusCondition(&s.Conditions, ready)
}

// Refused reports whether the hub refuses the Cluster as a member because of its spec.id.
func (c *Cluster) Refused() bool {
	r := c.Ready()
	return r != nil && (r.Reason == ReasonClusterIDTaken || r.Reason == ReasonClusterIsHub)
}

// Member reports whether the Cluster is a member of the hub: it has the hub's finalizer and is not
// refused. It remains one until its removal has ended.
func (c *Cluster) Member() bool {
	return slices.Contains(c.Finalizers, FinalizerCluster) && !c.Refused()
}

// Serves reports whether a kind of an apiVersion is among what a cluster reports in
// status.apiEnablements.
func Serves(reported []APIEnablement, apiVersion, kind string) bool {
	return slices.ContainsFunc(reported, func(e APIEnablement) bool {
		return e.GroupVersion == apiVersion && slices.ContainsFunc(e.Resources, func(r APIResource) bool { return r.Kind == kind })
	})
}
