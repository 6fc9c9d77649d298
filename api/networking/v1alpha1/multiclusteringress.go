package v1alpha1

import (
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MultiClusterIngress is an Ingress to services of several clusters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=mci,categories=karmada-io,path=multiclusteringresses
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type MultiClusterIngress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec networkingv1.IngressSpec `json:"spec"`
	// +optional
	Status MultiClusterIngressStatus `json:"status,omitempty"`
}

// MultiClusterIngressStatus has the fields of an Ingress's, and where its services are.
type MultiClusterIngressStatus struct {
	networkingv1.IngressStatus `json:",inline"`
	// TrafficBlockClusters get no traffic.
	//
	// +optional
	// +listType=atomic
	TrafficBlockClusters []string `json:"trafficBlockClusters,omitempty"`
	// +optional
	// +listType=atomic
	ServiceLocations []ServiceLocation `json:"serviceLocations,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ServiceLocation lists the clusters of a service.
type ServiceLocation struct {
	Name string `json:"name"`
	// +optional
	// +listType=atomic
	Clusters []string `json:"clusters,omitempty"`
}

// MultiClusterIngressList is a list of MultiClusterIngresses.
//
// +kubebuilder:object:root=true
type MultiClusterIngressList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MultiClusterIngress `json:"items"`
}
