package v1alpha1

// PurgeMode is what happens to the old copy of a workload that has moved.
type PurgeMode string

const (
	// PurgeModeDirectly deletes it before it is created elsewhere.
	PurgeModeDirectly PurgeMode = "Directly"
	// PurgeModeGracefully deletes it when it is healthy elsewhere, or when the time is up.
	PurgeModeGracefully PurgeMode = "Gracefully"
	// PurgeModeNever leaves it to a human.
	PurgeModeNever PurgeMode = "Never"
)

// Current gives a mode its present name: Immediately and Graciously are the former ones of Directly
// and Gracefully.
func (m PurgeMode) Current() PurgeMode {
	switch m {
	case "Immediately":
		return PurgeModeDirectly
	case "Graciously":
		return PurgeModeGracefully
	}
	return m
}

// FailoverBehavior defines what happens when a workload or a cluster fails; nothing if not set.
type FailoverBehavior struct {
	// +optional
	Application *ApplicationFailoverBehavior `json:"application,omitempty"`
	// +optional
	Cluster *ClusterFailoverBehavior `json:"cluster,omitempty"`
}

// ApplicationFailoverBehavior moves a workload that is unhealthy.
//
// +kubebuilder:validation:XValidation:rule="!has(self.gracePeriodSeconds) || !has(self.purgeMode) || self.purgeMode in ['Gracefully', 'Graciously']",message="only takes effect when purgeMode is gracefully",fieldPath=.gracePeriodSeconds
type ApplicationFailoverBehavior struct {
	DecisionConditions DecisionConditions `json:"decisionConditions"`
	// +optional
	// +kubebuilder:validation:Enum=Directly;Gracefully;Never;Immediately;Graciously
	// +kubebuilder:default=Gracefully
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// GracePeriodSeconds is how long the old copy stays if the workload does not become healthy
	// elsewhere; default 600 with PurgeMode Gracefully.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	GracePeriodSeconds *int32 `json:"gracePeriodSeconds,omitempty"`
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// DecisionConditions define when a workload counts as failed.
type DecisionConditions struct {
	// TolerationSeconds is how long it must have been unhealthy.
	//
	// +optional
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=0
	TolerationSeconds *int32 `json:"tolerationSeconds,omitempty"`
}

// ClusterFailoverBehavior moves a workload whose cluster has failed.
type ClusterFailoverBehavior struct {
	// +optional
	// +kubebuilder:validation:Enum=Directly;Gracefully
	// +kubebuilder:default=Gracefully
	PurgeMode PurgeMode `json:"purgeMode,omitempty"`
	// +optional
	StatePreservation *StatePreservation `json:"statePreservation,omitempty"`
}

// StatePreservation carries values of the old status into labels of the new object.
type StatePreservation struct {
	// +listType=atomic
	Rules []StatePreservationRule `json:"rules"`
}

// StatePreservationRule carries one value.
type StatePreservationRule struct {
	// AliasLabelName is the key of the label.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	AliasLabelName string `json:"aliasLabelName"`
	// JSONPath begins below the object's status, `{.availableReplicas}`.
	JSONPath string `json:"jsonPath"`
}
