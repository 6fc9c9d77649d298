package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Arithmetic of port blocks (RFC 6335: ports below 1024 are system ports and are never given out).
const (
	// BlockPorts is the number of ports of a block.
	BlockPorts = 256
	// FirstBlockPort is the first port of the lowest block.
	FirstBlockPort = 1024
	// BlocksPerIP is the number of blocks of one egress IP.
	BlocksPerIP = (65536 - FirstBlockPort) / BlockPorts
)

// AnnotationOrphanBootID records, on a block whose owner's Node is missing, the owner's last boot
// id. If a node of that name comes back with another boot id, the flows of the block have ended
// with the earlier boot.
const AnnotationOrphanBootID = "pelago.io/orphan-boot-id"

// PortBlock leases the ports FirstPort … FirstPort+255 of one egress IP to one node. Its name is
// `<egress ip with dashes>-<first port>`, so the API server itself refuses a second lease of the
// same ports.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=pblk,categories=pelago
// +kubebuilder:printcolumn:name="Egress IP",type=string,JSONPath=`.spec.egressIP`
// +kubebuilder:printcolumn:name="First port",type=integer,JSONPath=`.spec.firstPort`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type PortBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec PortBlockSpec `json:"spec"`
	// +optional
	Status PortBlockStatus `json:"status,omitempty"`
}

// BlockState is how far a lease is.
//
// +kubebuilder:validation:Enum=Pending;Active;Releasing
type BlockState string

// States of a lease.
const (
	// BlockPending: the gateways take the block into their tables; the node does not open flows in
	// it yet.
	BlockPending BlockState = "Pending"
	// BlockActive: every ready gateway has the block; the node opens flows in it.
	BlockActive BlockState = "Active"
	// BlockReleasing: the node opens no new flows and sets status.released once the last one is
	// gone.
	BlockReleasing BlockState = "Releasing"
)

// PortBlockSpec is the lease.
//
// +kubebuilder:validation:XValidation:rule="self.egressIP == oldSelf.egressIP && self.firstPort == oldSelf.firstPort && self.node == oldSelf.node && self.nodeUID == oldSelf.nodeUID",message="a lease is not moved: it is released, deleted and created anew"
type PortBlockSpec struct {
	EgressIP string `json:"egressIP"`
	// +kubebuilder:validation:Minimum=1024
	// +kubebuilder:validation:Maximum=65280
	FirstPort int32 `json:"firstPort"`
	// Node and NodeUID name the owner.
	Node    string `json:"node"`
	NodeUID string `json:"nodeUID"`
	// Pool is the egress object that the address belongs to.
	Pool  EgressPool `json:"pool"`
	State BlockState `json:"state"`
	// OrphanedAt is when the owner's Node was first found missing; the lease ends after the timeout
	// of established flows (fencing).
	//
	// +optional
	OrphanedAt *metav1.Time `json:"orphanedAt,omitempty"`
}

// PortBlockStatus is reported by the owning node.
type PortBlockStatus struct {
	// Released reports that the node has no flow in the block and will open none.
	//
	// +optional
	Released bool `json:"released,omitempty"`
}

// PortBlockList is a list of PortBlocks.
//
// +kubebuilder:object:root=true
type PortBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []PortBlock `json:"items"`
}
