package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Broker makes the cluster the hub of a clusterset, as `pelago deploy-broker` does. The hub stays
// when it is deleted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=brokers,scope=Namespaced
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Broker struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	//
	// +optional
	Spec BrokerSpec `json:"spec,omitempty"`
	// +optional
	Status Status `json:"status,omitempty"`
}

// BrokerSpec is the clusterset. Unknown fields are refused in the condition Degraded.
type BrokerSpec struct {
	// Components are service-discovery and connectivity; none means both.
	//
	// +optional
	// +listType=atomic
	Components []string `json:"components,omitempty"`
	// DefaultCustomDomains are DNS zones that are served in addition to clusterset.local.
	//
	// +optional
	// +listType=atomic
	DefaultCustomDomains []string `json:"defaultCustomDomains,omitempty"`
	// GlobalnetEnabled gives every cluster addresses of its own, so that pod and service ranges may
	// overlap.
	//
	// +optional
	GlobalnetEnabled bool `json:"globalnetEnabled,omitempty"`
	// GlobalnetCIDRRange is what the clusters' GlobalCIDRs are taken from.
	//
	// +optional
	GlobalnetCIDRRange string `json:"globalnetCIDRRange,omitempty"`
	// DefaultGlobalnetClusterSize is the number of addresses of a cluster's GlobalCIDR, rounded up
	// to a power of two.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	DefaultGlobalnetClusterSize int64 `json:"defaultGlobalnetClusterSize,omitempty"`
	// ClustersetIPEnabled gives exported services a ClusterSetIP.
	//
	// +optional
	ClustersetIPEnabled bool `json:"clustersetIPEnabled,omitempty"`
	// ClustersetIPCIDRRange is what the clusters' ranges of ClusterSetIPs are taken from.
	//
	// +optional
	ClustersetIPCIDRRange string `json:"clustersetIPCIDRRange,omitempty"`
}

// BrokerList is a list of Brokers.
//
// +kubebuilder:object:root=true
type BrokerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Broker `json:"items"`
}
