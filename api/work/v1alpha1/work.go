package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Work holds one cluster's copy of one template; its namespace is the execution namespace of the
// cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=wk,categories=karmada-io
// +kubebuilder:printcolumn:name="APPLIED",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].status`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Work struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkSpec `json:"spec"`
	// +optional
	Status WorkStatus `json:"status,omitempty"`
}

// WorkSpec holds the objects.
type WorkSpec struct {
	// +optional
	Workload WorkloadTemplate `json:"workload,omitempty"`
	// SuspendDispatching leaves the member as it is.
	//
	// +optional
	SuspendDispatching *bool `json:"suspendDispatching,omitempty"`
	// PreserveResourcesOnDeletion leaves the objects in the member when the Work is deleted.
	//
	// +optional
	PreserveResourcesOnDeletion *bool `json:"preserveResourcesOnDeletion,omitempty"`
}

// WorkloadTemplate lists objects; the hub writes exactly one. Several are applied in their order.
type WorkloadTemplate struct {
	// +optional
	// +listType=atomic
	Manifests []Manifest `json:"manifests,omitempty"`
}

// Manifest is an object as the member is to hold it.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Manifest struct {
	runtime.RawExtension `json:",inline"`
}

// WorkStatus is what the member has.
type WorkStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	// +listType=atomic
	ManifestStatuses []ManifestStatus `json:"manifestStatuses,omitempty"`
	// Scaling is the answer to the annotation pelago.io/scaling, for a FederatedHPA.
	//
	// +optional
	Scaling *ScalingStatus `json:"scaling,omitempty"`
	// Unschedulable are the pods of a Deployment that no node of the member can run; nil: none.
	//
	// +optional
	Unschedulable *UnschedulablePods `json:"unschedulable,omitempty"`
}

// UnschedulablePods are pods with the condition PodScheduled=False, reason Unschedulable.
type UnschedulablePods struct {
	Pods int32 `json:"pods"`
	// Since is when the last of them became so.
	Since metav1.Time `json:"since"`
}

// ManifestStatus is the state of one object in the member.
type ManifestStatus struct {
	Identifier ResourceIdentifier `json:"identifier"`
	// Status is what the interpreter reflects of the object's status.
	//
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status *runtime.RawExtension `json:"status,omitempty"`
	// +optional
	Health ResourceHealth `json:"health,omitempty"`
}

// ResourceIdentifier names an object in the member and its place in spec.workload.manifests.
type ResourceIdentifier struct {
	Ordinal int `json:"ordinal"`
	// +optional
	Group   string `json:"group,omitempty"`
	Version string `json:"version"`
	Kind    string `json:"kind"`
	// Resource is the plural name in paths.
	Resource string `json:"resource"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
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

// WorkList is a list of Works.
//
// +kubebuilder:object:root=true
type WorkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Work `json:"items"`
}
