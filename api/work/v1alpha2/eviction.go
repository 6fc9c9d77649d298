package v1alpha2

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// GracefulEvictionTask is a cluster that the template is leaving. With reason Failback the cluster
// may also keep a part of its replicas: then it has all of them until the task ends.
type GracefulEvictionTask struct {
	FromCluster string `json:"fromCluster"`
	// +optional
	// +kubebuilder:validation:Enum=Directly;Gracefully;Never;Immediately;Graciously
	PurgeMode policyv1alpha1.PurgeMode `json:"purgeMode,omitempty"`
	// +optional
	Replicas *int32 `json:"replicas,omitempty"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`
	Reason string `json:"reason"`
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message,omitempty"`
	// Producer is the controller that requested it.
	Producer string `json:"producer"`
	// GracePeriodSeconds ends the task at the latest; not together with SuppressDeletion.
	//
	// +optional
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
	// SuppressDeletion true keeps the task until a human sets it to false.
	//
	// +optional
	SuppressDeletion *bool `json:"suppressDeletion,omitempty"`
	// PreservedLabelState goes into the labels of the object in its new cluster.
	//
	// +optional
	PreservedLabelState map[string]string `json:"preservedLabelState,omitempty"`
	// CreationTimestamp is when the hub first saw the task.
	//
	// +optional
	CreationTimestamp *metav1.Time `json:"creationTimestamp,omitempty"`
	// +optional
	// +listType=atomic
	ClustersBeforeFailover []string `json:"clustersBeforeFailover,omitempty"`
}

// ReplicasIn are the replicas that a cluster of the decision has now: those of the decision, or
// more while others return to another one.
func (s *ResourceBindingSpec) ReplicasIn(c TargetCluster) int32 {
	n := c.Replicas
	for i := range s.GracefulEvictionTasks {
		if t := &s.GracefulEvictionTasks[i]; t.FromCluster == c.Name && t.Reason == EvictionReasonFailback && t.Replicas != nil &&
			t.PurgeMode.Current() != policyv1alpha1.PurgeModeDirectly {
			n = max(n, *t.Replicas)
		}
	}
	return n
}

// Suspends reports whether a cluster is not to apply what it gets.
func (s *Suspension) Suspends(cluster string) bool {
	if s == nil {
		return false
	}
	return ptr.Deref(s.Dispatching, false) || s.DispatchingOnClusters != nil && slices.Contains(s.DispatchingOnClusters.ClusterNames, cluster)
}
