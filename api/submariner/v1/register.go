package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is submariner.io/v1.
var GroupVersion = schema.GroupVersion{Group: "submariner.io", Version: "v1"}

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&Cluster{}, &ClusterList{},
		&Endpoint{}, &EndpointList{},
		&Gateway{}, &GatewayList{},
		&RouteAgent{}, &RouteAgentList{},
		&ClusterGlobalEgressIP{}, &ClusterGlobalEgressIPList{},
		&GlobalEgressIP{}, &GlobalEgressIPList{},
		&GlobalIngressIP{}, &GlobalIngressIPList{},
	)
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
