package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

const (
	// Finalizer of a Submariner: Pelago is removed from the cluster before the object is gone.
	Finalizer = "submariner.io/pelago-operator"
	// AnnotationFlags adds flags of `pelago join` (Submariner) or `pelago deploy-broker` (Broker) that have no field, separated by
	// spaces, each as --name=value.
	AnnotationFlags = "pelago.io/flags"
	// BrokerInfoSecret is what the operator writes beside a Broker: the key broker-info.subm, renewed before its credential ends.
	BrokerInfoSecret = "broker-info"
	// BrokerInfoKey is the key of a broker-info.subm in a Secret.
	BrokerInfoKey = "broker-info.subm"
)

// Condition types.
const (
	// ConditionReady: what the spec asks for runs. It is the one by which GitOps tools judge health.
	ConditionReady = "Ready"
	// ConditionAvailable: every component serves, be it of the former version or with former settings.
	ConditionAvailable = "Available"
	// ConditionProgressing: a change is being rolled out.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: the spec, or what it depends on, is refused; what ran before goes on. The message names field and remedy.
	ConditionDegraded = "Degraded"
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
