package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ResourceInterpreterCustomization defines with Lua scripts how objects of a kind are interpreted.
// It takes precedence over the built-in rules.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ric,categories=karmada-io
// +kubebuilder:printcolumn:name="TARGET-API-VERSION",type=string,JSONPath=`.spec.target.apiVersion`
// +kubebuilder:printcolumn:name="TARGET-KIND",type=string,JSONPath=`.spec.target.kind`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceInterpreterCustomization struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ResourceInterpreterCustomizationSpec `json:"spec"`
	// +optional
	Status ResourceInterpreterCustomizationStatus `json:"status,omitempty"`
}

// ResourceInterpreterCustomizationSpec is a kind and its rules.
type ResourceInterpreterCustomizationSpec struct {
	Target         CustomizationTarget `json:"target"`
	Customizations CustomizationRules  `json:"customizations"`
}

// CustomizationTarget is a kind.
type CustomizationTarget struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// CustomizationRules has one script for each operation that is customized.
type CustomizationRules struct {
	// Retention defines `Retain(desiredObj, observedObj)`: the desired object with the fields that
	// are the member's.
	//
	// +optional
	Retention *Script `json:"retention,omitempty"`
	// ReplicaResource defines `GetReplicas(desiredObj)`: the number of replicas, and what each
	// requests for.
	//
	// +optional
	ReplicaResource *Script `json:"replicaResource,omitempty"`
	// ComponentResource defines `GetComponents(desiredObj)`: the components of an object with
	// several pod templates, as a list of {name, replicas, replicaRequirements}. It takes
	// precedence over ReplicaResource: each cluster gets the whole object.
	//
	// +optional
	ComponentResource *Script `json:"componentResource,omitempty"`
	// ReplicaRevision defines `ReviseReplica(desiredObj, desiredReplica)`: the object with that
	// number of replicas.
	//
	// +optional
	ReplicaRevision *Script `json:"replicaRevision,omitempty"`
	// StatusReflection defines `ReflectStatus(observedObj)`: the part of the status that is
	// reported to the hub.
	//
	// +optional
	StatusReflection *Script `json:"statusReflection,omitempty"`
	// StatusAggregation defines `AggregateStatus(desiredObj, statusItems)`: the template with the
	// status of all clusters.
	//
	// +optional
	StatusAggregation *Script `json:"statusAggregation,omitempty"`
	// HealthInterpretation defines `InterpretHealth(observedObj)`: true if healthy.
	//
	// +optional
	HealthInterpretation *Script `json:"healthInterpretation,omitempty"`
	// DependencyInterpretation defines `GetDependencies(desiredObj)`: the objects that the object
	// refers to.
	//
	// +optional
	DependencyInterpretation *Script `json:"dependencyInterpretation,omitempty"`
}

// Script is a whole Lua function, with declaration and body.
type Script struct {
	LuaScript string `json:"luaScript"`
}

// ResourceInterpreterCustomizationStatus reports whether the customization can work; see
// ConditionAccepted.
type ResourceInterpreterCustomizationStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ResourceInterpreterCustomizationList is a list of ResourceInterpreterCustomizations.
//
// +kubebuilder:object:root=true
type ResourceInterpreterCustomizationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ResourceInterpreterCustomization `json:"items"`
}
