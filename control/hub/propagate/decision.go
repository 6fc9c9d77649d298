package propagate

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	policyv1alpha1 "github.com/pelago-net/pelago/api/policy/v1alpha1"
	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
	"github.com/pelago-net/pelago/scheduler"
)

// named is how many clusters are named in a record for each reason.
const named = 10

// recorded is the record of the last attempt to decide. A binding that another implementation has decided on has its status only.
func recorded(b binding) *workv1alpha2.Decision {
	if d := workv1alpha2.ReadDecision(b.GetAnnotations()); d != nil {
		return d
	}
	d := &workv1alpha2.Decision{Term: b.status.SchedulerObservedAffinityName}
	if b.status.LastScheduledTime != nil {
		d.Scheduled = metav1.NewMicroTime(b.status.LastScheduledTime.Time)
	}
	return d
}

// undecided says whether the last attempt failed, so that another one may succeed when clusters change.
func undecided(b binding) bool {
	d := workv1alpha2.ReadDecision(b.GetAnnotations())
	return d != nil && retried(d.Reason)
}

func retried(reason string) bool {
	return slices.Contains([]string{workv1alpha2.ReasonSchedulerError, workv1alpha2.ReasonNoClusterFit,
		workv1alpha2.ReasonUnschedulable}, reason)
}

// scheduled says whether it is ours to decide for the binding, and nobody holds that.
func scheduled(b binding, before *workv1alpha2.Decision) bool {
	s := b.spec
	if s.Placement == nil || foreign(s.SchedulerName) {
		return false
	}
	held := s.Suspension != nil && ptr.Deref(s.Suspension.Scheduling, false)
	return !held || !before.Scheduled.IsZero() || len(s.Clusters) > 0
}

// request is what is asked of the scheduler, and observed what the last decision was made from.
func request(b binding, before *workv1alpha2.Decision) (*scheduler.Request, scheduler.Observed) {
	s := b.spec
	key, _ := keyOfReference(s.Resource) // the reference is our own
	o := scheduler.Observed{Placement: b.GetAnnotations()[policyv1alpha1.AnnotationAppliedPlacement], Scheduled: before.Scheduled.Time}
	if s.RescheduleTriggeredAt != nil {
		o.Rescheduled = s.RescheduleTriggeredAt.Time
	}
	r := &scheduler.Request{UID: s.Resource.UID, Kind: key.GVK, Placement: s.Placement, Replicas: s.Replicas,
		Requirements: s.ReplicaRequirements, Components: len(s.Components), Current: s.Clusters, Term: before.Term,
		Fresh: o.Rescheduled.After(o.Scheduled)}
	for i := range s.GracefulEvictionTasks {
		r.Evicted = append(r.Evicted, s.GracefulEvictionTasks[i].FromCluster)
	}
	return r, o
}

// unsupported names the fields of a binding that nothing acts on so far; binding says that a decision made without them might
// be a wrong one.
func unsupported(s *workv1alpha2.ResourceBindingSpec) (fields []string, binding bool) {
	if s.Placement.WorkloadAffinity != nil {
		fields, binding = append(fields, "placement.workloadAffinity"), true
	}
	for i, c := range s.Placement.SpreadConstraints {
		switch {
		case c.SpreadByLabel != "":
			fields, binding = append(fields, fmt.Sprintf("placement.spreadConstraints[%d].spreadByLabel", i)), true
		case c.SpreadByField != policyv1alpha1.SpreadByFieldCluster && c.SpreadByField != policyv1alpha1.SpreadByFieldRegion:
			fields, binding = append(fields, fmt.Sprintf("placement.spreadConstraints[%d].spreadByField=%s", i, c.SpreadByField)), true
		}
	}
	if f := s.Failover; f != nil {
		if f.Application != nil {
			fields = append(fields, "failover.application"+preservation(f.Application.StatePreservation))
		}
		if f.Cluster != nil {
			fields = append(fields, "failover.cluster"+preservation(f.Cluster.StatePreservation))
		}
	}
	return fields, binding
}

