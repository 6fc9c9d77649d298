// Package v1alpha1 holds the kind of the API group cluster.karmada.io: Cluster, a member that runs workloads.
//
// The names are those that users of Karmada already have in their manifests, scripts and dashboards. Nothing but types,
// names, what reads one object of them, and sums of what they report lives here.
//
// +kubebuilder:object:generate=true
// +groupName=cluster.karmada.io
package v1alpha1
