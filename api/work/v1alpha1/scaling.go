package v1alpha1

import (
	"hash/fnv"
	"strconv"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// AnnotationScaling on a Work holds a ScalingRequest as JSON. It is ours.
const AnnotationScaling = "pelago.io/scaling"

// ScalingRequest asks the execution of a Work for the metrics of a FederatedHPA in the member. It
// is the value of an annotation.
//
// +kubebuilder:object:generate=false
type ScalingRequest struct {
	// HPA is namespace/name of the FederatedHPA.
	HPA string `json:"hpa"`
	// Selector selects the pods of the object.
	Selector string                     `json:"selector"`
	Metrics  []autoscalingv2.MetricSpec `json:"metrics"`
}

// ScalingRequestID identifies the text of a ScalingRequest.
func ScalingRequestID(text string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return strconv.FormatUint(h.Sum64(), 36)
}

// ScalingStatus is what a FederatedHPA needs of the pods of the object in the member.
type ScalingStatus struct {
	// Request identifies the request that the report answers.
	Request string `json:"request"`
	// Pods that have neither failed nor are being deleted.
	Pods int32 `json:"pods"`
	// ReadyPods are running and ready.
	ReadyPods int32 `json:"readyPods"`
	// Metrics are in the order of the request.
	//
	// +optional
	// +listType=atomic
	Metrics []MetricReport `json:"metrics,omitempty"`
}

// MetricReport is one metric in one member.
type MetricReport struct {
	// Error is why there are no values.
	//
	// +optional
	Error string `json:"error,omitempty"`
	// Value of an object's or an external metric, in thousandths.
	//
	// +optional
	Value int64 `json:"value,omitempty"`
	// Ready are the pods whose metric counts.
	//
	// +optional
	Ready PodSum `json:"ready,omitempty"`
	// Unready are the pods that are pending, or not ready for a processor metric.
	//
	// +optional
	Unready PodSum `json:"unready,omitempty"`
	// Missing are the pods without a metric.
	//
	// +optional
	Missing PodSum `json:"missing,omitempty"`
}

// PodSum is a sum over pods.
type PodSum struct {
	// +optional
	Pods int64 `json:"pods,omitempty"`
	// Usage in thousandths.
	//
	// +optional
	Usage int64 `json:"usage,omitempty"`
	// Requests in thousandths, of a target that is a utilization.
	//
	// +optional
	Requests int64 `json:"requests,omitempty"`
}
