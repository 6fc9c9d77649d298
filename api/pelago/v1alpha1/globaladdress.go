package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// GlobalAddress claims one address of the cluster's GlobalCIDR, or of its range of ClusterSetIPs,
// for one owner. Its name is the address with dashes, so the API server itself refuses a second
// claim; creating it is the allocation.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=gaddr,categories=pelago
// +kubebuilder:printcolumn:name="IP",type=string,JSONPath=`.spec.ip`
// +kubebuilder:printcolumn:name="Kind",type=string,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.owner.namespace`
// +kubebuilder:printcolumn:name="Name",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GlobalAddress struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec GlobalAddressSpec `json:"spec"`
}

// GlobalAddressSpec is the claim.
//
// +kubebuilder:validation:XValidation:rule="self.ip == oldSelf.ip && self.owner == oldSelf.owner",message="a claim is not moved: it is released, deleted and created anew"
type GlobalAddressSpec struct {
	IP    string       `json:"ip"`
	Owner AddressOwner `json:"owner"`
	// ReleasedAt is when the owner was found gone; the claim is deleted 120 s later, to let the
	// address rest (RFC 6888 REQ-8).
	//
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`
}

// AddressOwner is the ClusterGlobalEgressIP, GlobalEgressIP or GlobalIngressIP that has the
// address. That of a ClusterSetIP is the ServiceImport, which exists while one cluster exports the
// service; its UID is empty, since it may be created later.
type AddressOwner struct {
	Kind string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// GlobalAddressList is a list of GlobalAddresses.
//
// +kubebuilder:object:root=true
type GlobalAddressList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []GlobalAddress `json:"items"`
}
