package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterStatus is written by the hub for push members, by the agent for pull members.
type ClusterStatus struct {
	// +optional
	KubernetesVersion string `json:"kubernetesVersion,omitempty"`
	// APIEnablements are the kinds that the cluster serves.
	//
	// +optional
	// +listType=atomic
	APIEnablements []APIEnablement `json:"apiEnablements,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	NodeSummary *NodeSummary `json:"nodeSummary,omitempty"`
	// +optional
	ResourceSummary *ResourceSummary `json:"resourceSummary,omitempty"`
	// RemedyActions are what the Remedies that match the cluster request.
	//
	// +optional
	// +listType=atomic
	RemedyActions []string `json:"remedyActions,omitempty"`
	// Network is which other clusters the data plane of the member reaches. It is Pelago's, and
	// empty without its data plane.
	//
	// +optional
	// +listType=map
	// +listMapKey=cluster
	Network []NetworkPath `json:"network,omitempty"`
}

// NetworkPath is how the data plane of a member sees another cluster.
type NetworkPath struct {
	Cluster string `json:"cluster"`
	// Reachable reports that a gateway of the cluster answers the probes of one of the member's
	// gateways.
	Reachable bool `json:"reachable"`
	// RTT is the mean round-trip time of the probes between the nearest gateways of both, Jitter
	// its standard deviation: durations such as "1.2ms". They change only if the measurement
	// differs by more than a fifth and 1 ms.
	//
	// +optional
	RTT *metav1.Duration `json:"rtt,omitempty"`
	// +optional
	Jitter *metav1.Duration `json:"jitter,omitempty"`
	// LossPercent is the share of lost probes on the best path.
	//
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
}

// APIEnablement is one group and version.
type APIEnablement struct {
	GroupVersion string `json:"groupVersion"`
	// +optional
	// +listType=atomic
	Resources []APIResource `json:"resources,omitempty"`
}

// APIResource is one kind.
type APIResource struct {
	// Name is the plural name in paths.
	Name string `json:"name"`
	Kind string `json:"kind"`
}

// NodeSummary counts nodes.
type NodeSummary struct {
	// +optional
	TotalNum int32 `json:"totalNum,omitempty"`
	// +optional
	ReadyNum int32 `json:"readyNum,omitempty"`
}

// ResourceSummary sums up nodes and pods.
type ResourceSummary struct {
	// Allocatable is what all nodes together offer.
	//
	// +optional
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	// Allocating is what unscheduled pods request.
	//
	// +optional
	Allocating corev1.ResourceList `json:"allocating,omitempty"`
	// Allocated is what scheduled pods request.
	//
	// +optional
	Allocated corev1.ResourceList `json:"allocated,omitempty"`
	// AllocatableModelings counts the nodes of each class of spec.resourceModels.
	//
	// +optional
	// +listType=atomic
	AllocatableModelings []AllocatableModeling `json:"allocatableModelings,omitempty"`
}

// AllocatableModeling counts the nodes of one class.
type AllocatableModeling struct {
	// +kubebuilder:validation:Minimum=0
	Grade uint `json:"grade"`
	Count int  `json:"count"`
}
