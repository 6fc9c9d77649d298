package v1alpha1

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CronFederatedHPA scales a workload, or changes the bounds of a FederatedHPA, at given times.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=cronfhpa,categories=karmada-io
// +kubebuilder:printcolumn:name="REFERENCE-KIND",type=string,JSONPath=`.spec.scaleTargetRef.kind`
// +kubebuilder:printcolumn:name="REFERENCE-NAME",type=string,JSONPath=`.spec.scaleTargetRef.name`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type CronFederatedHPA struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CronFederatedHPASpec `json:"spec"`
	// +optional
	Status CronFederatedHPAStatus `json:"status,omitempty"`
}

// CronFederatedHPASpec is the target and its rules.
type CronFederatedHPASpec struct {
	// ScaleTargetRef names a workload or a FederatedHPA.
	ScaleTargetRef autoscalingv2.CrossVersionObjectReference `json:"scaleTargetRef"`
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	Rules []CronFederatedHPARule `json:"rules"`
}

// CronFederatedHPARule scales at the times of a schedule.
type CronFederatedHPARule struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=32
	Name string `json:"name"`
	// Schedule has the five fields of cron, or is a descriptor such as @daily; the time zone is
	// timeZone.
	Schedule string `json:"schedule"`
	// TargetReplicas are set if the target is a workload.
	//
	// +optional
	TargetReplicas *int32 `json:"targetReplicas,omitempty"`
	// TargetMinReplicas are set if the target is a FederatedHPA.
	//
	// +optional
	TargetMinReplicas *int32 `json:"targetMinReplicas,omitempty"`
	// TargetMaxReplicas are set if the target is a FederatedHPA.
	//
	// +optional
	TargetMaxReplicas *int32 `json:"targetMaxReplicas,omitempty"`
	// +optional
	// +kubebuilder:default=false
	Suspend *bool `json:"suspend,omitempty"`
	// TimeZone is a name of the IANA time zone database; that of the hub if unset.
	//
	// +optional
	TimeZone *string `json:"timeZone,omitempty"`
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	SuccessfulHistoryLimit *int32 `json:"successfulHistoryLimit,omitempty"`
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=32
	FailedHistoryLimit *int32 `json:"failedHistoryLimit,omitempty"`
}

// CronFederatedHPAStatus is the history of each rule.
type CronFederatedHPAStatus struct {
	// +optional
	// +listType=atomic
	ExecutionHistories []ExecutionHistory `json:"executionHistories,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ExecutionHistory is the history of a rule.
type ExecutionHistory struct {
	RuleName string `json:"ruleName"`
	// +optional
	NextExecutionTime *metav1.Time `json:"nextExecutionTime,omitempty"`
	// +optional
	// +listType=atomic
	SuccessfulExecutions []SuccessfulExecution `json:"successfulExecutions,omitempty"`
	// +optional
	// +listType=atomic
	FailedExecutions []FailedExecution `json:"failedExecutions,omitempty"`
}

// SuccessfulExecution is a time at which a rule was applied.
type SuccessfulExecution struct {
	ScheduleTime  *metav1.Time `json:"scheduleTime"`
	ExecutionTime *metav1.Time `json:"executionTime"`
	// +optional
	AppliedReplicas *int32 `json:"appliedReplicas,omitempty"`
	// +optional
	AppliedMaxReplicas *int32 `json:"appliedMaxReplicas,omitempty"`
	// +optional
	AppliedMinReplicas *int32 `json:"appliedMinReplicas,omitempty"`
}

// FailedExecution is a time at which a rule could not be applied.
type FailedExecution struct {
	ScheduleTime  *metav1.Time `json:"scheduleTime"`
	ExecutionTime *metav1.Time `json:"executionTime"`
	Message       string       `json:"message"`
}

// CronFederatedHPAList is a list of CronFederatedHPAs.
//
// +kubebuilder:object:root=true
type CronFederatedHPAList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CronFederatedHPA `json:"items"`
}
