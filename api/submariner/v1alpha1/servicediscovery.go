package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ServiceDiscovery reports the state of service discovery, which a Submariner in the same namespace
// installs. Without a Submariner it is rejected: DNS names and imports depend on the health of the
// gateways.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=servicediscoveries,scope=Namespaced
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ServiceDiscovery struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	//
	// +optional
	Spec ServiceDiscoverySpec `json:"spec,omitempty"`
	// +optional
	Status Status `json:"status,omitempty"`
}

// ServiceDiscoverySpec names the cluster. All other fields are kept, and those of the Submariner
// count.
type ServiceDiscoverySpec struct {
	// ClusterID is that of the Submariner of the namespace.
	//
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
}

// ServiceDiscoveryList is a list of ServiceDiscoveries.
//
// +kubebuilder:object:root=true
type ServiceDiscoveryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ServiceDiscovery `json:"items"`
}
