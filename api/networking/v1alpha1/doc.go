// Package v1alpha1 holds the kinds of the API group networking.karmada.io: services and ingresses
// of several clusters.
//
// +kubebuilder:object:generate=true
// +groupName=networking.karmada.io
package v1alpha1
