package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// ResourceBinding is the decision for one template with a namespace; its name is `<name>-<kind>` in
// lower case.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=rb,categories=karmada-io
// +kubebuilder:printcolumn:name="SCHEDULED",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].status`
// +kubebuilder:printcolumn:name="FULLYAPPLIED",type=string,JSONPath=`.status.conditions[?(@.type=="FullyApplied")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceBindingSpec `json:"spec"`
	// +optional
	Status ResourceBindingStatus `json:"status,omitempty"`
}

// ClusterResourceBinding is the decision for one template without a namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=crb,categories=karmada-io
// +kubebuilder:printcolumn:name="SCHEDULED",type=string,JSONPath=`.status.conditions[?(@.type=="Scheduled")].status`
// +kubebuilder:printcolumn:name="FULLYAPPLIED",type=string,JSONPath=`.status.conditions[?(@.type=="FullyApplied")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterResourceBinding struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceBindingSpec `json:"spec"`
	// +optional
	Status ResourceBindingStatus `json:"status,omitempty"`
}

// ResourceBindingSpec holds what the decision depends on, and the decision in Clusters.
type ResourceBindingSpec struct {
	Resource ObjectReference `json:"resource"`
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`
	// ReplicaRequirements is what each replica requests.
	//
	// +optional
	ReplicaRequirements *ReplicaRequirements `json:"replicaRequirements,omitempty"`
	// Replicas is how many the template requests.
	//
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// Components are the parts of a template that has several kinds of replicas.
	//
	// +optional
	// +listType=atomic
	Components []Component `json:"components,omitempty"`
	// Clusters is where the template runs.
	//
	// +optional
	// +listType=atomic
	Clusters []TargetCluster `json:"clusters,omitempty"`
	// Placement is that of the policy, with its defaults.
	//
	// +optional
	Placement *policyv1alpha1.Placement `json:"placement,omitempty"`
	// +optional
	// +listType=atomic
	GracefulEvictionTasks []GracefulEvictionTask `json:"gracefulEvictionTasks,omitempty"`
	// RequiredBy are the bindings whose templates depend on this one: it goes where they go.
	//
	// +optional
	// +listType=atomic
	RequiredBy []BindingSnapshot `json:"requiredBy,omitempty"`
	// +optional
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	Failover *policyv1alpha1.FailoverBehavior `json:"failover,omitempty"`
	// +optional
	// +kubebuilder:default=Abort
	ConflictResolution policyv1alpha1.ConflictResolution `json:"conflictResolution,omitempty"`
	// RescheduleTriggeredAt later than status.lastScheduledTime requests a fresh decision that
	// ignores the current one.
	//
	// +optional
	RescheduleTriggeredAt *metav1.Time `json:"rescheduleTriggeredAt,omitempty"`
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`
	// +optional
	PreserveResourcesOnDeletion *bool `json:"preserveResourcesOnDeletion,omitempty"`
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
	// +optional
	WorkloadAffinityGroups *WorkloadAffinityGroups `json:"workloadAffinityGroups,omitempty"`
}

// ObjectReference names the template.
type ObjectReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
	// +optional
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// TargetCluster is a cluster and its share.
type TargetCluster struct {
	Name string `json:"name"`
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	// +listType=atomic
	Components []TargetComponent `json:"components,omitempty"`
}

// TargetComponent is a cluster's share of one component.
type TargetComponent struct {
	Name string `json:"name"`
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
}

// BindingSnapshot is another binding and its clusters, but for those that a snapshot before it names.
type BindingSnapshot struct {
	// Namespace is empty for a ClusterResourceBinding.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	// +listType=atomic
	Clusters []TargetCluster `json:"clusters,omitempty"`
}

// Suspension is that of the policy, and that of the scheduler.
type Suspension struct {
	policyv1alpha1.Suspension `json:",inline"`
	// Scheduling true holds the binding before its first decision.
	//
	// +optional
	Scheduling *bool `json:"scheduling,omitempty"`
}

// SchedulePriority is the value of the policy's priority class.
type SchedulePriority struct {
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`
}

// WorkloadAffinityGroups are the groups of the template, as `key=value` of its labels.
type WorkloadAffinityGroups struct {
	// +optional
	AffinityGroup string `json:"affinityGroup,omitempty"`
	// +optional
	AntiAffinityGroup string `json:"antiAffinityGroup,omitempty"`
}

// ResourceBindingList is a list of ResourceBindings.
//
// +kubebuilder:object:root=true
type ResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ResourceBinding `json:"items"`
}

// ClusterResourceBindingList is a list of ClusterResourceBindings.
//
// +kubebuilder:object:root=true
type ClusterResourceBindingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterResourceBinding `json:"items"`
}
