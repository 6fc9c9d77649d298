package kinds

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// report is the status that one cluster reflects, as type T.
type report[T any] struct {
	cluster string
	status  *T // nil: the cluster has not reported
}

// reports decodes the reflected statuses, in the order of items.
func reports[T any](items []workv1alpha2.AggregatedStatusItem) ([]report[T], error) {
	out := make([]report[T], len(items))
	for i := range items {
		out[i].cluster = items[i].ClusterName
		if items[i].Status == nil || len(items[i].Status.Raw) == 0 {
			continue
		}
		out[i].status = new(T)
		if err := json.Unmarshal(items[i].Status.Raw, out[i].status); err != nil {
			return nil, fmt.Errorf("status of cluster %s: %w", items[i].ClusterName, err)
		}
	}
	return out, nil
}

// statuses are the reflected statuses of the clusters that have reported.
func statuses[T any](items []workv1alpha2.AggregatedStatusItem) ([]report[T], error) {
	all, err := reports[T](items)
	return slices.DeleteFunc(all, func(r report[T]) bool { return r.status == nil }), err
}

// untypedReports are the reports as the functions of CEL rules take them.
func untypedReports(items []workv1alpha2.AggregatedStatusItem) ([]reported, error) {
	all, err := reports[map[string]any](items)
	if err != nil {
		return nil, err
	}
	out := make([]reported, len(all))
	for i, r := range all {
		out[i].cluster = r.cluster
		if r.status != nil {
			out[i].status = *r.status
		}
	}
	return out, nil
}

// counts names the fields of a status, whose Go type is T, that are summed over the clusters.
type counts[T any] []string

// aggregate returns the sums, with observedGeneration, in the form in which the API server returns
// a T: whether a zero field is present depends on its type.
func (c counts[T]) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	all, err := untypedReports(items)
	if err != nil {
		return nil, err
	}
	sum, err := sumReports(template, all, c)
	if err != nil {
		return nil, err
	}
	status, err := typed[T](sum)
	if err != nil {
		return nil, err
	}
	return untyped(status)
}

func untyped(status any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(status)
}

// aggregateBudget adds the disrupted pods, each as cluster/pod.
func aggregateBudget(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	out, err := aggregateBudgetCounts(template, items)
	if err != nil {
		return nil, err
	}
	all, err := statuses[policyv1.PodDisruptionBudgetStatus](items)
	if err != nil {
		return nil, err
	}
	pods := map[string]any{}
	for _, r := range all {
		for name, at := range r.status.DisruptedPods {
			pods[r.cluster+"/"+name] = at.ToUnstructured()
		}
	}
	if len(pods) > 0 {
		out["disruptedPods"] = pods
	}
	return out, nil
}

// aggregateService lists the addresses of all load balancers, each once. The name of a cluster is
// no host name: external-dns would publish it.
func aggregateService(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	kind, _, err := unstructured.NestedString(template.Object, "spec", "type")
	if err != nil {
		return nil, err
	}
	var out corev1.ServiceStatus
	if kind != string(corev1.ServiceTypeLoadBalancer) {
		return untyped(&out)
	}
	all, err := statuses[corev1.ServiceStatus](items)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, in := range r.status.LoadBalancer.Ingress {
			same := func(x corev1.LoadBalancerIngress) bool { return equality.Semantic.DeepEqual(x, in) }
			if !slices.ContainsFunc(out.LoadBalancer.Ingress, same) {
				out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
			}
		}
	}
	return untyped(&out)
}

// aggregateIngress does the same for an Ingress.
func aggregateIngress(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	var out networkingv1.IngressStatus
	all, err := statuses[networkingv1.IngressStatus](items)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		for _, in := range r.status.LoadBalancer.Ingress {
			same := func(x networkingv1.IngressLoadBalancerIngress) bool { return equality.Semantic.DeepEqual(x, in) }
			if !slices.ContainsFunc(out.LoadBalancer.Ingress, same) {
				out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
			}
		}
	}
	return untyped(&out)
}

