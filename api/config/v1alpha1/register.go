package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var (
	// GroupVersion is config.karmada.io/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "config.karmada.io", Version: "v1alpha1"}
	// SchemeBuilder collects the kinds of this package.
	SchemeBuilder = &scheme.Builder{GroupVersion: GroupVersion}
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.Register(
		&ResourceInterpreterCustomization{}, &ResourceInterpreterCustomizationList{},
		&ResourceInterpreterWebhookConfiguration{}, &ResourceInterpreterWebhookConfigurationList{},
	).AddToScheme
)
