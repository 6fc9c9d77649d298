package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// RouteAgent is what one node reaches, written by its node daemon and named after the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="Failure",type=string,JSONPath=`.status.statusFailure`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type RouteAgent struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Status RouteAgentStatus `json:"status,omitempty"`
}

// RouteAgentStatus is the way from one node to the gateways of all remote clusters.
type RouteAgentStatus struct {
	// +optional
	Version string `json:"version"`
	// StatusFailure names the gateways of the own cluster that do not answer this node, the pods
	// of the node that are left out because of their device, and pods whose packets the self-test
	// found on another path (condition SelfTest of the NodeIndex); empty: none.
	//
	// +optional
	StatusFailure string `json:"statusFailure"`
	// +optional
	// +listType=atomic
	RemoteEndpoints []RemoteEndpoint `json:"remoteEndpoints"`
}

// RemoteEndpoint is the way from one node to one remote gateway.
type RemoteEndpoint struct {
	Status        ConnectionStatus `json:"status"`
	StatusMessage string           `json:"statusMessage"`
	Spec          EndpointSpec     `json:"spec"`
	// LatencyRTT is the round-trip time of the part of the way that the node itself probes: on a
	// gateway the one to the remote gateway, elsewhere the one to the nearest gateway of the own
	// cluster that reaches the remote cluster.
	//
	// +optional
	LatencyRTT *LatencyRTTSpec `json:"latencyRTT,omitempty"`
}

// RouteAgentList is a list of RouteAgents.
//
// +kubebuilder:object:root=true
type RouteAgentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []RouteAgent `json:"items"`
}
