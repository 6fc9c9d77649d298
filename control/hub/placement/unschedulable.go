package placement

import (
	"encoding/json"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/control/hub/binding"
)

const (
	// unschedulableRetry is the time between two attempts to move replicas that no node can run.
	unschedulableRetry = 30 * time.Second
	// movedFor is how long Decision.Moved is kept.
	movedFor = time.Hour
)

// unschedulable are the replicas of a Deployment that no node of their cluster has been able to run
// for UnschedulableAfter, as Karmada's descheduler has them: none that are ready. A report of
// another number of replicas than the present one is outdated, and does not count.
func (v *Evictor) unschedulable(b binding.Binding, e *Eviction) {
	if v.UnschedulableAfter < 0 || len(b.Spec.GracefulEvictionTasks) > 0 {
		return
	}
	for _, t := range b.Spec.Clusters {
		s := statusIn(b.Status, t.Name)
		if s == nil || !s.Applied || s.UnschedulablePods == 0 || s.UnschedulableSince == nil || s.Status == nil {
			continue
		}
		var of struct{ Replicas, ReadyReplicas int32 }
		if json.Unmarshal(s.Status.Raw, &of) != nil || of.Replicas != t.Replicas {
			continue
		}
		if left := s.UnschedulableSince.Add(v.UnschedulableAfter).Sub(v.Now); left > 0 {
			e.wait(left)
			continue
		}
		if n := min(s.UnschedulablePods, t.Replicas-of.ReadyReplicas); n > 0 {
			e.Unschedulable = append(e.Unschedulable, workv1alpha2.TargetCluster{Name: t.Name, Replicas: n})
			e.wait(unschedulableRetry)
		}
	}
}

// HasUnschedulable reports whether a status has unschedulable pods.
func HasUnschedulable(s *workv1alpha2.ResourceBindingStatus) bool {
	for i := range s.AggregatedStatus {
		if s.AggregatedStatus[i].UnschedulablePods > 0 {
			return true
		}
	}
	return false
}

// Moved are the entries of Decision.Moved that still count at a time.
func Moved(before *workv1alpha2.Decision, now time.Time) (out map[string]metav1.MicroTime) {
	for cluster, at := range before.Moved {
		if now.Sub(at.Time) >= movedFor {
			continue
		}
		if out == nil {
			out = map[string]metav1.MicroTime{}
		}
		out[cluster] = at
	}
	return out
}
