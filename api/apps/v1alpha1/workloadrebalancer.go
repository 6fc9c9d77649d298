package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// WorkloadRebalancer reschedules each of its workloads from scratch, regardless of where it runs
// now, once per generation.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=karmada-io
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkloadRebalancer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec WorkloadRebalancerSpec `json:"spec"`
	// +optional
	Status WorkloadRebalancerStatus `json:"status,omitempty"`
}

// WorkloadRebalancerSpec lists the workloads.
type WorkloadRebalancerSpec struct {
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	Workloads []ObjectReference `json:"workloads"`
	// TTLSecondsAfterFinished is the time between status.finishTime and the deletion of the object;
	// it is kept if unset.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// ObjectReference names a template.
type ObjectReference struct {
	// +kubebuilder:validation:MinLength=1
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Namespace is empty for cluster-scoped templates.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// RebalanceResult is the outcome for one workload; empty while it is tried again.
type RebalanceResult string

const (
	// RebalanceSuccessful: the binding is scheduled again.
	RebalanceSuccessful RebalanceResult = "Successful"
	// RebalanceFailed: it was not; the reason reports why.
	RebalanceFailed RebalanceResult = "Failed"
)

// RebalanceFailedReason is why a workload failed.
type RebalanceFailedReason string

// RebalanceObjectNotFound: the workload has no binding.
const RebalanceObjectNotFound RebalanceFailedReason = "ReferencedBindingNotFound"

// WorkloadRebalancerStatus is the outcome.
type WorkloadRebalancerStatus struct {
	// +optional
	// +listType=atomic
	ObservedWorkloads []ObservedWorkload `json:"observedWorkloads,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// FinishTime is when the last workload had a result.
	//
	// +optional
	FinishTime *metav1.Time `json:"finishTime,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ObservedWorkload is the outcome for one workload.
type ObservedWorkload struct {
	Workload ObjectReference `json:"workload"`
	// +optional
	// +kubebuilder:validation:Enum=Successful;Failed
	Result RebalanceResult `json:"result,omitempty"`
	// +optional
	Reason RebalanceFailedReason `json:"reason,omitempty"`
}

// WorkloadRebalancerList is a list of WorkloadRebalancers.
//
// +kubebuilder:object:root=true
type WorkloadRebalancerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []WorkloadRebalancer `json:"items"`
}
