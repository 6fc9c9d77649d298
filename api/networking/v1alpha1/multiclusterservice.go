package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MultiClusterService exports the hub's Service of this name from its provider clusters to its
// consumer clusters, which reach it as <name>.<namespace>.svc.clusterset.local. Consumers that are
// not providers can also use the Service's own name.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=mcs,categories=karmada-io
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type MultiClusterService struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec MultiClusterServiceSpec `json:"spec"`
	// +optional
	Status MultiClusterServiceStatus `json:"status,omitempty"`
}

// ExposureType is how a service is reached.
type ExposureType string

// Exposure types.
const (
	ExposureTypeCrossCluster ExposureType = "CrossCluster"
	ExposureTypeLoadBalancer ExposureType = "LoadBalancer"
)

// MultiClusterServiceSpec is how the Service is reached, and from where to where.
type MultiClusterServiceSpec struct {
	// Types: CrossCluster; LoadBalancer has no effect yet.
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:Enum=CrossCluster;LoadBalancer
	Types []ExposureType `json:"types"`
	// Ports have no effect: all ports of the Service are exported.
	//
	// +optional
	// +listType=atomic
	Ports []ExposurePort `json:"ports,omitempty"`
	// Range is for the type LoadBalancer.
	//
	// +optional
	Range *ExposureRange `json:"range,omitempty"`
	// ServiceProvisionClusters is the former name of ProviderClusters.
	//
	// +optional
	// +listType=atomic
	ServiceProvisionClusters []string `json:"serviceProvisionClusters,omitempty"`
	// ServiceConsumptionClusters is the former name of ConsumerClusters.
	//
	// +optional
	// +listType=atomic
	ServiceConsumptionClusters []string `json:"serviceConsumptionClusters,omitempty"`
	// ProviderClusters have the backends, and get the Service unless a policy places it; all if
	// unset.
	//
	// +optional
	// +listType=atomic
	ProviderClusters []ClusterSelector `json:"providerClusters,omitempty"`
	// ConsumerClusters reach the service; all if unset.
	//
	// +optional
	// +listType=atomic
	ConsumerClusters []ClusterSelector `json:"consumerClusters,omitempty"`
}

// ExposurePort is a port of the Service.
type ExposurePort struct {
	// +optional
	Name string `json:"name,omitempty"`
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// ExposureRange are the clusters that a load balancer leads to.
type ExposureRange struct {
	// +optional
	// +listType=atomic
	ClusterNames []string `json:"clusterNames,omitempty"`
}

// ClusterSelector names a cluster.
type ClusterSelector struct {
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// MultiClusterServiceStatus has the fields of a Service's.
type MultiClusterServiceStatus struct {
	// +optional
	LoadBalancer corev1.LoadBalancerStatus `json:"loadBalancer,omitempty"`
	// Conditions are ServiceApplied and EndpointSliceDispatched for the type CrossCluster, and
	// Accepted.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MultiClusterServiceList is a list of MultiClusterServices.
//
// +kubebuilder:object:root=true
type MultiClusterServiceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []MultiClusterService `json:"items"`
}
