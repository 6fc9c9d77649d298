// Package v1alpha1 holds the kinds of the API group policy.karmada.io: which templates go to which
// clusters, and how they differ there.
//
// The names are those that users of Karmada already have in their manifests. Besides types and
// names there are pure functions over one object: Defaulted fills in, in memory, what an API server
// cannot, and Validate finds what it cannot refuse.
//
// +kubebuilder:object:generate=true
// +groupName=policy.karmada.io
package v1alpha1
