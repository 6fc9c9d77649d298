package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// OverridePolicy changes templates of its namespace on their way to clusters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=op,categories=karmada-io
type OverridePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec OverrideSpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// ClusterOverridePolicy changes templates of all namespaces, and those without namespace, on their
// way to clusters. It is applied before OverridePolicies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cop,categories=karmada-io
type ClusterOverridePolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec OverrideSpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// OverrideSpec defines what is changed for which clusters.
//
// +kubebuilder:validation:XValidation:rule="!has(self.overrideRules) || !has(self.targetCluster)",message="overrideRules and targetCluster can't co-exist",fieldPath=.targetCluster
// +kubebuilder:validation:XValidation:rule="!has(self.overrideRules) || !has(self.overriders) || !((has(self.overriders.plaintext) && self.overriders.plaintext.size() > 0) || (has(self.overriders.imageOverrider) && self.overriders.imageOverrider.size() > 0) || (has(self.overriders.commandOverrider) && self.overriders.commandOverrider.size() > 0) || (has(self.overriders.argsOverrider) && self.overriders.argsOverrider.size() > 0) || (has(self.overriders.labelsOverrider) && self.overriders.labelsOverrider.size() > 0) || (has(self.overriders.annotationsOverrider) && self.overriders.annotationsOverrider.size() > 0) || (has(self.overriders.fieldOverrider) && self.overriders.fieldOverrider.size() > 0))",message="overrideRules and overriders can't co-exist",fieldPath=.overriders
type OverrideSpec struct {
	// ResourceSelectors that are not set select everything.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	ResourceSelectors []ResourceSelector `json:"resourceSelectors,omitempty"`
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1000
	OverrideRules []RuleWithCluster `json:"overrideRules,omitempty"`
	// TargetCluster and Overriders are the former form of one rule.
	//
	// +optional
	TargetCluster *ClusterAffinity `json:"targetCluster,omitempty"`
	// +optional
	Overriders *Overriders `json:"overriders,omitempty"`
}

// RuleWithCluster changes templates for the clusters that match, for all if none are named.
type RuleWithCluster struct {
	// +optional
	TargetCluster *ClusterAffinity `json:"targetCluster,omitempty"`
	Overriders    Overriders       `json:"overriders"`
}

// OverridePolicyList is a list of OverridePolicies.
//
// +kubebuilder:object:root=true
type OverridePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []OverridePolicy `json:"items"`
}

// ClusterOverridePolicyList is a list of ClusterOverridePolicies.
//
// +kubebuilder:object:root=true
type ClusterOverridePolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterOverridePolicy `json:"items"`
}
