package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// LabelClusterID marks objects exchanged through the broker with the id of the cluster that they
// describe.
const LabelClusterID = "submariner-io/clusterID"

// Cluster describes one member of the clusterset. It is written at the hub by `pelago join` with
// the registration credential; no member may change the spec of its own Cluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster ID",type=string,JSONPath=`.spec.cluster_id`
// +kubebuilder:printcolumn:name="Global CIDR",type=string,JSONPath=`.spec.global_cidr`
// +kubebuilder:printcolumn:name="ClusterSetIP CIDR",type=string,priority=1,JSONPath=`.spec.clusterset_ip_cidr`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterSpec `json:"spec"`
	// Status is that of the cluster's own object in itself; the hub and the other clusters have
	// none.
	//
	// +optional
	Status ClusterStatus `json:"status,omitzero"`
}

// ClusterStatus is what a cluster reports of itself.
type ClusterStatus struct {
	// Conditions of the types below.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Condition RangesRegistered: the ranges that the cluster is registered with contain all of which
// its pods and services get addresses. The message names the objects and the remedy.
const (
	ClusterRangesRegistered = "RangesRegistered"
	ReasonRangesRegistered  = "Registered"
	ReasonRangesOutgrown    = "Outgrown"
)

// ClusterSpec is the identity and the address ranges of a member.
//
// +kubebuilder:validation:XValidation:rule="self.cluster_id == oldSelf.cluster_id",message="cluster_id is immutable: unjoin the cluster and join it under the new id"
type ClusterSpec struct {
	// ClusterID is an RFC 1123 label of at most 48 characters.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	ClusterID string `json:"cluster_id"`
	// ColorCodes is accepted for compatibility and has no effect.
	//
	// +optional
	ColorCodes []string `json:"color_codes,omitempty"`
	// ServiceCIDR lists the cluster's service ranges in CIDR notation.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ServiceCIDR []string `json:"service_cidr,omitempty"`
	// ClusterCIDR lists the cluster's pod ranges in CIDR notation.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ClusterCIDR []string `json:"cluster_cidr,omitempty"`
	// GlobalCIDR lists the ranges of the clusterset that `pelago join` allocated to this cluster;
	// empty without globalnet.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	GlobalCIDR []string `json:"global_cidr,omitempty"`
	// ClusterSetIPCIDR lists the ranges of the clusterset from which this cluster allocates
	// ClusterSetIPs, as `pelago join` has allocated them; empty for clusters of releases that had
	// none.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	ClusterSetIPCIDR []string `json:"clusterset_ip_cidr,omitempty"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}
