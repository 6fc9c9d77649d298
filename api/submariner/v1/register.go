package v1

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

var (
	// GroupVersion is submariner.io/v1.
	GroupVersion = schema.GroupVersion{Group: "submariner.io", Version: "v1"}
	// SchemeBuilder collects the kinds of this package.
	SchemeBuilder = &scheme.Builder{GroupVersion: GroupVersion}
	// AddToScheme adds the kinds of this package to a scheme.
	AddToScheme = SchemeBuilder.Register(
		&Cluster{}, &ClusterList{},
		&Endpoint{}, &EndpointList{},
		&Gateway{}, &GatewayList{},
		&RouteAgent{}, &RouteAgentList{},
		&ClusterGlobalEgressIP{}, &ClusterGlobalEgressIPList{},
		&GlobalEgressIP{}, &GlobalEgressIPList{},
		&GlobalIngressIP{}, &GlobalIngressIPList{},
	).AddToScheme
)
