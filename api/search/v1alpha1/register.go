package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is search.karmada.io/v1alpha1.
	GroupVersion = schema.GroupVersion{Group: "search.karmada.io", Version: "v1alpha1"}
	// Stored is the CRD version through which pelago-hub accesses the objects, since requests for
	// v1alpha1 lead to pelago-hub itself if it serves search. The schema is the same.
	Stored = schema.GroupVersion{Group: GroupVersion.Group, Version: "stored"}
)

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ResourceRegistry{}, &ResourceRegistryList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// AddStoredToScheme adds the kinds as those of version Stored. A scheme has either these or those
// of AddToScheme.
func AddStoredToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(Stored, &ResourceRegistry{}, &ResourceRegistryList{})
	metav1.AddToGroupVersion(s, Stored)
	return nil
}
