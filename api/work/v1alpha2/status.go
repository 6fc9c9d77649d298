package v1alpha2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ResourceBindingStatus is what has become of the decision.
type ResourceBindingStatus struct {
	// SchedulerObservedGeneration is the generation of the binding that was last decided on.
	//
	// +optional
	SchedulerObservedGeneration int64 `json:"schedulerObservedGeneration,omitempty"`
	// SchedulerObservedAffinityName is the group of clusterAffinities that was chosen; the field
	// has another name than in Go.
	//
	// +optional
	SchedulerObservedAffinityName string `json:"schedulerObservingAffinityName,omitempty"`
	// +optional
	LastScheduledTime *metav1.Time `json:"lastScheduledTime,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// AggregatedStatus is sorted by cluster.
	//
	// +optional
	// +listType=atomic
	AggregatedStatus []AggregatedStatusItem `json:"aggregatedStatus,omitempty"`
}

// AggregatedStatusItem is the state of the object in one cluster.
type AggregatedStatusItem struct {
	ClusterName string `json:"clusterName"`
	// Status is what the interpreter reflects of the object's status.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status *runtime.RawExtension `json:"status,omitempty"`
	// +optional
	Applied bool `json:"applied,omitempty"`
	// AppliedMessage reports why it is not applied.
	//
	// +optional
	AppliedMessage string `json:"appliedMessage,omitempty"`
	// +optional
	Health ResourceHealth `json:"health,omitempty"`
	// UnschedulablePods is how many pods of a Deployment no node of the cluster can run, and
	// UnschedulableSince when the last of them became so. They are not in Karmada.
	//
	// +optional
	UnschedulablePods int32 `json:"unschedulablePods,omitempty"`
	// +optional
	UnschedulableSince *metav1.Time `json:"unschedulableSince,omitempty"`
}

// ResourceHealth is the interpreter's result for an object.
//
// +kubebuilder:validation:Enum=Healthy;Unhealthy;Unknown
type ResourceHealth string

const (
	ResourceHealthy   ResourceHealth = "Healthy"
	ResourceUnhealthy ResourceHealth = "Unhealthy"
	ResourceUnknown   ResourceHealth = "Unknown"
)
