// Package v1alpha1 holds the kind of the API group remedy.karmada.io: Remedy, actions on clusters
// that have failed.
//
// +kubebuilder:object:generate=true
// +groupName=remedy.karmada.io
package v1alpha1
