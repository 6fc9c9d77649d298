package kinds

import (
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// aggregateJob sums up the pods. The Job is complete when it is complete in all clusters, and has failed when it has ended in all of
// them and failed in one; until then FailureTarget says that it will. The API server (since 1.31) refuses any other order, as well
// as counters that fall, a changed start and a finished Job that changes.
func aggregateJob(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	job, err := typed[batchv1.Job](template.Object)
	if err != nil {
		return nil, err
	}
	old := job.Status
	if len(items) == 0 || conditionOf(&old, batchv1.JobComplete) != nil || conditionOf(&old, batchv1.JobFailed) != nil {
		return nil, nil
	}
	out := batchv1.JobStatus{StartTime: old.StartTime}
	complete, ended := 0, 0
	var failing []string
	var last, begun metav1.Time // when the last cluster completed, when the first one ended otherwise
	for i := range items {
		s, err := decode[batchv1.JobStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		out.Active += s.Active
		out.Succeeded += s.Succeeded
		out.Failed += s.Failed
		if old.StartTime == nil && s.StartTime != nil && (out.StartTime == nil || s.StartTime.Before(out.StartTime)) {
			out.StartTime = s.StartTime
		}
		if c := conditionOf(s, batchv1.JobComplete); c != nil {
			complete++
			ended++
			if at := completedAt(s, c); last.Before(at) {
				last = *at
			}
		}
		if c := conditionOf(s, batchv1.JobFailed); c != nil {
			ended++
			failing = append(failing, items[i].ClusterName)
			if begun.IsZero() || c.LastTransitionTime.Before(&begun) {
				begun = c.LastTransitionTime
			}
		}
	}
	out.Succeeded, out.Failed = max(out.Succeeded, old.Succeeded), max(out.Failed, old.Failed)

	target := conditionOf(&old, batchv1.JobFailureTarget)
	if len(failing) > 0 { // else the cluster that failed has gone, but the API server keeps the Job to its word
		target = condition(batchv1.JobFailureTarget, "MemberFailed", "the job failed in "+strings.Join(failing, ", "), begun)
	}
	switch {
	case target != nil:
		out.Conditions = append(out.Conditions, *target)
		if ended == len(items) {
			out.Conditions = append(out.Conditions, *condition(batchv1.JobFailed, target.Reason, target.Message, target.LastTransitionTime))
		}
	case complete == len(items):
		text := fmt.Sprintf("the job is complete in all %d clusters", complete)
		out.CompletionTime = &last
		out.Conditions = append(out.Conditions,
			*condition(batchv1.JobSuccessCriteriaMet, batchv1.JobReasonCompletionsReached, text, last),
			*condition(batchv1.JobComplete, batchv1.JobReasonCompletionsReached, text, last))
	}
	return untyped(&out)
}

// conditionOf is the condition of a type if it is true.
func conditionOf(s *batchv1.JobStatus, t batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range s.Conditions {
		if c := &s.Conditions[i]; c.Type == t && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

func completedAt(s *batchv1.JobStatus, c *batchv1.JobCondition) *metav1.Time {
	if s.CompletionTime != nil {
		return s.CompletionTime
	}
	return &c.LastTransitionTime
}

func condition(t batchv1.JobConditionType, reason, message string, at metav1.Time) *batchv1.JobCondition {
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: at, LastProbeTime: at,
	}
}

// aggregateCronJob lists what runs anywhere, with the latest times.
func aggregateCronJob(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	var out batchv1.CronJobStatus
	for i := range items {
		s, err := decode[batchv1.CronJobStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if s == nil {
			continue
		}
		out.Active = append(out.Active, s.Active...)
		out.LastScheduleTime = later(out.LastScheduleTime, s.LastScheduleTime)
		out.LastSuccessfulTime = later(out.LastSuccessfulTime, s.LastSuccessfulTime)
	}
	return untyped(&out)
}

func later(a, b *metav1.Time) *metav1.Time {
	if a == nil || a.Before(b) {
		return b
	}
	return a
}
