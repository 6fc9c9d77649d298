package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// PropagationPolicy sends templates of its namespace to clusters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Namespaced,shortName=pp,categories=karmada-io
// +kubebuilder:printcolumn:name="CONFLICT-RESOLUTION",type=string,JSONPath=`.spec.conflictResolution`
// +kubebuilder:printcolumn:name="PRIORITY",type=string,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type PropagationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PropagationSpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// ClusterPropagationPolicy sends templates of all namespaces that are not reserved, and those
// without namespace, to clusters.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cpp,categories=karmada-io
// +kubebuilder:printcolumn:name="CONFLICT-RESOLUTION",type=string,JSONPath=`.spec.conflictResolution`
// +kubebuilder:printcolumn:name="PRIORITY",type=string,JSONPath=`.spec.priority`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ClusterPropagationPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PropagationSpec `json:"spec"`
	// +optional
	Status PolicyStatus `json:"status,omitempty"`
}

// PropagationSpec defines what goes where.
//
// +kubebuilder:validation:XValidation:rule="!has(self.failover) || !has(self.failover.application) || (has(self.propagateDeps) && self.propagateDeps) || self.resourceSelectors.exists(s, s.kind == 'ServiceImport' && s.apiVersion.startsWith('multicluster.x-k8s.io/'))",message="application failover is set, propagateDeps must be true",fieldPath=.propagateDeps
// +kubebuilder:validation:XValidation:rule="!has(self.preemption) || self.preemption != 'Always' || self.resourceSelectors.all(s, has(s.name) && s.name.size() > 0)",message="name cannot be empty if preemption is Always, the empty name may cause unexpected resources preemption",fieldPath=.resourceSelectors
type PropagationSpec struct {
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1000
	ResourceSelectors []ResourceSelector `json:"resourceSelectors"`
	// Association is the former name of PropagateDeps.
	//
	// +optional
	Association bool `json:"association,omitempty"`
	// PropagateDeps sends along what the template refers to.
	//
	// +optional
	PropagateDeps bool `json:"propagateDeps,omitempty"`
	// +optional
	Placement Placement `json:"placement,omitempty"`
	// Priority decides between policies that select the same template; higher wins.
	//
	// +optional
	// +kubebuilder:default=0
	Priority int32 `json:"priority,omitempty"`
	// Preemption Always takes templates away from policies of lower priority.
	//
	// +optional
	// +kubebuilder:default=Never
	Preemption PreemptionBehavior `json:"preemption,omitempty"`
	// DependentOverrides are OverridePolicies without which the policy does nothing.
	//
	// +optional
	// +listType=atomic
	DependentOverrides []string `json:"dependentOverrides,omitempty"`
	// +optional
	// +kubebuilder:default=default-scheduler
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the schedulerName should not be updated"
	SchedulerName string `json:"schedulerName,omitempty"`
	// +optional
	Failover *FailoverBehavior `json:"failover,omitempty"`
	// ConflictResolution defines what happens if the object exists in a member already.
	//
	// +optional
	// +kubebuilder:default=Abort
	ConflictResolution ConflictResolution `json:"conflictResolution,omitempty"`
	// ActivationPreference Lazy lets a change of the policy wait for the next change of the
	// template.
	//
	// +optional
	ActivationPreference ActivationPreference `json:"activationPreference,omitempty"`
	// +optional
	Suspension *Suspension `json:"suspension,omitempty"`
	// PreserveResourcesOnDeletion leaves the objects in members when the template is deleted.
	//
	// +optional
	PreserveResourcesOnDeletion *bool `json:"preserveResourcesOnDeletion,omitempty"`
	// +optional
	SchedulePriority *SchedulePriority `json:"schedulePriority,omitempty"`
}

// DefaultSchedulerName is the scheduler of the hub itself; bindings of others are left alone.
const DefaultSchedulerName = "default-scheduler"

// PreemptionBehavior defines whether a policy takes templates from others.
//
// +kubebuilder:validation:Enum=Always;Never
type PreemptionBehavior string

const (
	PreemptAlways PreemptionBehavior = "Always"
	PreemptNever  PreemptionBehavior = "Never"
)

// ConflictResolution defines whether an object that exists in a member is taken over.
//
// +kubebuilder:validation:Enum=Abort;Overwrite
type ConflictResolution string

const (
	ConflictAbort     ConflictResolution = "Abort"
	ConflictOverwrite ConflictResolution = "Overwrite"
)

// ActivationPreference defines when a change of a policy takes effect; at once if empty.
//
// +kubebuilder:validation:Enum=Lazy
type ActivationPreference string

// LazyActivation waits for the next change of the template.
const LazyActivation ActivationPreference = "Lazy"

// Suspension stops writing to members; what exists there stays.
//
// +kubebuilder:validation:XValidation:rule="!has(self.dispatching) || !self.dispatching || !has(self.dispatchingOnClusters) || !has(self.dispatchingOnClusters.clusterNames) || self.dispatchingOnClusters.clusterNames.size() == 0",message="suspension dispatching cannot co-exist with dispatchingOnClusters.clusterNames"
type Suspension struct {
	// Dispatching true stops writing to all clusters.
	//
	// +optional
	Dispatching *bool `json:"dispatching,omitempty"`
	// DispatchingOnClusters stops writing to these clusters.
	//
	// +optional
	DispatchingOnClusters *SuspendClusters `json:"dispatchingOnClusters,omitempty"`
}

// SuspendClusters lists clusters.
type SuspendClusters struct {
	// +optional
	// +listType=atomic
	ClusterNames []string `json:"clusterNames,omitempty"`
}

// PriorityClassSource is where a priority class is looked up.
//
// +kubebuilder:validation:Enum=KubePriorityClass
type PriorityClassSource string

// KubePriorityClass is a PriorityClass of the hub, scheduling.k8s.io/v1.
const KubePriorityClass PriorityClassSource = "KubePriorityClass"

// SchedulePriority orders bindings that wait for the scheduler.
type SchedulePriority struct {
	PriorityClassSource PriorityClassSource `json:"priorityClassSource"`
	PriorityClassName   string              `json:"priorityClassName"`
}

// PolicyStatus of all policies reports whether the policy can work; see ConditionAccepted.
type PolicyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PropagationPolicyList is a list of PropagationPolicies.
//
// +kubebuilder:object:root=true
type PropagationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PropagationPolicy `json:"items"`
}

// ClusterPropagationPolicyList is a list of ClusterPropagationPolicies.
//
// +kubebuilder:object:root=true
type ClusterPropagationPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ClusterPropagationPolicy `json:"items"`
}
