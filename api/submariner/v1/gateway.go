package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// HAStatus is the role of a gateway.
//
// +kubebuilder:validation:Enum=active;passive
type HAStatus string

// Roles of a gateway.
const (
	HAStatusActive  HAStatus = "active"
	HAStatusPassive HAStatus = "passive"
)

// ConnectionStatus is the state of a connection to a remote gateway.
//
// +kubebuilder:validation:Enum=connected;connecting;error;none
type ConnectionStatus string

// States of a connection.
const (
	Connected       ConnectionStatus = "connected"
	Connecting      ConnectionStatus = "connecting"
	ConnectionError ConnectionStatus = "error"
	ConnectionNone  ConnectionStatus = "none"
)

// Gateway is the state of one gateway node, written by its node daemon and named after the node.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="HA Status",type=string,JSONPath=`.status.haStatus`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Gateway struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Status GatewayStatus `json:"status"`
}

// GatewayStatus is what a gateway knows of itself and of its peers.
type GatewayStatus struct {
	Version       string       `json:"version"`
	HAStatus      HAStatus     `json:"haStatus"`
	LocalEndpoint EndpointSpec `json:"localEndpoint"`
	// StatusFailure is why the gateway cannot report; empty if it can.
	StatusFailure string `json:"statusFailure"`
	// +listType=atomic
	Connections []Connection `json:"connections"`
}

// Connection is the state of the path to one remote gateway.
type Connection struct {
	Status        ConnectionStatus `json:"status"`
	StatusMessage string           `json:"statusMessage"`
	Endpoint      EndpointSpec     `json:"endpoint"`
	// UsingIP is the address of the peer in use.
	//
	// +optional
	UsingIP string `json:"usingIP,omitempty"`
	// UsingNAT reports that the peer is reached through NAT.
	//
	// +optional
	UsingNAT bool `json:"usingNAT,omitempty"`
	// LatencyRTT is the round-trip time measured by the probes of the data path.
	//
	// +optional
	LatencyRTT *LatencyRTTSpec `json:"latencyRTT,omitempty"`
	// LossPercent is the share of the probes that are lost, while it is high enough for the path to
	// be degraded. It is Pelago's.
	//
	// +optional
	LossPercent int32 `json:"lossPercent,omitempty"`
}

// LatencyRTTSpec holds Go duration strings, for example "1.2ms".
type LatencyRTTSpec struct {
	// +optional
	Last string `json:"last,omitempty"`
	// +optional
	Min string `json:"min,omitempty"`
	// +optional
	Average string `json:"average,omitempty"`
	// +optional
	Max string `json:"max,omitempty"`
	// +optional
	StdDev string `json:"stdDev,omitempty"`
}

// GatewayList is a list of Gateways.
//
// +kubebuilder:object:root=true
type GatewayList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Gateway `json:"items"`
}
