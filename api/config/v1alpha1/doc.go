// Package v1alpha1 holds the kind of the API group config.karmada.io: ResourceInterpreterCustomization, how objects of a
// kind are read and changed.
//
// +kubebuilder:object:generate=true
// +groupName=config.karmada.io
package v1alpha1
