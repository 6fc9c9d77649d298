package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PlacementScore is the value of a cluster under the name of a score, such as its free GPUs, its
// price or its carbon intensity. Propagation policies weigh scores with the annotation
// pelago.io/scores. It lies at the hub and is named `<score>.<cluster>`, so there is one for each.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=pelago
// +kubebuilder:printcolumn:name="Score",type=string,JSONPath=`.spec.score`
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.cluster`
// +kubebuilder:printcolumn:name="Value",type=integer,JSONPath=`.spec.value`
// +kubebuilder:printcolumn:name="Valid-Until",type=string,JSONPath=`.spec.validUntil`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name == self.spec.score + '.' + self.spec.cluster",message="the name must be <spec.score>.<spec.cluster>"
type PlacementScore struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PlacementScoreSpec `json:"spec"`
}

// PlacementScoreSpec is one value.
type PlacementScoreSpec struct {
	// Score is the name by which policies refer to it.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Score string `json:"score"`
	// Cluster is the name of a cluster.
	//
	// +kubebuilder:validation:MaxLength=48
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Cluster string `json:"cluster"`
	// Value of the cluster, in the unit of the score.
	//
	// +kubebuilder:validation:Minimum=-1000000
	// +kubebuilder:validation:Maximum=1000000
	Value int32 `json:"value"`
	// ValidUntil is when the value does not count any longer; unset: never.
	//
	// +optional
	ValidUntil *metav1.Time `json:"validUntil,omitempty"`
}

// PlacementScoreList is a list of PlacementScores.
//
// +kubebuilder:object:root=true
type PlacementScoreList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PlacementScore `json:"items"`
}
