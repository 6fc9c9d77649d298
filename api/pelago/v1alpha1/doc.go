// Package v1alpha1 holds the kinds of the API group pelago.io: what neither Submariner nor Karmada
// has a kind for.
//
// In a member the spec of every kind is written by pelago-agent alone; pelago-node writes the
// status of its own NodeIndex and of its own PortBlocks. At the hub a member writes only its own
// ServiceContributions, and users write KindRules. Fields are only ever added.
//
// +kubebuilder:object:generate=true
// +groupName=pelago.io
package v1alpha1
