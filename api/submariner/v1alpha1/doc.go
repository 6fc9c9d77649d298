// Package v1alpha1 holds the kinds by which Pelago is installed declaratively: Broker, Submariner
// and ServiceDiscovery, with the names and fields that users of Submariner's operator have.
// pelago-agent --roles=operator reconciles them (cmd/pelago-agent).
//
// +kubebuilder:object:generate=true
// +groupName=submariner.io
package v1alpha1
