package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourceSelector selects templates: by name, else by labels, else all of the kind.
type ResourceSelector struct {
	// +kubebuilder:validation:MaxLength=317
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// Namespace is that of the policy if it has one; a cluster-wide policy without it selects in
	// all namespaces.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// LabelSelector is ignored if Name is set.
	//
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
}

// ClusterAffinity selects clusters: those that match all parts that are set, without the excluded
// ones; all if none is set.
type ClusterAffinity struct {
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// +optional
	FieldSelector *FieldSelector `json:"fieldSelector,omitempty"`
	// +optional
	// +listType=atomic
	ClusterNames []string `json:"clusterNames,omitempty"`
	// ExcludeClusters wins over the other parts.
	//
	// +optional
	// +listType=atomic
	ExcludeClusters []string `json:"exclude,omitempty"`
}

// FieldSelector selects clusters by fields of their spec.
type FieldSelector struct {
	// +optional
	// +listType=atomic
	MatchExpressions []FieldSelectorRequirement `json:"matchExpressions,omitempty"`
}

// Keys of a FieldSelectorRequirement.
const (
	FieldProvider = "provider"
	FieldRegion   = "region"
	FieldZone     = "zone"
)

// FieldSelectorRequirement has the fields of Kubernetes' requirement on nodes and converts to it
// (corev1.NodeSelectorRequirement(r)). A cluster with several zones is in `zone In` if one of them
// is listed, in `zone NotIn` if none is.
type FieldSelectorRequirement struct {
	// +kubebuilder:validation:Enum=provider;region;zone
	Key string `json:"key"`
	// +kubebuilder:validation:Enum=In;NotIn
	Operator corev1.NodeSelectorOperator `json:"operator"`
	// +optional
	// +listType=atomic
	Values []string `json:"values,omitempty"`
}

// ClusterAffinityTerm is a group of clusters with a name.
//
// +kubebuilder:validation:XValidation:rule="!has(self.overflowAffinities) || self.overflowAffinities.size() == 0 || has(self.labelSelector) || has(self.fieldSelector) || (has(self.clusterNames) && self.clusterNames.size() > 0) || (has(self.exclude) && self.exclude.size() > 0)",message="overflowAffinities can only be used together with the inline ClusterAffinity"
// +kubebuilder:validation:XValidation:rule="!has(self.overflowAffinities) || self.overflowAffinities.all(a, a.affinityName != self.affinityName && self.overflowAffinities.exists_one(b, b.affinityName == a.affinityName))",message="overflow affinity name must be unique and must not duplicate the primary group's affinityName",fieldPath=.overflowAffinities
type ClusterAffinityTerm struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	AffinityName    string `json:"affinityName"`
	ClusterAffinity `json:",inline"`
	// OverflowAffinities are used, in this order, when the group itself is full; scaling down
	// removes replicas from them first.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=20
	OverflowAffinities []OverflowClusterAffinity `json:"overflowAffinities,omitempty"`
}

// OverflowClusterAffinity is one tier that a group overflows into.
type OverflowClusterAffinity struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	AffinityName    string `json:"affinityName"`
	ClusterAffinity `json:",inline"`
}
