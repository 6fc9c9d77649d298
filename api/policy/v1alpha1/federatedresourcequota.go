package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FederatedResourceQuota bounds what the workloads of a namespace request in all clusters together.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,categories=karmada-io
// +kubebuilder:printcolumn:name="OVERALL",type=string,JSONPath=`.status.overall`
// +kubebuilder:printcolumn:name="OVERALL_USED",type=string,JSONPath=`.status.overallUsed`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type FederatedResourceQuota struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FederatedResourceQuotaSpec `json:"spec"`
	// +optional
	Status FederatedResourceQuotaStatus `json:"status,omitempty"`
}

// FederatedResourceQuotaSpec are the bounds.
type FederatedResourceQuotaSpec struct {
	Overall corev1.ResourceList `json:"overall"`
	// StaticAssignments are the ResourceQuotas of single clusters.
	//
	// +optional
	// +listType=atomic
	StaticAssignments []StaticClusterAssignment `json:"staticAssignments,omitempty"`
}

// StaticClusterAssignment is the ResourceQuota of a cluster.
type StaticClusterAssignment struct {
	ClusterName string              `json:"clusterName"`
	Hard        corev1.ResourceList `json:"hard"`
}

// FederatedResourceQuotaStatus is what is used.
type FederatedResourceQuotaStatus struct {
	// +optional
	Overall corev1.ResourceList `json:"overall,omitempty"`
	// +optional
	OverallUsed corev1.ResourceList `json:"overallUsed,omitempty"`
	// +optional
	// +listType=atomic
	AggregatedStatus []ClusterQuotaStatus `json:"aggregatedStatus,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ClusterQuotaStatus is what is used in a cluster.
type ClusterQuotaStatus struct {
	ClusterName                string `json:"clusterName"`
	corev1.ResourceQuotaStatus `json:",inline"`
}

// FederatedResourceQuotaList is a list of FederatedResourceQuotas.
//
// +kubebuilder:object:root=true
type FederatedResourceQuotaList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FederatedResourceQuota `json:"items"`
}
