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
	// NodeLabels are the labels that all nodes have with the same value. This field and those below
	// are not in Karmada.
	//
	// +optional
	NodeLabels map[string]string `json:"nodeLabels,omitempty"`
	// NodePools are the nodes by their other labels, and by their taints.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	NodePools []NodePool `json:"nodePools,omitempty"`
	// UnpooledLabels have too many values for NodePools, which do not contain them.
	//
	// +optional
	// +listType=atomic
	UnpooledLabels []string `json:"unpooledLabels,omitempty"`
	// Quotas are the ResourceQuotas that bound pods.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=500
	Quotas []QuotaSummary `json:"quotas,omitempty"`
}

// MaxNodePools and MaxQuotas bound the lists of a ResourceSummary.
const (
	MaxNodePools = 32
	MaxQuotas    = 500
)

// NodePool is a number of nodes with the same labels and taints.
type NodePool struct {
	Nodes int32 `json:"nodes"`
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are those with effect NoSchedule or NoExecute. A cordoned node has the taint
	// node.kubernetes.io/unschedulable.
	//
	// +optional
	// +listType=atomic
	Taints []corev1.Taint `json:"taints,omitempty"`
	// Free is what the nodes offer together less what their pods request.
	//
	// +optional
	Free corev1.ResourceList `json:"free,omitempty"`
	// Modelings counts the nodes of each class of spec.resourceModels, if there are several nodes.
	//
	// +optional
	// +listType=atomic
	Modelings []AllocatableModeling `json:"modelings,omitempty"`
}

// QuotaSummary is what a ResourceQuota of the cluster leaves.
type QuotaSummary struct {
	Namespace string `json:"namespace"`
	// Scopes select the pods to which it applies: those that match all.
	//
	// +optional
	// +listType=atomic
	Scopes []corev1.ScopedResourceSelectorRequirement `json:"scopes,omitempty"`
	// Left is hard less used, by the quota's names of resources (requests.cpu, pods, …).
	//
	// +optional
	Left corev1.ResourceList `json:"left,omitempty"`
}

// AllocatableModeling counts the nodes of one class.
type AllocatableModeling struct {
	// +kubebuilder:validation:Minimum=0
	Grade uint `json:"grade"`
	Count int  `json:"count"`
}
