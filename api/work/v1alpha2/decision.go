package v1alpha2

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationDecision of a binding is the record of the last attempt to decide, JSON of Decision. It
// is written together with spec.clusters, so a restart knows what was decided and from what; status
// follows from it.
const AnnotationDecision = "pelago.io/decision"

// AnnotationTemplate of a binding is a hash of the propagated parts of the template;
// spec.resource.resourceVersion changes only with it, not with the template's status. A Work has
// the annotation of the binding that it was rendered for, which shows the content to which the
// Work's status refers.
const AnnotationTemplate = "pelago.io/template"

// AnnotationRequiredByMore of a dependent's binding is how many bindings need it that
// spec.requiredBy does not name. Their clusters are in it.
const AnnotationRequiredByMore = "pelago.io/required-by-more"

// AnnotationUndivided of a binding is why all replicas have to run in one cluster although the
// policy divides them.
const AnnotationUndivided = "pelago.io/undivided"

// Decision is the outcome of one attempt to decide.
//
// +kubebuilder:object:generate=false
type Decision struct {
	// For is the SpecHash of the binding that the attempt was made for: a hash of its spec without
	// clusters.
	For  string           `json:"for"`
	Time metav1.MicroTime `json:"time"`
	// Reason of the condition Scheduled: Success or one that reports why not.
	Reason string `json:"reason"`
	// Message of the condition Scheduled.
	Message string `json:"message,omitempty"`
	// Scheduled is when an attempt last succeeded; zero: never. It becomes
	// status.lastScheduledTime.
	Scheduled metav1.MicroTime `json:"scheduled,omitempty"`
	// Term is the affinity group of the last success; it becomes
	// status.schedulerObservingAffinityName.
	Term string `json:"term,omitempty"`
	// Unhealthy is since when the template has been unhealthy in clusters; kept for
	// failover.application only.
	Unhealthy map[string]metav1.MicroTime `json:"unhealthy,omitempty"`
	// Failed are the clusters that the template left because it was unhealthy there, with its hash
	// (see AnnotationTemplate); kept for failover.application only, and until the template is
	// another one.
	Failed map[string]string `json:"failed,omitempty"`
	// Near is the annotation pelago.io/near by which the last success was decided.
	Near string `json:"near,omitempty"`
	// Held reports why the template stays in a cluster that it should leave; it becomes the
	// condition Failover.
	Held string `json:"held,omitempty"`
	// Failback is where the template returns to (annotation pelago.io/failback); nil: nowhere.
	Failback *Failback `json:"failback,omitempty"`
	// Stopped is the assignment from before the template was scaled to 0; it starts there again.
	Stopped []TargetCluster `json:"stopped,omitempty"`
	// Moved is when replicas last left clusters because no node there could run them; kept for an
	// hour, in which replicas that leave others for this reason do not go there.
	Moved map[string]metav1.MicroTime `json:"moved,omitempty"`
	// Rejected reports why other clusters were not chosen, the most frequent reason first.
	Rejected []Rejection `json:"rejected,omitempty"`
}

// Failback is the assignment to be restored: that from before the template left clusters.
//
// +kubebuilder:object:generate=false
type Failback struct {
	Clusters []TargetCluster `json:"clusters"`
	// Term is its affinity group.
	Term string `json:"term,omitempty"`
	// Healthy is since when clusters that were left have been ready and without taints that are not
	// tolerated.
	Healthy map[string]metav1.MicroTime `json:"healthy,omitempty"`
	// Message reports what is awaited, and until when; it becomes the condition Failback.
	Message string `json:"message"`
}

// Rejection is a reason and the clusters that it holds for, sorted; of many the first are named.
//
// +kubebuilder:object:generate=false
type Rejection struct {
	Why      string   `json:"why"`
	Clusters []string `json:"clusters"`
	// More is how many others there are.
	More int `json:"more,omitempty"`
}

// ReadDecision returns the decision in the annotations of a binding; nil: there was no attempt.
// What cannot be read counts as none, so that the next attempt replaces it.
func ReadDecision(annotations map[string]string) *Decision {
	text, ok := annotations[AnnotationDecision]
	if !ok {
		return nil
	}
	var d Decision
	if json.Unmarshal([]byte(text), &d) != nil {
		return nil
	}
	return &d
}

// Encode is the annotation's value.
func (d Decision) Encode() (string, error) {
	raw, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("record the decision: %w", err)
	}
	return string(raw), nil
}
