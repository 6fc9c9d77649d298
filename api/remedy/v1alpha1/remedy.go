package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Remedy requires actions on clusters whose conditions match.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=karmada-io,path=remedies
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Remedy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec RemedySpec `json:"spec"`
	// +optional
	Status RemedyStatus `json:"status,omitempty"`
}

// RemedySpec are clusters, conditions and actions.
type RemedySpec struct {
	// ClusterAffinity are the clusters; all if unset.
	//
	// +optional
	ClusterAffinity *ClusterAffinity `json:"clusterAffinity,omitempty"`
	// DecisionMatches: one of them must match; the actions are required at once if none exist.
	//
	// +optional
	// +listType=atomic
	DecisionMatches []DecisionMatch `json:"decisionMatches,omitempty"`
	// +optional
	// +listType=atomic
	Actions []RemedyAction `json:"actions,omitempty"`
}

// RemedyAction is what is done: TrafficControl.
type RemedyAction string

// TrafficControl asks controllers of traffic to keep it away from a cluster.
const TrafficControl RemedyAction = "TrafficControl"

// ClusterAffinity names clusters.
type ClusterAffinity struct {
	// +optional
	// +listType=atomic
	ClusterNames []string `json:"clusterNames,omitempty"`
}

// DecisionMatch matches clusters.
type DecisionMatch struct {
	// +optional
	ClusterConditionMatch *ClusterConditionRequirement `json:"clusterConditionMatch,omitempty"`
}

// ClusterConditionOperator compares the status of a condition.
type ClusterConditionOperator string

// ClusterConditionEqual is one operator; the other one is NotEqual.
const ClusterConditionEqual ClusterConditionOperator = "Equal"

// ClusterConditionRequirement matches a condition of a cluster.
type ClusterConditionRequirement struct {
	// +kubebuilder:validation:Enum=ServiceDomainNameResolutionReady
	ConditionType string `json:"conditionType"`
	// +kubebuilder:validation:Enum=Equal;NotEqual
	Operator        ClusterConditionOperator `json:"operator"`
	ConditionStatus string                   `json:"conditionStatus"`
}

// RemedyStatus reports whether the Remedy has an effect.
type RemedyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// RemedyList is a list of Remedies.
//
// +kubebuilder:object:root=true
type RemedyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Remedy `json:"items"`
}