// preservation says that state is not preserved either. What an eviction task brings along itself is carried over (control/hub/work).
func preservation(p *policyv1alpha1.StatePreservation) string {
	if p == nil {
		return ""
	}
	return " with its statePreservation"
}

// reasonOf is that of the condition Scheduled for what the scheduler says.
func reasonOf(err error) string {
	var fit *scheduler.FitError
	switch {
	case errors.As(err, &fit):
		return workv1alpha2.ReasonNoClusterFit
	case scheduler.Invalid(err):
		return workv1alpha2.ReasonSchedulerError
	}
	return workv1alpha2.ReasonUnschedulable
}

// rejections groups reasons, the most frequent first.
func rejections(all []scheduler.Reason) []workv1alpha2.Rejection {
	by := map[string][]string{}
	for _, r := range all {
		by[r.Why] = append(by[r.Why], r.Cluster)
	}
	var out []workv1alpha2.Rejection
	for why, clusters := range by {
		slices.Sort(clusters)
		r := workv1alpha2.Rejection{Why: why, Clusters: clusters}
		if len(clusters) > named {
			r.Clusters, r.More = clusters[:named:named], len(clusters)-named
		}
		out = append(out, r)
	}
	slices.SortFunc(out, func(a, b workv1alpha2.Rejection) int {
		return cmp.Or(cmp.Compare(len(b.Clusters)+b.More, len(a.Clusters)+a.More), strings.Compare(a.Why, b.Why))
	})
	return out
}

// succeeded is the record of a decision that was asked for at a certain time (zero: by nobody).
func succeeded(d scheduler.Decision, hash string, now, asked time.Time) *workv1alpha2.Decision {
	at := now
	if asked.After(at) { // by a clock ahead of ours: the request is met all the same
		at = asked
	}
	return &workv1alpha2.Decision{For: hash, Time: metav1.NewMicroTime(now), Reason: workv1alpha2.ReasonSuccess,
		Scheduled: metav1.NewMicroTime(at), Term: d.Term, Rejected: rejections(d.Reasons)}
}

// failed is the record of an attempt that led to nothing; before is the record until then.
func failed(before *workv1alpha2.Decision, hash, reason, message string, rejected []workv1alpha2.Rejection,
	now time.Time) *workv1alpha2.Decision {
	return &workv1alpha2.Decision{For: hash, Time: metav1.NewMicroTime(now), Reason: reason, Message: message,
		Scheduled: before.Scheduled, Term: before.Term, Rejected: rejected}
}

// kept is the record if what was decided holds for a changed binding, too.
func kept(before *workv1alpha2.Decision, hash string, now time.Time) *workv1alpha2.Decision {
	out := *before
	out.For, out.Time, out.Reason, out.Message = hash, metav1.NewMicroTime(now), workv1alpha2.ReasonSuccess, ""
	return &out
}

// reported is the record of an outcome in which fields of the policy have no part yet.
func reported(d *workv1alpha2.Decision, fields []string) *workv1alpha2.Decision {
	if len(fields) > 0 && d.Reason == workv1alpha2.ReasonSuccess {
		d.Reason, d.Message = workv1alpha2.ReasonNotSupportedYet, notSupported(fields, "the clusters were chosen without it")
	}
	return d
}

func notSupported(fields []string, so string) string {
	return fmt.Sprintf("%s: accepted, but nothing acts on it yet; %s", strings.Join(fields, ", "), so)
}

// sameRecord compares but for times. Why others were not chosen belongs to the moment of a decision: alone it is not written anew.
func sameRecord(a, b *workv1alpha2.Decision) bool {
	return a.For == b.For && a.Reason == b.Reason && a.Message == b.Message && a.Term == b.Term &&
		a.Scheduled.IsZero() == b.Scheduled.IsZero() && (!retried(a.Reason) || equality.Semantic.DeepEqual(a.Rejected, b.Rejected))
}
