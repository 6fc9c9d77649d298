package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Cluster is a member that runs workloads. Its name is the id of the cluster, an RFC 1123 label of
// at most 48 characters: the same as in submariner.io, in its execution namespace and in its
// ServiceAccount.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=karmada-io
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.kubernetesVersion`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.syncMode`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Zones",type=string,JSONPath=`.spec.zones`,priority=1
// +kubebuilder:printcolumn:name="Region",type=string,JSONPath=`.spec.region`,priority=1
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`,priority=1
// +kubebuilder:printcolumn:name="API-Endpoint",type=string,JSONPath=`.spec.apiEndpoint`,priority=1
// +kubebuilder:printcolumn:name="Proxy-URL",type=string,JSONPath=`.spec.proxyURL`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 48",message="the name of a cluster must be no more than 48 characters"
// +kubebuilder:validation:XValidation:rule="!self.metadata.name.contains('.')",message="the name of a cluster must be an RFC 1123 label: no dots"
type Cluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ClusterSpec `json:"spec"`
	// +optional
	Status ClusterStatus `json:"status,omitempty"`
}

// SyncMode is who writes the member.
//
// +kubebuilder:validation:Enum=Push;Pull
type SyncMode string

const (
	// Push: the hub writes the member.
	Push SyncMode = "Push"
	// Pull: the agent in the member reads its Works from the hub.
	Pull SyncMode = "Pull"
)

// ClusterSpec defines what the cluster is and how it is reached.
//
// +kubebuilder:validation:XValidation:rule="!has(oldSelf.id) || !has(self.id) || oldSelf.id.size() == 0 || self.id == oldSelf.id",message="id is immutable: unjoin the cluster and join it again",fieldPath=.id
// +kubebuilder:validation:XValidation:rule="!has(self.zone) || self.zone.size() == 0 || !has(self.zones) || self.zones.size() == 0",message="zone and zones cannot be set at the same time: use zones",fieldPath=.zone
type ClusterSpec struct {
	// ID is the UID of the namespace kube-system of the member; it shows when one cluster is joined
	// under two names.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=128000
	ID       string   `json:"id,omitempty"`
	SyncMode SyncMode `json:"syncMode"`
	// APIEndpoint is the URL of the member's API server, https://host[:port][/path].
	//
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.size() == 0 || (isURL(self) && url(self).getScheme() == 'https' && url(self).getHost().size() > 0)",message="apiEndpoint must be a valid URL with the scheme https and a host, https://host:port"
	// +kubebuilder:validation:XValidation:rule="!self.matches('^[^/]*//[^/?#]*@')",message="user information is not permitted in the URL"
	// +kubebuilder:validation:XValidation:rule="!self.contains('#')",message="fragments are not permitted in the URL"
	// +kubebuilder:validation:XValidation:rule="!self.contains('?')",message="query parameters are not permitted in the URL"
	APIEndpoint string `json:"apiEndpoint,omitempty"`
	// SecretRef names the Secret with the keys token and caBundle by which the hub writes a push
	// member.
	//
	// +optional
	SecretRef *SecretReference `json:"secretRef,omitempty"`
	// ImpersonatorSecretRef names the Secret whose key token lets the proxy impersonate users in
	// the member.
	//
	// +optional
	ImpersonatorSecretRef *SecretReference `json:"impersonatorSecretRef,omitempty"`
	// InsecureSkipTLSVerification makes the hub accept any certificate of the member's API server.
	//
	// +optional
	InsecureSkipTLSVerification bool `json:"insecureSkipTLSVerification,omitempty"`
	// ProxyURL is the proxy through which the hub reaches the member.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:XValidation:rule="self.size() == 0 || (isURL(self) && url(self).getScheme() in ['http', 'https', 'socks5'])",message="unsupported scheme: proxyURL must begin with http://, https:// or socks5://"
	ProxyURL string `json:"proxyURL,omitempty"`
	// ProxyHeader is sent to the proxy; several values of one header are separated by commas.
	//
	// +optional
	ProxyHeader map[string]string `json:"proxyHeader,omitempty"`
	// +optional
	Provider string `json:"provider,omitempty"`
	// +optional
	Region string `json:"region,omitempty"`
	// Zone is the former name of Zones.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Zone string `json:"zone,omitempty"`
	// +optional
	// +listType=atomic
	Zones []string `json:"zones,omitempty"`
	// Taints keep workloads away that do not tolerate them.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule="self.all(t, self.exists_one(u, u.key == t.key && u.effect == t.effect))",message="taints must be unique by key and effect pair"
	Taints []Taint `json:"taints,omitempty"`
	// ResourceModels are the classes of nodes that status.resourceSummary.allocatableModelings
	// counts, smallest first. Rules about quantities are in Validate: in CEL they would exceed the
	// cost that an API server allows.
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(m, self.exists_one(n, n.grade == m.grade))",message="the grade of each model must be unique"
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.ranges.size() == self[0].ranges.size())",message="the number of resource types must be the same in each model"
	// +kubebuilder:validation:XValidation:rule="self.all(m, m.ranges.all(r, self[0].ranges.exists(s, s.name == r.name)))",message="the resource types of each model must be the same"
	ResourceModels []ResourceModel `json:"resourceModels,omitempty"`
}

// AllZones are the zones under either name of the field.
func (s ClusterSpec) AllZones() []string {
	if len(s.Zones) == 0 && s.Zone != "" {
		return []string{s.Zone}
	}
	return s.Zones
}

// SecretReference names a Secret of the hub.
type SecretReference struct {
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
}

// Taint has the fields of Kubernetes' taint of nodes and converts to it (corev1.Taint(t)); it is a
// type of its own for the limits, without which the rules over it would be too costly for an API
// server.
type Taint struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	Key string `json:"key"`
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
	Value string `json:"value,omitempty"`
	// +kubebuilder:validation:Enum=NoSchedule;NoExecute
	Effect corev1.TaintEffect `json:"effect"`
	// TimeAdded counts for tolerations with a time; it is filled in for NoExecute.
	//
	// +optional
	TimeAdded *metav1.Time `json:"timeAdded,omitempty"`
}

// ResourceModel is a class of nodes by their free resources.
type ResourceModel struct {
	// +kubebuilder:validation:Minimum=0
	Grade uint `json:"grade"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Ranges []ResourceModelRange `json:"ranges"`
}

// ResourceModelRange is one resource of a class: at least Min, less than Max.
type ResourceModelRange struct {
	// +kubebuilder:validation:Enum=cpu;memory;storage;ephemeral-storage
	Name corev1.ResourceName `json:"name"`
	Min  resource.Quantity   `json:"min"`
	Max  resource.Quantity   `json:"max"`
}

// ClusterList is a list of Clusters.
//
// +kubebuilder:object:root=true
type ClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []Cluster `json:"items"`
}
