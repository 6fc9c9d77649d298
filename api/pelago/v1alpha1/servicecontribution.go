package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ServiceContribution is one cluster's share of one exported service. It lies in the broker
// namespace of the hub, is named `<cluster>.<namespace>.<service>` (three labels, so no two
// services share a name) and is written by that cluster's agent alone. Every agent computes the
// merged ServiceImport from all contributions by the same pure function.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=svcc,categories=pelago
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.spec.service`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.spec.type`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.spec.ips`
// +kubebuilder:printcolumn:name="ClusterSetIP",type=string,JSONPath=`.spec.clusterSetIP`
// +kubebuilder:printcolumn:name="To",type=string,priority=1,JSONPath=`.spec.exportTo`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServiceContribution struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ServiceContributionSpec `json:"spec"`
}

// ContributionType is the type of the exported service, with the values of ServiceImport.spec.type.
//
// +kubebuilder:validation:Enum=ClusterSetIP;Headless
type ContributionType string

// Types of a contribution.
const (
	ContributionClusterSetIP ContributionType = "ClusterSetIP"
	ContributionHeadless     ContributionType = "Headless"
)

// ServiceContributionSpec is what the exporting cluster offers (KEP-1645).
//
// +kubebuilder:validation:XValidation:rule="self.cluster == oldSelf.cluster && self.__namespace__ == oldSelf.__namespace__ && self.service == oldSelf.service",message="cluster, namespace and service are immutable"
type ServiceContributionSpec struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	Cluster string `json:"cluster"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Service string           `json:"service"`
	Type    ContributionType `json:"type"`
	// IPs are the addresses under which other clusters reach the service: its global ingress IP, or
	// its ClusterIP without globalnet; empty for a headless service.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	IPs []string `json:"ips,omitempty"`
	// ClusterSetIP is the service's address in all clusters as this cluster knows it: claimed from
	// the cluster's own range of ClusterSetIPs, or copied from the contribution that decides. Empty
	// for a headless service and without ClusterSetIPs.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=39
	ClusterSetIP string `json:"clusterSetIP,omitempty"`
	// ExportTo are the clusters to which the service is exported, the exporting one among them;
	// empty: all.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=48
	ExportTo []string `json:"exportTo,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Ports []ContributionPort `json:"ports,omitempty"`
	// +optional
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`
	// +optional
	SessionAffinityConfig *corev1.SessionAffinityConfig `json:"sessionAffinityConfig,omitempty"`
	// +optional
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`
	// +optional
	TrafficDistribution *string `json:"trafficDistribution,omitempty"`
	// ExportedAt is the creation time of the ServiceExport; the oldest export wins a conflict.
	ExportedAt metav1.Time `json:"exportedAt"`
	// +optional
	ExportedLabels map[string]string `json:"exportedLabels,omitempty"`
	// +optional
	ExportedAnnotations map[string]string `json:"exportedAnnotations,omitempty"`
}

// ContributionPort is a port of the exported Service.
type ContributionPort struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	AppProtocol *string         `json:"appProtocol,omitempty"`
	Protocol    corev1.Protocol `json:"protocol"`
	Port        int32           `json:"port"`
}

// ServiceContributionList is a list of ServiceContributions.
//
// +kubebuilder:object:root=true
type ServiceContributionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ServiceContribution `json:"items"`
}
