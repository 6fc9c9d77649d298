package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Submariner makes the cluster a member of a clusterset, as `pelago join` does; deleting it removes
// Pelago from the cluster, as `pelago unjoin` does. Only the one in the operator's namespace has an
// effect.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=submariners,scope=Namespaced
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.status.clusterID`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Submariner struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	Spec SubmarinerSpec `json:"spec"`
	// +optional
	Status SubmarinerStatus `json:"status,omitempty"`
}

// SubmarinerSpec is the membership. Unknown fields are refused in the condition Degraded.
type SubmarinerSpec struct {
	// ClusterID is the id of the cluster in the clusterset: letters, digits and '-', at most 48. It
	// never changes.
	//
	// +kubebuilder:validation:MinLength=1
	ClusterID string `json:"clusterID"`

	// Broker is k8s.
	//
	// +optional
	// +kubebuilder:validation:Enum=k8s
	Broker string `json:"broker,omitempty"`
	// BrokerK8sApiServer is the URL of the hub's API server; https:// may be left out.
	//
	// +optional
	BrokerK8sApiServer string `json:"brokerK8sApiServer,omitempty"`
	// BrokerK8sApiServerToken is the credential for registration. It is needed until the cluster
	// has joined, and for changes that the hub has to grant; it expires with the broker-info.subm
	// that it comes from.
	//
	// +optional
	BrokerK8sApiServerToken string `json:"brokerK8sApiServerToken,omitempty"`
	// BrokerK8sCA is the CA of the hub's API server, PEM in base64.
	//
	// +optional
	BrokerK8sCA string `json:"brokerK8sCA,omitempty"`
	// BrokerK8sSecret is a Secret of this namespace with the keys token and ca.crt in place of the
	// two fields, or with the key broker-info.subm in place of all fields about broker and
	// pre-shared key.
	//
	// +optional
	BrokerK8sSecret string `json:"brokerK8sSecret,omitempty"`
	// BrokerK8sRemoteNamespace is the broker's namespace at the hub; submariner-k8s-broker if
	// empty.
	//
	// +optional
	BrokerK8sRemoteNamespace string `json:"brokerK8sRemoteNamespace,omitempty"`
	// BrokerK8sInsecure true is refused: the hub's certificate is always verified.
	//
	// +optional
	BrokerK8sInsecure bool `json:"brokerK8sInsecure,omitempty"`
	// CeIPSecPSK is the pre-shared key of the clusterset, in base64.
	//
	// +optional
	CeIPSecPSK string `json:"ceIPSecPSK,omitempty"`
	// CeIPSecPSKSecret is a Secret of this namespace with the key psk in place of it.
	//
	// +optional
	CeIPSecPSKSecret string `json:"ceIPSecPSKSecret,omitempty"`

	// ClusterCIDR are the pod ranges, separated by commas; discovered if empty.
	//
	// +optional
	ClusterCIDR string `json:"clusterCIDR,omitempty"`
	// ServiceCIDR are the service ranges, separated by commas; discovered if empty.
	//
	// +optional
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// GlobalCIDR is the range of the cluster under globalnet; the first free one if empty.
	//
	// +optional
	GlobalCIDR string `json:"globalCIDR,omitempty"`
	// ClustersetIPCIDR is the range of ClusterSetIPs that this cluster allocates from; the first
	// free one if empty.
	//
	// +optional
	ClustersetIPCIDR string `json:"clustersetIPCIDR,omitempty"`
	// ClustersetIPEnabled gives the services that this cluster exports a ClusterSetIP.
	//
	// +optional
	ClustersetIPEnabled bool `json:"clustersetIPEnabled,omitempty"`

	// CableDriver connects the gateways: wireguard, libreswan or vxlan; the same in all clusters.
	// If empty, a cluster that has joined keeps its own, and another one gets that of most clusters
	// of the clusterset, wireguard if it is the first.
	//
	// +optional
	CableDriver string `json:"cableDriver,omitempty"`
	// CeIPSecNATTPort is the UDP port of the cables; 4500 if 0.
	//
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	CeIPSecNATTPort int32 `json:"ceIPSecNATTPort,omitempty"`
	// CeIPSecPreferredServer makes gateways wait for others to connect, where those can.
	//
	// +optional
	CeIPSecPreferredServer bool `json:"ceIPSecPreferredServer,omitempty"`
	// NatEnabled reports that gateways with a public address are behind NAT; true if absent.
	//
	// +optional
	NatEnabled *bool `json:"natEnabled,omitempty"`
	// AirGappedDeployment never resolves a public address.
	//
	// +optional
	AirGappedDeployment bool `json:"airGappedDeployment,omitempty"`
	// LoadBalancerEnabled reaches the gateway through a Service of type LoadBalancer.
	//
	// +optional
	LoadBalancerEnabled bool `json:"loadBalancerEnabled,omitempty"`
	// CoreDNSCustomConfig is the ConfigMap whose keys *.server the Corefile imports.
	//
	// +optional
	CoreDNSCustomConfig *CoreDNSCustomConfig `json:"coreDNSCustomConfig,omitempty"`

	// Repository has the image pelago; that of the operator's image if empty.
	//
	// +optional
	Repository string `json:"repository,omitempty"`
	// Version is the tag of the image; that of the operator's image if empty. Changing it is an
	// upgrade or a downgrade: the operator first, which must become ready, then the components,
	// node by node.
	//
	// +optional
	Version string `json:"version,omitempty"`
	// ImageOverrides has at most the key pelago: an image in place of repository and version.
	//
	// +optional
	ImageOverrides map[string]string `json:"imageOverrides,omitempty"`
	// NodeSelector counts for the pods of Deployments; pelago-node runs on every node.
	//
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations count for the same pods.
	//
	// +optional
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// These have no effect: service discovery is always there, health is always checked, the rest
	// has no counterpart.

	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	ServiceDiscoveryEnabled bool `json:"serviceDiscoveryEnabled,omitempty"`
	// CustomDomains are the hub's to give (Broker, defaultCustomDomains).
	//
	// +optional
	// +listType=atomic
	CustomDomains []string `json:"customDomains,omitempty"`
	// +optional
	ConnectionHealthCheck *HealthCheckSpec `json:"connectionHealthCheck,omitempty"`
	// +optional
	Debug bool `json:"debug,omitempty"`
	// +optional
	CeIPSecDebug bool `json:"ceIPSecDebug,omitempty"`
	// +optional
	CeIPSecIKEPort int32 `json:"ceIPSecIKEPort,omitempty"`
	// +optional
	CeIPSecForceUDPEncaps bool `json:"ceIPSecForceUDPEncaps,omitempty"`
	// +optional
	HaltOnCertificateError bool `json:"haltOnCertificateError,omitempty"`
	// +optional
	ColorCodes string `json:"colorCodes,omitempty"`
}

// CoreDNSCustomConfig names a ConfigMap.
type CoreDNSCustomConfig struct {
	// +optional
	ConfigMapName string `json:"configMapName,omitempty"`
	// Namespace is kube-system; another is refused.
	//
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// HealthCheckSpec has no effect.
type HealthCheckSpec struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// +optional
	IntervalSeconds int64 `json:"intervalSeconds,omitempty"`
	// +optional
	MaxPacketLossCount int64 `json:"maxPacketLossCount,omitempty"`
}

// SubmarinerStatus is what runs.
type SubmarinerStatus struct {
	Status `json:",inline"`

	// ClusterID, and the ranges below, are those that the cluster has joined with.
	//
	// +optional
	ClusterID string `json:"clusterID,omitempty"`
	// +optional
	ClusterCIDR string `json:"clusterCIDR,omitempty"`
	// +optional
	ServiceCIDR string `json:"serviceCIDR,omitempty"`
	// +optional
	GlobalCIDR string `json:"globalCIDR,omitempty"`
	// +optional
	ClustersetIPCIDR string `json:"clustersetIPCIDR,omitempty"`
	// +optional
	NatEnabled bool `json:"natEnabled"`
	// Version is the tag of the image that all components run; empty during a rollout.
	//
	// +optional
	Version string `json:"version,omitempty"`
	// Components are the Deployments and DaemonSets of Pelago.
	//
	// +optional
	// +listType=atomic
	Components []Component `json:"components,omitempty"`
	// Gateways are the states of the gateway nodes, without times and losses.
	//
	// +optional
	// +listType=atomic
	Gateways []submarinerv1.GatewayStatus `json:"gateways,omitempty"`
	// Registration is a digest of what the hub has granted. While it is the same the hub is not
	// requested again.
	//
	// +optional
	Registration string `json:"registration,omitempty"`
}

// Component is a Deployment or a DaemonSet.
type Component struct {
	Kind  string `json:"kind"`
	Name  string `json:"name"`
	Image string `json:"image"`
	// Desired is the number of pods, Updated and Ready those with the newest template and those
	// that are ready.
	Desired int32 `json:"desired"`
	Updated int32 `json:"updated"`
	Ready   int32 `json:"ready"`
}

// SubmarinerList is a list of Submariners.
//
// +kubebuilder:object:root=true
type SubmarinerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Submariner `json:"items"`
}
