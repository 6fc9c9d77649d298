package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// Finalizer of a Submariner: Pelago is removed from the cluster before the object is gone.
	Finalizer = "submariner.io/pelago-operator"
	// AnnotationFlags adds flags of `pelago join` (Submariner) or `pelago deploy-broker` (Broker)
	// that have no field, separated by spaces, each as --name=value.
	AnnotationFlags = "pelago.io/flags"
	// BrokerInfoSecret is what the operator writes next to a Broker: the key broker-info.subm,
	// renewed before its credential ends.
	BrokerInfoSecret = "broker-info"
	// BrokerInfoKey is the key of a broker-info.subm in a Secret.
	BrokerInfoKey = "broker-info.subm"
	// HubSecret names the hub, with a kubeconfig under HubSecretKey, if it is another API server
	// than the operator's own.
	HubSecret    = "pelago-hub"
	HubSecretKey = "kubeconfig"
)

// Marks of a Cluster of Cluster API (cluster.x-k8s.io), which the operator joins to the hub.
const (
	// LabelJoin is JoinPush, JoinPull or JoinNetwork; without it the cluster leaves.
	LabelJoin   = "pelago.io/join"
	JoinPush    = "push"    // `pelago join NAME --cluster-kubeconfig`
	JoinPull    = "pull"    // `pelago join broker-info.subm --workloads-only`
	JoinNetwork = "network" // `pelago join broker-info.subm`, with the flags of AnnotationFlags
	// AnnotationClusterName is the name of the member (default: that of the object, with '-' in
	// place of '.').
	AnnotationClusterName = "pelago.io/cluster-name"
	// AnnotationClusterProvider, -Region and -Zones (separated by commas) are the place of the
	// member.
	AnnotationClusterProvider = "pelago.io/cluster-provider"
	AnnotationClusterRegion   = "pelago.io/cluster-region"
	AnnotationClusterZones    = "pelago.io/cluster-zones"
	// AnnotationClusterLabels are the keys of those labels that the member gets, separated by
	// commas.
	AnnotationClusterLabels = "pelago.io/cluster-labels"
)

// AnnotationClusterAPI of a Cluster at the hub names the Cluster API object for which it was
// joined, as NAMESPACE/NAME@UID; UID is that of the kube-system namespace in the cluster that has
// the object. Written by the operator.
const AnnotationClusterAPI = "pelago.io/cluster-api"

// Condition types.
const (
	// ConditionReady: what the spec requests runs. It is the one by which GitOps tools judge
	// health.
	ConditionReady = "Ready"
	// ConditionAvailable: every component serves, be it of the former version or with former
	// settings.
	ConditionAvailable = "Available"
	// ConditionProgressing: a change is being rolled out.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: the spec, or what it depends on, is refused; what ran before continues.
	// The message names field and remedy.
	ConditionDegraded = "Degraded"
	// ConditionGatewaysRedundant of a Submariner: the cluster has more than one gateway. Ready does
	// not depend on it.
	ConditionGatewaysRedundant = "GatewaysRedundant"
)

// Status is what the kinds of this package report in common.
type Status struct {
	// ObservedGeneration is the generation of the spec that the conditions are about.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
