// Package v1alpha2 holds the kinds ResourceBinding and ClusterResourceBinding of the API group
// work.karmada.io: the decision where a template runs, and what has become of it. Version v1alpha1
// of these kinds is not served.
//
// +kubebuilder:object:generate=true
// +groupName=work.karmada.io
package v1alpha2
