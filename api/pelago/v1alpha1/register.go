package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var (
	// GroupVersion is pelago.io/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "pelago.io", Version: "v1alpha1"}
	// SchemeBuilder collects the kinds of this package.
	SchemeBuilder = &scheme.Builder{GroupVersion: GroupVersion}
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.Register(
		&NodeIndex{}, &NodeIndexList{},
		&PortBlock{}, &PortBlockList{},
		&GlobalAddress{}, &GlobalAddressList{},
		&Peer{}, &PeerList{},
		&ServiceContribution{}, &ServiceContributionList{},
		&KindRules{}, &KindRulesList{},
	).AddToScheme
)
