package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Keys of EndpointSpec.BackendConfig.
const (
	// BackendUDPPort is the UDP port on which the gateway's cable listens, decimal.
	BackendUDPPort = "udp-port"
	// BackendClusterIndex is the index of the cluster in the clusterset, decimal, 1–1023.
	BackendClusterIndex = "cluster-index"
	// BackendNodeIndex is the index of the gateway's node in its cluster, decimal, 1–16383.
	BackendNodeIndex = "node-index"
	// BackendWireVersion is the newest version of the overlay header that the gateway accepts,
	// decimal.
	BackendWireVersion = "wire-version"
	// BackendFabricIP is the gateway's fabric address: prefix of the clusterset | cluster index <<
	// 14 | node index.
	BackendFabricIP = "fabric-ip"
	// BackendPublicKey of the wire wireguard: a public key for each tunnel, base64, separated by
	// commas.
	BackendPublicKey = "publicKey"
	// BackendTunnels is the number of tunnels, decimal, 1–4; without it one. Tunnel i listens on
	// udp-port + i.
	BackendTunnels = "tunnels"
	// BackendNATTDiscoveryPort is the UDP port on which the gateway answers NAT discovery, decimal;
	// 0: it does not.
	BackendNATTDiscoveryPort = "natt-discovery-port"
	// BackendPreferredServer is "true" on a gateway that waits for the others to connect.
	BackendPreferredServer = "preferred-server"
	// BackendLoadBalancer is "true" on a gateway whose public address belongs to a load balancer.
	BackendLoadBalancer = "using-loadbalancer"
	// BackendStandbyKey of the wire wireguard: the public key of the tunnel that carries packets
	// while another changes its key.
	BackendStandbyKey = "publicKeyStandby"
	// BackendDraining lists the numbers of tunnels, separated by commas, that still accept packets
	// but must not be sent any.
	BackendDraining = "draining"
	// BackendIKE of the wire libreswan is how the gateway authenticates itself to one without
	// BackendIKEKeys: psk.
	BackendIKE = "ike"
	// BackendIKEKeys of the wire libreswan are the public keys by which the gateway authenticates
	// itself (RFC 7670): SubjectPublicKeyInfo of ECDSA P-256, base64, separated by commas.
	BackendIKEKeys = "ikePublicKeys"
	// BackendESP of the wire libreswan is what encrypts on the gateway: kernel or userspace (the
	// IKE daemon).
	BackendESP = "esp"
)

// Endpoint is one gateway of one cluster. A cluster has as many as it has ready gateway nodes; all
// of them are active. The agent of the cluster writes them at the broker, every other cluster reads
// them.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced
// +kubebuilder:printcolumn:name="Cluster ID",type=string,JSONPath=`.spec.cluster_id`
// +kubebuilder:printcolumn:name="Hostname",type=string,JSONPath=`.spec.hostname`
// +kubebuilder:printcolumn:name="Private IP",type=string,JSONPath=`.spec.private_ip`
// +kubebuilder:printcolumn:name="Backend",type=string,JSONPath=`.spec.backend`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.spec.subnets`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Endpoint struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec EndpointSpec `json:"spec"`
}

// EndpointSpec defines how a gateway is reached and the ranges that it serves.
type EndpointSpec struct {
	// ClusterID is the id of the cluster that the gateway belongs to.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=48
	ClusterID string `json:"cluster_id"`
	// CableName is `submariner-cable-<cluster id>-<private ip with dashes>`.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	CableName string `json:"cable_name"`
	// HealthCheckIP is the address that answers probes; empty where the probes of the data path are
	// used.
	//
	// +optional
	HealthCheckIP string `json:"healthCheckIP,omitempty"`
	// Hostname is the name of the gateway's node.
	//
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Subnets lists what is routed to this cluster: its GlobalCIDRs, or without globalnet its pod
	// and service ranges and its share of the fabric, which contains the source addresses of its
	// nodes.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Subnets []string `json:"subnets"`
	// PrivateIP is the gateway's address on its own network.
	PrivateIP string `json:"private_ip"`
	// PublicIP is the address under which peers outside that network reach the gateway; empty if
	// none exists.
	//
	// +optional
	PublicIP string `json:"public_ip,omitempty"`
	// NATEnabled reports that the gateway lies behind NAT.
	//
	// +optional
	NATEnabled bool `json:"nat_enabled,omitempty"`
	// Backend is the cable driver: vxlan, wireguard or libreswan.
	//
	// +kubebuilder:validation:MinLength=1
	Backend string `json:"backend"`
	// BackendConfig holds settings of the cable driver; the keys are the Backend* constants.
	//
	// +optional
	BackendConfig map[string]string `json:"backend_config,omitempty"`
}

// EndpointList is a list of Endpoints.
//
// +kubebuilder:object:root=true
type EndpointList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Endpoint `json:"items"`
}
