package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ClusterTaintPolicy sets and removes taints of clusters by their conditions. Taints stay when the
// policy is deleted.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=karmada-io,path=clustertaintpolicies
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterTaintPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterTaintPolicySpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// ClusterTaintPolicySpec are clusters, conditions and taints. The conditions for adding are
// evaluated before those for removing.
//
// +kubebuilder:validation:XValidation:rule="(has(self.addOnConditions) && self.addOnConditions.size() > 0) || (has(self.removeOnConditions) && self.removeOnConditions.size() > 0)",message="both addOnConditions and removeOnConditions can not be empty"
type ClusterTaintPolicySpec struct {
	// TargetClusters are the clusters of the policy; all if unset.
	//
	// +optional
	TargetClusters *ClusterAffinity `json:"targetClusters,omitempty"`
	// AddOnConditions must all match for the taints to be set; they are never set if there are
	// none.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	AddOnConditions []MatchCondition `json:"addOnConditions,omitempty"`
	// RemoveOnConditions must all match for the taints to be removed; they are never removed if
	// none exist.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	RemoveOnConditions []MatchCondition `json:"removeOnConditions,omitempty"`
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(t, self.exists_one(u, u.key == t.key && u.effect == t.effect))",message="taints must be unique by key and effect pair"
	Taints []PolicyTaint `json:"taints"`
}

// MatchCondition matches a condition of a cluster by its status.
type MatchCondition struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=316
	ConditionType string `json:"conditionType"`
	// +kubebuilder:validation:Enum=In;NotIn
	Operator MatchConditionOperator `json:"operator"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=3
	// +kubebuilder:validation:items:Enum=True;False;Unknown
	StatusValues []metav1.ConditionStatus `json:"statusValues"`
}

// MatchConditionOperator compares the status of a condition with a list.
type MatchConditionOperator string

// Operators of a MatchCondition.
const (
	MatchConditionOpIn    MatchConditionOperator = "In"
	MatchConditionOpNotIn MatchConditionOperator = "NotIn"
)

// PolicyTaint is a taint without the time at which it was added.
type PolicyTaint struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// +kubebuilder:validation:Enum=NoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Value string `json:"value,omitempty"`
}

// ClusterTaintPolicyList is a list of ClusterTaintPolicies.
//
// +kubebuilder:object:root=true
type ClusterTaintPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterTaintPolicy `json:"items"`
}
