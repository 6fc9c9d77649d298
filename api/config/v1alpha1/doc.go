// Package v1alpha1 holds the kinds of the API group config.karmada.io, which report how objects of
// a kind are read and changed: by Lua (ResourceInterpreterCustomization) and by webhooks
// (ResourceInterpreterWebhookConfiguration).
//
// +kubebuilder:object:generate=true
// +groupName=config.karmada.io
package v1alpha1
