// Package v1alpha1 holds the kind Work of the API group work.karmada.io: what one cluster is to
// hold. Bindings, the other kinds of the group, are in package v1alpha2: each kind is served in
// exactly one version.
//
// +kubebuilder:object:generate=true
// +groupName=work.karmada.io
package v1alpha1
