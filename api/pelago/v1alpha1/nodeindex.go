package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeIndex gives a node its number in the overlay header and reports what the node's data path has
// reached. Its name is the node's.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=nix,categories=pelago
// +kubebuilder:printcolumn:name="Index",type=integer,JSONPath=`.spec.index`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
// +kubebuilder:printcolumn:name="Gateway",type=boolean,JSONPath=`.status.gateway`
// +kubebuilder:printcolumn:name="Serving",type=boolean,JSONPath=`.status.serving`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.status.mode`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeIndex struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeIndexSpec `json:"spec"`
	// +optional
	Status NodeIndexStatus `json:"status,omitempty"`
}

// NodeIndexSpec is the assignment.
//
// +kubebuilder:validation:XValidation:rule="self.index == oldSelf.index",message="index is immutable"
type NodeIndexSpec struct {
	// Index is the node's number in the cluster, 1–16383. A freed number is given out again last.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16383
	Index int32 `json:"index"`
	// NodeUID is the UID of the Node that the index was given to.
	NodeUID string `json:"nodeUID"`
}

// NodeIndexStatus is reported by the node daemon.
type NodeIndexStatus struct {
	// Ready reports that the programs are attached and that the first full set of tables is in the
	// kernel.
	//
	// +optional
	Ready bool `json:"ready,omitempty"`
	// Gateway reports that the node switches packets between the overlay and the cable.
	//
	// +optional
	Gateway bool `json:"gateway,omitempty"`
	// Serving reports that the other nodes are to use the gateway: the remote gateways know it, or
	// did not answer in time.
	//
	// +optional
	Serving bool `json:"serving,omitempty"`
	// BootID is the kernel's boot id; port claims of an earlier boot are gone.
	//
	// +optional
	BootID string `json:"bootID,omitempty"`
	// NodeBootID is the Node's status.nodeInfo.bootID when this status was written: a Node with
	// another one has rebooted since. It is not compared with bootID, because container managers
	// such as LXC and systemd-nspawn show a kubelet an id of its own.
	//
	// +optional
	NodeBootID string `json:"nodeBootID,omitempty"`
	// Mode is the datapath of the node's pods, unless their namespace has another one: strict,
	// hybrid, fast or auto.
	//
	// +optional
	Mode string `json:"mode,omitempty"`
	// Address is the node's address on the overlay.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// FabricAddress is the node's address in the clusterset's fabric, which the wires carry packets
	// between.
	//
	// +optional
	FabricAddress string `json:"fabricAddress,omitempty"`
	// Wire is, on a gateway, what others must know to reach it over the wire. The agent copies it
	// into backend_config of the gateway's Endpoint; the keys are those there.
	//
	// +optional
	Wire map[string]string `json:"wire,omitempty"`
	// Needed lists addresses that the node works by, besides those of nodes and of the API server's
	// endpoints: of the servers of its API connection and of the hub, and of its resolvers. No range
	// of another cluster may contain one.
	//
	// +optional
	// +listType=atomic
	Needed []string `json:"needed,omitempty"`
	// PathMTU is, on a gateway, the path MTU to other clusters, in bytes of a pod's packet; larger
	// packets are lost. All nodes of the cluster apply it. Clusters to which packets of the
	// devices' full MTU pass are omitted.
	//
	// +optional
	PathMTU map[string]int32 `json:"pathMTU,omitempty"`
	// KeyRotation is, on a gateway for which a key rotation was requested, its progress.
	//
	// +optional
	KeyRotation *KeyRotation `json:"keyRotation,omitempty"`
	// PublicIP is, on a gateway with a source for its public address, that address.
	//
	// +optional
	PublicIP *PublicIP `json:"publicIP,omitempty"`
	// Acks lists the UIDs of PortBlocks and GlobalIngressIPs that are not active yet and that this
	// gateway has in its kernel tables. A block or address becomes active once every ready gateway
	// lists it (make before use).
	//
	// +optional
	// +listType=atomic
	Acks []string `json:"acks,omitempty"`
	// Demand lists the egress pools of which this node needs more port blocks than the minimum.
	//
	// +optional
	// +listType=atomic
	Demand []BlockDemand `json:"demand,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NodeSettings is a condition of a NodeIndex: False if the node's annotations or labels
// gateway.submariner.io/* were not all taken over; the message names them. It is on gateways only.
const NodeSettings = "GatewaySettings"

// NodeRanges is a condition of a NodeIndex: False if pods of the node have addresses outside of the
// cluster's registered pod ranges. Other clusters do not reach them, and drop what they send. The
// message names pods and the remedy. It does not affect readiness, and is absent with globalnet.
const NodeRanges = "PodRanges"

// Reasons of NodeRanges.
const (
	ReasonRangesCoverPods = "Registered"
	ReasonRangesOutgrown  = "Outgrown"
)

// NodeXDP is a condition of a NodeIndex: False, with the reason of each device, if XDP could not be
// attached to all intended uplinks. Then the tc programs do all the work. Absent if XDP is not
// enabled.
const NodeXDP = "XDP"

// NodeHost is a condition of a NodeIndex: False if rules, routes or programs of others on the node
// keep packets from Pelago's, or did so in the last ten minutes, or if Pelago's programs cannot
// work on a device that leads to another node or gateway; the message names them with the remedy.
const NodeHost = "HostNetwork"

// Reasons of NodeHost.
const (
	ReasonHostClear      = "Clear"
	ReasonHostObstructed = "Obstructed"
)

// NodeFirewall is a condition of a NodeIndex: False if firewall rules on the node drop packets that
// Pelago needs, or its own rules could not be added; the message names chain, table and remedy.
// It does not affect readiness.
const NodeFirewall = "Firewall"

// Reasons of NodeFirewall.
const (
	ReasonFirewallOpen         = "Open"
	ReasonFirewallBlocks       = "Blocks"
	ReasonFirewallRulesMissing = "RulesMissing"
)

// NodeSelfTest is a condition of a NodeIndex: whether packets of pods for other clusters reach
// Pelago's programs on the node, tested with one packet for each kind of device and route. False if
// they are diverted, or bypass the program on the pod's device; Unknown if they are lost, which
// NetworkPolicies may be the cause of. The message names pod, device, what was seen and the remedy.
// It does not affect readiness, and is absent while the node has no pods.
const NodeSelfTest = "SelfTest"

// Reasons of NodeSelfTest.
const (
	ReasonSelfTestPassed   = "Passed"
	ReasonSelfTestDiverted = "Diverted"
	ReasonSelfTestBypassed = "Bypassed"
	ReasonSelfTestLost     = "Lost"
)

// NodeReconciled is a condition of a NodeIndex: False, with the errors, if the last reconcile of
// the node's daemon failed. A node that was ready stays so, and the daemon retries.
const NodeReconciled = "Reconciled"

// Reasons of NodeReconciled.
const (
	ReasonReconciled      = "Reconciled"
	ReasonReconcileFailed = "ReconcileFailed"
)

// Reasons of NodeXDP.
const (
	ReasonXDPAttached    = "Attached"
	ReasonXDPNotAttached = "NotAttached"
)

// Reasons of NodeSettings.
const (
	ReasonSettingsTaken   = "Taken"
	ReasonSettingsInvalid = "Invalid"
)

// KeyRotation is a change of a gateway's keys.
type KeyRotation struct {
	// Request is the value of the node's annotation pelago.io/rotate-keys that requested it.
	Request string `json:"request"`
	// TunnelsLeft is how many tunnels are still to get new keys; 0: it is done.
	//
	// +optional
	TunnelsLeft int32 `json:"tunnelsLeft,omitempty"`
	// Message reports what the next step waits for; at the end, which gateways have made no
	// handshake with the new keys.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// PublicIP is what a gateway knows of its public address.
type PublicIP struct {
	// Address is the last good one.
	//
	// +optional
	Address string `json:"address,omitempty"`
	// Source gave it: an entry of the annotation gateway.submariner.io/public-ip, or
	// `external-ip:` with the ExternalIP of the Node, which counts where no such annotation is.
	//
	// +optional
	Source string `json:"source,omitempty"`
	// Message reports why the last look-up failed; empty if it succeeded.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// BlockDemand is the number of port blocks that a node needs of one egress pool.
type BlockDemand struct {
	Pool   EgressPool `json:"pool"`
	Blocks int32      `json:"blocks"`
}

// EgressPool names the object whose egress IPs are meant: the ClusterGlobalEgressIP if Namespace is
// empty, else a GlobalEgressIP.
type EgressPool struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

// NodeIndexList is a list of NodeIndexes.
//
// +kubebuilder:object:root=true
type NodeIndexList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeIndex `json:"items"`
}
