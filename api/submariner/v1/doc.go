// Package v1 holds the kinds of the API group submariner.io that Pelago reads and writes.
//
// The group, the field names, the labels and the condition reasons are those that users of
// Submariner already have in their manifests, scripts and dashboards. Nothing but types and names
// lives here.
//
// +kubebuilder:object:generate=true
// +groupName=submariner.io
package v1
