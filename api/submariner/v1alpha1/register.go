package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var (
	// GroupVersion is submariner.io/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "submariner.io", Version: "v1alpha1"}
	// SchemeBuilder collects the kinds of this package.
	SchemeBuilder = &scheme.Builder{GroupVersion: GroupVersion}
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.Register(
		&Broker{}, &BrokerList{},
		&ServiceDiscovery{}, &ServiceDiscoveryList{},
		&Submariner{}, &SubmarinerList{},
	).AddToScheme
)
