package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
)

// ResourceRegistry selects the objects of members that search and proxying show.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=rr,categories=karmada-io,path=resourceregistries
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceRegistry struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceRegistrySpec `json:"spec"`
	// +optional
	Status ResourceRegistryStatus `json:"status,omitempty"`
}

// ResourceRegistrySpec selects clusters and objects.
type ResourceRegistrySpec struct {
	TargetCluster policyv1alpha1.ClusterAffinity `json:"targetCluster"`
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	ResourceSelectors []ResourceSelector `json:"resourceSelectors"`
	// BackendStore must be unset or empty: nothing is cached.
	//
	// +optional
	BackendStore *BackendStoreConfig `json:"backendStore,omitempty"`
}

// ResourceSelector selects the objects of a kind.
type ResourceSelector struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Namespace is empty for all.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// BackendStoreConfig is where Karmada caches objects. OpenSearch is not supported: Accepted=False.
type BackendStoreConfig struct {
	// +optional
	OpenSearch *OpenSearchConfig `json:"openSearch,omitempty"`
}

// OpenSearchConfig is how OpenSearch is reached.
type OpenSearchConfig struct {
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	Addresses []string `json:"addresses"`
	// SecretRef names the Secret with username and password.
	//
	// +optional
	SecretRef *clusterv1alpha1.SecretReference `json:"secretRef,omitempty"`
}

// ResourceRegistryStatus has the conditions Accepted and KindsServed.
type ResourceRegistryStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ResourceRegistryList is a list of ResourceRegistries.
//
// +kubebuilder:object:root=true
type ResourceRegistryList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ResourceRegistry `json:"items"`
}
