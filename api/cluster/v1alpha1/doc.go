// Package v1alpha1 holds the kind of the API group cluster.karmada.io: Cluster, a member that runs
// workloads.
//
// The names are those that users of Karmada already have in their manifests, scripts and
// dashboards. This package contains only types, names, functions that read a single object, and
// sums of reported amounts.
//
// +kubebuilder:object:generate=true
// +groupName=cluster.karmada.io
package v1alpha1
