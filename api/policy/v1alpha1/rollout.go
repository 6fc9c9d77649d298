package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"
)

// AnnotationRollout of a propagation policy makes new revisions of its templates reach clusters in
// waves. The value is a JSON object of Rollout.
//
//	pelago.io/rollout: '{"order": ["tier=canary"], "maxClusters": 2, "soak": "10m"}'
const AnnotationRollout = "pelago.io/rollout"

// Bounds and defaults of AnnotationRollout.
const (
	maxWaves               = 16
	maxRolloutTime         = 7 * 24 * time.Hour
	defaultProgressTimeout = 10 * time.Minute
)

// Rollout is how a new revision of a template reaches clusters.
//
// +kubebuilder:object:generate=false
type Rollout struct {
	// Order are label selectors of Clusters, one for each wave; a cluster belongs to the first that
	// matches. Those that match none are the last wave.
	Order []string `json:"order,omitempty"`
	// MaxClusters bounds the clusters with a revision that has not passed its soak; 0: no bound.
	MaxClusters int `json:"maxClusters,omitempty"`
	// Soak is how long a cluster must stay healthy with the revision until it is done.
	Soak metav1.Duration `json:"soak,omitzero"`
	// StopWhenUnhealthy stops the rollout where the revision is not healthy at ProgressDeadline, or
	// becomes unhealthy in its soak; nil: true.
	StopWhenUnhealthy *bool `json:"stopWhenUnhealthy,omitempty"`
	// ProgressDeadline is how long a cluster may take until the revision is healthy; 0: 10 minutes.
	ProgressDeadline metav1.Duration `json:"progressDeadline,omitzero"`

	selectors []labels.Selector
}

// RolloutOf reads AnnotationRollout of a policy or a binding; nil: it has none.
func RolloutOf(annotations map[string]string) (*Rollout, error) {
	text, ok := annotations[AnnotationRollout]
	if !ok {
		return nil, nil
	}
	var r Rollout
	in := json.NewDecoder(bytes.NewBufferString(text))
	in.DisallowUnknownFields()
	err := in.Decode(&r)
	if err == nil && in.Decode(&struct{}{}) != io.EOF {
		err = errors.New("there is more than one object")
	}
	if err != nil {
		return nil, fmt.Errorf(`%w: use {"order": ["tier=canary"], "maxClusters": 2, "soak": "10m"}`, err)
	}
	switch {
	case len(r.Order) == 0 && r.MaxClusters == 0:
		return nil, errors.New("neither order nor maxClusters is set: set one of them")
	case len(r.Order) > maxWaves:
		return nil, fmt.Errorf("order has %d selectors: name %d at most", len(r.Order), maxWaves)
	case r.MaxClusters < 0:
		return nil, fmt.Errorf("maxClusters %d: set 1 at least, or leave it out", r.MaxClusters)
	case r.Soak.Duration < 0 || r.Soak.Duration > maxRolloutTime:
		return nil, fmt.Errorf("soak %s is out of range: set 0s at least and %s at most", r.Soak.Duration, maxRolloutTime)
	case r.ProgressDeadline.Duration < 0 || r.ProgressDeadline.Duration > maxRolloutTime:
		return nil, fmt.Errorf("progressDeadline %s is out of range: set 1s at least and %s at most", r.ProgressDeadline.Duration, maxRolloutTime)
	}
	if r.ProgressDeadline.Duration == 0 {
		r.ProgressDeadline.Duration = defaultProgressTimeout
	}
	for _, text := range r.Order {
		s, err := labels.Parse(text)
		if err == nil && s.Empty() {
			err = errors.New("it is empty")
		}
		if err != nil {
			return nil, fmt.Errorf("selector %q of order: %w", text, err)
		}
		r.selectors = append(r.selectors, s)
	}
	return &r, nil
}

// Stops reports whether an unhealthy cluster stops the rollout.
func (r *Rollout) Stops() bool { return ptr.Deref(r.StopWhenUnhealthy, true) }

// Wave is the wave of a cluster by its labels, from 1.
func (r *Rollout) Wave(of map[string]string) int {
	for i, s := range r.selectors {
		if s.Matches(labels.Set(of)) {
			return i + 1
		}
	}
	return len(r.selectors) + 1
}

// Matches reports whether the selector of a wave matches a cluster by its labels.
func (r *Rollout) Matches(wave int, of map[string]string) bool {
	return r.selectors[wave-1].Matches(labels.Set(of))
}
