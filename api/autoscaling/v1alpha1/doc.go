// Package v1alpha1 holds the kinds of the API group autoscaling.karmada.io: replicas by metrics and
// by time, over all clusters.
//
// +kubebuilder:object:generate=true
// +groupName=autoscaling.karmada.io
package v1alpha1
