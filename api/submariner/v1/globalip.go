package v1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterGlobalEgressIPName is the only ClusterGlobalEgressIP that is honoured.
const ClusterGlobalEgressIPName = "cluster-egress.submariner.io"

// Defaults that are applied in memory, never written into a spec.
const (
	DefaultClusterEgressIPs = 8
	DefaultEgressIPs        = 1
)

// ConditionAllocated is the condition type of the three global IP kinds.
const ConditionAllocated = "Allocated"

// Reasons of ConditionAllocated.
const (
	ReasonSuccess                = "Success"
	ReasonIPPoolAllocationFailed = "IPPoolAllocationFailed"
	ReasonInvalidInput           = "InvalidInput"
	ReasonInvalidInstance        = "InvalidInstance"
	ReasonZeroInput              = "ZeroInput"
	// ReasonAwaitingGateways: the address is allocated, but not every ready gateway has it in its
	// tables yet.
	ReasonAwaitingGateways = "AwaitingGateways"
)

// ConditionConflict is True on a GlobalEgressIP that loses pods to an older one of the same rank.
const ConditionConflict = "Conflict"

// Reasons of ConditionConflict.
const (
	ReasonOlderObject = "OlderObject"
	ReasonNoConflict  = "NoConflict"
)

// ConditionNATBehavior is on an egress object with the annotations of NAT behaviour: True if they
// are in effect, False with ReasonInvalidInput if they are invalid, which leaves the default in
// effect.
const ConditionNATBehavior = "NATBehavior"

// ReasonNATBehaviorSet is the reason of ConditionNATBehavior with status True.
const ReasonNATBehaviorSet = "NATBehaviorSet"

// ConditionPortBlocksExhausted is True on a ClusterGlobalEgressIP or GlobalEgressIP all of whose
// port blocks are leased while a node needs more.
const ConditionPortBlocksExhausted = "PortBlocksExhausted"

// Reasons of ConditionPortBlocksExhausted; the first is also that of the Events on the object and
// the Node.
const (
	ReasonAllBlocksLeased = "AllBlocksLeased"
	ReasonBlocksAvailable = "BlocksAvailable"
)

// ClusterGlobalEgressIP sets how many egress IPs the pods and nodes of a cluster share.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cgeip
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.status.allocatedIPs`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.conditions[?(@.type=="Allocated")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterGlobalEgressIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec ClusterGlobalEgressIPSpec `json:"spec,omitempty"`
	// +optional
	Status GlobalEgressIPStatus `json:"status,omitempty"`
}

// ClusterGlobalEgressIPSpec takes the number under both names in use: the API's numGlobalIPs and
// the documentation's numberOfIPs.
//
// +kubebuilder:validation:XValidation:rule="!has(self.numGlobalIPs) || !has(self.numberOfIPs) || self.numGlobalIPs == self.numberOfIPs",message="numGlobalIPs and numberOfIPs are two names of one field: set one, or both to the same number"
type ClusterGlobalEgressIPSpec struct {
	// NumGlobalIPs is the number of egress IPs, 0–20; 8 if neither name is set, 0 means no egress.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	NumGlobalIPs *int `json:"numGlobalIPs,omitempty"`
	// NumberOfIPs is the other name of NumGlobalIPs.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	NumberOfIPs *int `json:"numberOfIPs,omitempty"`
}

// Count is the number of egress IPs requested, the default applied.
func (s ClusterGlobalEgressIPSpec) Count() int {
	switch {
	case s.NumGlobalIPs != nil:
		return *s.NumGlobalIPs
	case s.NumberOfIPs != nil:
		return *s.NumberOfIPs
	}
	return DefaultClusterEgressIPs
}

// ClusterGlobalEgressIPList is a list of ClusterGlobalEgressIPs.
//
// +kubebuilder:object:root=true
type ClusterGlobalEgressIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterGlobalEgressIP `json:"items"`
}

// GlobalEgressIP gives the pods of its namespace, or those that its selector matches, egress IPs of
// their own.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=geip
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.status.allocatedIPs`
// +kubebuilder:printcolumn:name="Allocated",type=string,JSONPath=`.status.conditions[?(@.type=="Allocated")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GlobalEgressIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec GlobalEgressIPSpec `json:"spec,omitempty"`
	// +optional
	Status GlobalEgressIPStatus `json:"status,omitempty"`
}

// GlobalEgressIPSpec defines whose egress it is and how many addresses it has.
type GlobalEgressIPSpec struct {
	// NumberOfIPs is the number of egress IPs, 0–20; 1 if not set, 0 means no egress.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=20
	NumberOfIPs *int `json:"numberOfIPs,omitempty"`
	// PodSelector selects pods of the namespace; all of them if not set.
	//
	// +optional
	PodSelector *metav1.LabelSelector `json:"podSelector,omitempty"`
}

// Count is the number of egress IPs requested, the default applied.
func (s GlobalEgressIPSpec) Count() int {
	if s.NumberOfIPs != nil {
		return *s.NumberOfIPs
	}
	return DefaultEgressIPs
}

// GlobalEgressIPStatus is the status of both egress kinds.
type GlobalEgressIPStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	// +listType=atomic
	AllocatedIPs []string `json:"allocatedIPs,omitempty"`
}

// GlobalEgressIPList is a list of GlobalEgressIPs.
//
// +kubebuilder:object:root=true
type GlobalEgressIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GlobalEgressIP `json:"items"`
}

// TargetType is what a GlobalIngressIP leads to.
//
// +kubebuilder:validation:Enum=ClusterIPService;HeadlessServicePod;HeadlessServiceEndpoints
type TargetType string

// Targets of a GlobalIngressIP.
const (
	ClusterIPService         TargetType = "ClusterIPService"
	HeadlessServicePod       TargetType = "HeadlessServicePod"
	HeadlessServiceEndpoints TargetType = "HeadlessServiceEndpoints"
)

// GlobalIngressIP is the global IP under which other clusters reach an exported service or one pod
// of an exported headless service. The agent creates it; for a headless pod its name is `pod-<pod
// name>`.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=giip
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.status.allocatedIP`
// +kubebuilder:printcolumn:name="Target",type=string,JSONPath=`.spec.target`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GlobalIngressIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GlobalIngressIPSpec `json:"spec"`
	// +optional
	Status GlobalIngressIPStatus `json:"status,omitempty"`
}

// GlobalIngressIPSpec names the target.
type GlobalIngressIPSpec struct {
	Target TargetType `json:"target"`
	// ServiceRef names the exported Service in the same namespace.
	//
	// +optional
	ServiceRef *corev1.LocalObjectReference `json:"serviceRef,omitempty"`
	// PodRef names the pod in the same namespace if the target is HeadlessServicePod.
	//
	// +optional
	PodRef *corev1.LocalObjectReference `json:"podRef,omitempty"`
}

// GlobalIngressIPStatus holds the allocated address.
type GlobalIngressIPStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// +optional
	AllocatedIP string `json:"allocatedIP,omitempty"`
}

// GlobalIngressIPList is a list of GlobalIngressIPs.
//
// +kubebuilder:object:root=true
type GlobalIngressIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GlobalIngressIP `json:"items"`
}