// aggregateJob sums the pods. The Job is complete when it is complete in all clusters, and failed
// when it has ended in all of them and failed in one; until then FailureTarget announces the
// failure. The API server (since 1.31) refuses any other order, decreasing counters, a changed
// start time and changes of a finished Job.
func aggregateJob(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	job, err := typed[batchv1.Job](template.Object)
	if err != nil {
		return nil, err
	}
	old := job.Status
	if len(items) == 0 || conditionOf(&old, batchv1.JobComplete) != nil || conditionOf(&old, batchv1.JobFailed) != nil {
		return nil, nil
	}
	all, err := statuses[batchv1.JobStatus](items)
	if err != nil {
		return nil, err
	}
	out := batchv1.JobStatus{StartTime: old.StartTime}
	complete, ended := 0, 0
	var failing []string
	var last, first metav1.Time // last completion, first failure
	for _, r := range all {
		s := r.status
		out.Active += s.Active
		out.Succeeded += s.Succeeded
		out.Failed += s.Failed
		if old.StartTime == nil && s.StartTime != nil && (out.StartTime == nil || s.StartTime.Before(out.StartTime)) {
			out.StartTime = s.StartTime
		}
		if c := conditionOf(s, batchv1.JobComplete); c != nil {
			complete++
			ended++
			at := s.CompletionTime
			if at == nil {
				at = &c.LastTransitionTime
			}
			if last.Before(at) {
				last = *at
			}
		}
		if c := conditionOf(s, batchv1.JobFailed); c != nil {
			ended++
			failing = append(failing, r.cluster)
			if first.IsZero() || c.LastTransitionTime.Before(&first) {
				first = c.LastTransitionTime
			}
		}
	}
	out.Succeeded, out.Failed = max(out.Succeeded, old.Succeeded), max(out.Failed, old.Failed)

	// FailureTarget remains when the cluster that failed was removed: the API server refuses to
	// remove it.
	target := conditionOf(&old, batchv1.JobFailureTarget)
	if len(failing) > 0 {
		target = condition(batchv1.JobFailureTarget, "MemberFailed", "the job failed in "+strings.Join(failing, ", "), first)
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

func condition(t batchv1.JobConditionType, reason, message string, at metav1.Time) *batchv1.JobCondition {
	return &batchv1.JobCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: at, LastProbeTime: at,
	}
}

// aggregateCronJob lists the active Jobs of all clusters, with the latest times.
func aggregateCronJob(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	all, err := statuses[batchv1.CronJobStatus](items)
	if err != nil {
		return nil, err
	}
	var out batchv1.CronJobStatus
	for _, r := range all {
		out.Active = append(out.Active, r.status.Active...)
		out.LastScheduleTime = later(out.LastScheduleTime, r.status.LastScheduleTime)
		out.LastSuccessfulTime = later(out.LastSuccessfulTime, r.status.LastSuccessfulTime)
	}
	return untyped(&out)
}

func later(a, b *metav1.Time) *metav1.Time {
	if a == nil || a.Before(b) {
		return b
	}
	return a
}

// Phases in order of precedence: the aggregate has the first one that any cluster reports.
var (
	podPhases    = []corev1.PodPhase{corev1.PodFailed, corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded}
	volumePhases = []corev1.PersistentVolumePhase{
		corev1.VolumeFailed, corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased}
	claimPhases = []corev1.PersistentVolumeClaimPhase{corev1.ClaimLost, corev1.ClaimPending, corev1.ClaimBound}
)

// foremost returns the first value of the order that is in have; "" if none exists.
func foremost[P comparable](order, have []P) (out P) {
	for _, p := range order {
		if slices.Contains(have, p) {
			return p
		}
	}
	return out
}

// phaseOf returns the foremost phase of the reported statuses, pending standing for a cluster that
// has not reported.
func phaseOf[T any, P comparable](items []workv1alpha2.AggregatedStatusItem, order []P, pending P, phase func(*T) P) (P, error) {
	all, err := reports[T](items)
	var have []P
	for _, r := range all {
		if r.status == nil {
			have = append(have, pending)
		} else {
			have = append(have, phase(r.status))
		}
	}
	return foremost(order, have), err
}

// aggregatePod names containers cluster/container, since the API server compares those of one name.
// It keeps the QoS class, which the API server set.
func aggregatePod(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	all, err := statuses[corev1.PodStatus](items)
	if err != nil {
		return nil, err
	}
	var out corev1.PodStatus
	for _, r := range all {
		out.ContainerStatuses = append(out.ContainerStatuses, containersOf(r.cluster, r.status.ContainerStatuses)...)
		out.InitContainerStatuses = append(out.InitContainerStatuses, containersOf(r.cluster, r.status.InitContainerStatuses)...)
	}
	out.Phase, err = phaseOf(items, podPhases, corev1.PodPending, func(s *corev1.PodStatus) corev1.PodPhase { return s.Phase })
	if err != nil {
		return nil, err
	}
	class, _, err := unstructured.NestedString(template.Object, "status", "qosClass")
	if err != nil {
		return nil, err
	}
	out.QOSClass = corev1.PodQOSClass(class)
	reports, err := untypedReports(items)
	if err != nil {
		return nil, err
	}
	list, err := podConditions.aggregate(template, reports)
	if err != nil {
		return nil, err
	}
	of, err := typed[corev1.PodStatus](map[string]any{"conditions": list})
	if err != nil {
		return nil, err
	}
	out.Conditions = of.Conditions
	return untyped(&out)
}

func containersOf(cluster string, all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, c := range all {
		out = append(out, corev1.ContainerStatus{Name: cluster + "/" + c.Name, Ready: c.Ready, State: c.State})
	}
	return out
}

// aggregateVolume keeps lastPhaseTransitionTime, which the API server sets.
func aggregateVolume(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	phase, err := phaseOf(items, volumePhases, corev1.VolumePending,
		func(s *corev1.PersistentVolumeStatus) corev1.PersistentVolumePhase { return s.Phase })
	if err != nil {
		return nil, err
	}
	out, err := untyped(&corev1.PersistentVolumeStatus{Phase: phase})
	if err != nil {
		return nil, err
	}
	return out, copyField(map[string]any{"status": out}, template.Object, "status", "lastPhaseTransitionTime")
}

func aggregateClaim(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	phase, err := phaseOf(items, claimPhases, corev1.ClaimPending,
		func(s *corev1.PersistentVolumeClaimStatus) corev1.PersistentVolumeClaimPhase { return s.Phase })
	if err != nil {
		return nil, err
	}
	return untyped(&corev1.PersistentVolumeClaimStatus{Phase: phase})
}
