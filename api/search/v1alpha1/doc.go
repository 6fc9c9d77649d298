// Package v1alpha1 holds the kind of the API group search.karmada.io: ResourceRegistry, which
// objects of members are searched.
//
// +kubebuilder:object:generate=true
// +groupName=search.karmada.io
package v1alpha1
