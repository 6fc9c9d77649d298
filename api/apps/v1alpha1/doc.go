// Package v1alpha1 holds the kind of the API group apps.karmada.io: WorkloadRebalancer, which has
// workloads scheduled again.
//
// +kubebuilder:object:generate=true
// +groupName=apps.karmada.io
package v1alpha1
