package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Condition of a Peer and its reasons.
const (
	// PeerAccepted: True if the data path carries traffic to and from this cluster.
	PeerAccepted = "Accepted"

	ReasonAccepted        = "Accepted"
	ReasonOverlappingCIDR = "OverlappingCIDR"
	// ReasonRangeLeftOut, with the status True: the ranges that were accepted before are used; one
	// that was added, or no longer can be routed, is not.
	ReasonRangeLeftOut = "RangeLeftOut"
	// ReasonUnroutableCIDR: a range of the cluster is larger than a /8, or hosts do not route it.
	ReasonUnroutableCIDR = "UnroutableCIDR"
	ReasonWireMismatch   = "WireMismatch"
	// ReasonNoGateway: the cluster was accepted and has no gateway now. Its ranges stay routed, so
	// that nothing for it leaves by the default route.
	ReasonNoGateway = "NoGateway"
	// ReasonAwaitingGateway: the cluster has had no gateway since it joined. Its ranges are not
	// routed yet.
	ReasonAwaitingGateway = "AwaitingGateway"
	ReasonInvalidEndpoint = "InvalidEndpoint"
	// ReasonUnapproved: no administrator of the hub has accepted one of the two clusters.
	ReasonUnapproved = "Unapproved"
	// ReasonGlobalnetMismatch: one of the two clusters has a GlobalCIDR, the other has not.
	ReasonGlobalnetMismatch = "GlobalnetMismatch"
)

// Peer is what this cluster makes of one remote cluster: the merged and checked content of its
// Cluster and Endpoint objects, and whether it is accepted. Its name is the remote cluster's id.
// Node daemons program accepted peers only.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=pelago
// +kubebuilder:printcolumn:name="Index",type=integer,JSONPath=`.spec.clusterIndex`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.spec.subnets`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Peer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PeerSpec `json:"spec"`
	// +optional
	Status PeerStatus `json:"status,omitempty"`
}

// PeerSpec is how the remote cluster is reached.
type PeerSpec struct {
	// ClusterIndex is the remote cluster's index in the clusterset, 1–1023.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1023
	ClusterIndex int32 `json:"clusterIndex"`
	// Labels are those of the Cluster at the hub, which its administrator gives; annotation
	// pelago.io/export-to selects by them.
	//
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// Subnets is what is routed to the remote cluster, in CIDR notation.
	//
	// +listType=atomic
	Subnets []string `json:"subnets"`
	// Gateways are the remote cluster's active gateways.
	//
	// +listType=map
	// +listMapKey=name
	Gateways []PeerGateway `json:"gateways"`
}

// PeerGateway is one gateway of a remote cluster.
type PeerGateway struct {
	// Name is the name of the gateway's node.
	Name string `json:"name"`
	// Address is the outer address to use until NAT discovery by this cluster's gateways has found
	// one: the public address if the gateway reports that it is behind NAT, else the private one.
	// Empty if the gateway can only initiate connections.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// PrivateAddress is the gateway's address on its own network; empty if it is that of a node of
	// this cluster.
	//
	// +optional
	PrivateAddress string `json:"privateAddress,omitempty"`
	// PublicAddress is the address that it has for others; empty if it knows none.
	//
	// +optional
	PublicAddress string `json:"publicAddress,omitempty"`
	// BehindLB reports that PublicAddress belongs to a load balancer.
	//
	// +optional
	BehindLB bool `json:"behindLB,omitempty"`
	// NATTPort is the UDP port at which it answers NAT discovery; 0: it does not.
	//
	// +optional
	NATTPort int32 `json:"nattPort,omitempty"`
	// Port is the UDP port of its cable.
	Port int32 `json:"port"`
	// Wire is vxlan, wireguard or libreswan.
	Wire string `json:"wire"`
	// NodeIndex is the gateway's node index in its own cluster.
	NodeIndex int32 `json:"nodeIndex"`
	// FabricAddress is the gateway's address in the clusterset's fabric.
	//
	// +optional
	FabricAddress string `json:"fabricAddress,omitempty"`
	// Tunnels is the number of tunnels of its wire, 1–4; tunnel i listens on port + i.
	//
	// +optional
	Tunnels int32 `json:"tunnels,omitempty"`
	// Identity is the rest of its Endpoint's backend_config: the keys of its wire and how to
	// connect to it.
	//
	// +optional
	Identity map[string]string `json:"identity,omitempty"`
}

// PeerStatus reports whether the peer is accepted and why not.
type PeerStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// PeerList is a list of Peers.
//
// +kubebuilder:object:root=true
type PeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Peer `json:"items"`
}
