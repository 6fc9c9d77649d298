package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is pelago.io/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "pelago.io", Version: "v1alpha1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&NodeIndex{}, &NodeIndexList{},
		&PortBlock{}, &PortBlockList{},
		&GlobalAddress{}, &GlobalAddressList{},
		&Peer{}, &PeerList{},
		&ServiceContribution{}, &ServiceContributionList{},
		&KindRules{}, &KindRulesList{},
		&PlacementScore{}, &PlacementScoreList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
