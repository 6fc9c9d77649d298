package v1alpha1

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ResourceInterpreterWebhookConfiguration lists webhooks that read and change objects of some
// kinds. They come after KindRules and ResourceInterpreterCustomizations, and before what is built
// in.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=karmada-io
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ResourceInterpreterWebhookConfiguration struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +listType=map
	// +listMapKey=name
	Webhooks []ResourceInterpreterWebhook `json:"webhooks"`
	// +optional
	Status ResourceInterpreterCustomizationStatus `json:"status,omitempty"`
}

// InterpreterOperation is an operation of a webhook.
type InterpreterOperation string

// ResourceInterpreterWebhook is a webhook, with the operations and kinds that it is for.
type ResourceInterpreterWebhook struct {
	// Name is a fully qualified domain name.
	Name string `json:"name"`
	// ClientConfig has a URL with https, or a Service of the hub. Pull members call the former
	// only.
	ClientConfig admissionregistrationv1.WebhookClientConfig `json:"clientConfig"`
	// +optional
	// +listType=atomic
	Rules []RuleWithOperations `json:"rules,omitempty"`
	// TimeoutSeconds bounds a call; 10 if unset.
	//
	// +optional
	// +kubebuilder:default=10
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=30
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`
	// InterpreterContextVersions are the versions of the request that the webhook takes.
	//
	// +listType=atomic
	InterpreterContextVersions []string `json:"interpreterContextVersions"`
}

// RuleWithOperations are operations on kinds.
type RuleWithOperations struct {
	// Operations are InterpretReplica, InterpretComponent, ReviseReplica, Retain, AggregateStatus,
	// InterpretDependency, InterpretHealth, InterpretStatus, or * for all. Prune is accepted and
	// not called.
	//
	// +listType=atomic
	Operations []InterpreterOperation `json:"operations"`
	Rule       `json:",inline"`
}

// Rule selects kinds.
type Rule struct {
	// +listType=atomic
	APIGroups []string `json:"apiGroups"`
	// +listType=atomic
	APIVersions []string `json:"apiVersions"`
	// +listType=atomic
	Kinds []string `json:"kinds"`
}

// ResourceInterpreterWebhookConfigurationList is a list of
// ResourceInterpreterWebhookConfigurations.
//
// +kubebuilder:object:root=true
type ResourceInterpreterWebhookConfigurationList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ResourceInterpreterWebhookConfiguration `json:"items"`
}
