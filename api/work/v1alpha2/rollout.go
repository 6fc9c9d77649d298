package v1alpha2

import (
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationRollout of a binding is the state of the rollout of its template, JSON of Rollout. It
// exists if the policy has policyv1alpha1.AnnotationRollout.
const AnnotationRollout = "pelago.io/rollout-state"

// AnnotationRevision of a Work is the revision of the template in it (Rollout.Revision).
// AnnotationKeptRevision is the template of the revision that has passed, as `REVISION:CONTENT`:
// JSON, gzip, base64. Works of a binding with AnnotationRollout have both.
const (
	AnnotationRevision     = "pelago.io/revision"
	AnnotationKeptRevision = "pelago.io/kept-revision"
)

// Values of Rollout.Hold.
const (
	RolloutPaused  = "Paused"
	RolloutAborted = "Aborted"
)

// Rollout is the state of the rollout of a template. A cluster has the revision Revision if it is
// in Clusters, or if that has passed, else Passed.
//
// +kubebuilder:object:generate=false
type Rollout struct {
	// Revision is the newest revision: the TemplateHash of the template with 0 replicas. Passed is
	// the newest that was done in all clusters; they are equal while no rollout is in progress.
	Revision string `json:"revision"`
	Passed   string `json:"passed"`
	// Clusters are those that have Revision before it has passed.
	Clusters map[string]RolloutCluster `json:"clusters,omitempty"`
	// Hold is what a user has requested: RolloutPaused, RolloutAborted (until the next revision) or
	// nothing.
	Hold string `json:"hold,omitempty"`
	// Reason and Message of the condition Rollout; empty: there is none.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// RolloutCluster is a cluster with a revision that has not passed.
//
// +kubebuilder:object:generate=false
type RolloutCluster struct {
	// Since is when its progress deadline began: with the revision, or with other Replicas.
	Since    metav1.MicroTime `json:"since"`
	Replicas int32            `json:"replicas,omitempty"`
	// Healthy is when its soak began.
	Healthy *metav1.MicroTime `json:"healthy,omitempty"`
	Done    bool              `json:"done,omitempty"`
	// Failed is why it stops the rollout.
	Failed string `json:"failed,omitempty"`
}

// States of a cluster in a rollout.
const (
	RolloutWaiting   = "waiting"
	RolloutApplying  = "applying"
	RolloutSoaking   = "soaking"
	RolloutDone      = "done"
	RolloutUnhealthy = "unhealthy"
)

// ReadRollout returns the state in the annotations of a binding; nil: it has none. What cannot be
// read counts as none.
func ReadRollout(annotations map[string]string) *Rollout {
	text, ok := annotations[AnnotationRollout]
	if !ok {
		return nil
	}
	var r Rollout
	if json.Unmarshal([]byte(text), &r) != nil || r.Revision == "" {
		return nil
	}
	return &r
}

// Encode is the annotation's value.
func (r Rollout) Encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("record the rollout: %w", err)
	}
	return string(raw), nil
}

// InProgress reports whether the newest revision has not passed.
func (r *Rollout) InProgress() bool { return r.Revision != r.Passed }

// In is the revision of a cluster and its state.
func (r *Rollout) In(cluster string) (revision, state string) {
	c, ok := r.Clusters[cluster]
	switch {
	case !r.InProgress():
		return r.Revision, RolloutDone
	case !ok:
		return r.Passed, RolloutWaiting
	case c.Done:
		return r.Revision, RolloutDone
	case c.Failed != "":
		return r.Revision, RolloutUnhealthy
	case c.Healthy != nil:
		return r.Revision, RolloutSoaking
	}
	return r.Revision, RolloutApplying
}

// Resume ends a hold. A cluster that stopped the rollout counts as done.
func (r *Rollout) Resume() {
	r.Hold = ""
	for name, c := range r.Clusters {
		if c.Failed != "" {
			c.Failed, c.Done = "", true
			r.Clusters[name] = c
		}
	}
}
