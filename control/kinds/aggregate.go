package kinds

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

// counts names the fields of a status, whose Go type is T, that are summed up over the clusters.
type counts[T any] []string

// aggregate returns the sums, with observedGeneration.
func (c counts[T]) aggregate(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	sums := map[string]int64{}
	caughtUp := true
	for i := range items {
		status, err := decode[map[string]any](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			caughtUp = false
			continue
		}
		for _, name := range c {
			n, _, err := unstructured.NestedInt64(*status, name)
			if err != nil {
				return nil, fmt.Errorf("cluster %s: %w", items[i].ClusterName, err)
			}
			sums[name] += n
		}
		seen, err := current(*status, template.GetGeneration())
		if err != nil {
			return nil, fmt.Errorf("cluster %s: %w", items[i].ClusterName, err)
		}
		caughtUp = caughtUp && seen
	}
	out := map[string]any{}
	for _, name := range c {
		out[name] = sums[name]
	}
	generation := template.GetGeneration()
	if !caughtUp {
		generation, _, _ = unstructured.NestedInt64(template.Object, "status", fieldObservedGeneration) // 0 where there is none
	}
	if generation != 0 {
		out[fieldObservedGeneration] = generation
	}
	return canonical[T](out)
}

// current says whether a reflected status is of this generation of the template, and the member's controller has seen that.
func current(status map[string]any, generation int64) (bool, error) {
	var n [3]int64
	for i, name := range []string{fieldObservedGeneration, fieldGeneration, fieldTemplateGeneration} {
		var err error
		if n[i], err = generationAt(status, name); err != nil {
			return false, err
		}
	}
	return n[0] >= n[1] && n[2] >= generation, nil
}

// decode reads what a cluster reflects; nil if it has not yet.
func decode[T any](item *workv1alpha2.AggregatedStatusItem) (*T, error) {
	if item.Status == nil || len(item.Status.Raw) == 0 {
		return nil, nil
	}
	out := new(T)
	if err := json.Unmarshal(item.Status.Raw, out); err != nil {
		return nil, fmt.Errorf("status of cluster %s: %w", item.ClusterName, err)
	}
	return out, nil
}

// canonical brings a status into the form in which the API server returns it: zero fields are there or not as its type says.
func canonical[T any](status map[string]any) (map[string]any, error) {
	t, err := typed[T](status)
	if err != nil {
		return nil, err
	}
	return untyped(t)
}

func untyped(status any) (map[string]any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(status)
}

// aggregateBudget adds the pods that are about to go, each as cluster/pod.
func aggregateBudget(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	out, err := budgetCounts.aggregate(template, items)
	if err != nil {
		return nil, err
	}
	pods := map[string]any{}
	for i := range items {
		status, err := decode[policyv1.PodDisruptionBudgetStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for name, at := range status.DisruptedPods {
			pods[items[i].ClusterName+"/"+name] = at.ToUnstructured()
		}
	}
	if len(pods) > 0 {
		out["disruptedPods"] = pods
	}
	return out, nil
}

// aggregateService lists the addresses of all load balancers. One without a host name gets its cluster's, to tell whose it is.
func aggregateService(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	kind, _, err := unstructured.NestedString(template.Object, "spec", "type")
	if err != nil {
		return nil, err
	}
	var out corev1.ServiceStatus
	if kind != string(corev1.ServiceTypeLoadBalancer) {
		return untyped(&out)
	}
	for i := range items {
		status, err := decode[corev1.ServiceStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for _, in := range status.LoadBalancer.Ingress {
			if in.Hostname == "" {
				in.Hostname = items[i].ClusterName
			}
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
		}
	}
	return untyped(&out)
}

// aggregateIngress does the same for an Ingress.
func aggregateIngress(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	var out networkingv1.IngressStatus
	for i := range items {
		status, err := decode[networkingv1.IngressStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			continue
		}
		for _, in := range status.LoadBalancer.Ingress {
			if in.Hostname == "" {
				in.Hostname = items[i].ClusterName
			}
			out.LoadBalancer.Ingress = append(out.LoadBalancer.Ingress, in)
		}
	}
	return untyped(&out)
}

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

// Phases, the one that says most about the whole first.
var (
	podPhases    = []corev1.PodPhase{corev1.PodFailed, corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded}
	volumePhases = []corev1.PersistentVolumePhase{
		corev1.VolumeFailed, corev1.VolumePending, corev1.VolumeAvailable, corev1.VolumeBound, corev1.VolumeReleased}
	claimPhases = []corev1.PersistentVolumeClaimPhase{corev1.ClaimLost, corev1.ClaimPending, corev1.ClaimBound}
)

// foremost is the first of the phases that a cluster has; "" if they have none of them.
func foremost[P comparable](order, have []P) (out P) {
	for _, p := range order {
		if slices.Contains(have, p) {
			return p
		}
	}
	return out
}

// aggregatePod: the pod of a cluster that has not reported is pending. Containers are named cluster/container, since the API server
// compares those of one name; the class is the one that it set.
func aggregatePod(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	var out corev1.PodStatus
	var phases []corev1.PodPhase
	for i := range items {
		status, err := decode[corev1.PodStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			phases = append(phases, corev1.PodPending)
			continue
		}
		phases = append(phases, status.Phase)
		out.ContainerStatuses = append(out.ContainerStatuses, containersOf(items[i].ClusterName, status.ContainerStatuses)...)
		out.InitContainerStatuses = append(out.InitContainerStatuses, containersOf(items[i].ClusterName, status.InitContainerStatuses)...)
	}
	out.Phase = foremost(podPhases, phases)
	class, _, err := unstructured.NestedString(template.Object, "status", "qosClass")
	if err != nil {
		return nil, err
	}
	out.QOSClass = corev1.PodQOSClass(class)
	return untyped(&out)
}

func containersOf(cluster string, all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, c := range all {
		out = append(out, corev1.ContainerStatus{Name: cluster + "/" + c.Name, Ready: c.Ready, State: c.State})
	}
	return out
}

// aggregateVolume: the volume of a cluster that has not reported is pending. The time of the last change is the API server's.
func aggregateVolume(template *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	var phases []corev1.PersistentVolumePhase
	for i := range items {
		status, err := decode[corev1.PersistentVolumeStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			status = &corev1.PersistentVolumeStatus{Phase: corev1.VolumePending}
		}
		phases = append(phases, status.Phase)
	}
	out, err := untyped(&corev1.PersistentVolumeStatus{Phase: foremost(volumePhases, phases)})
	if err != nil {
		return nil, err
	}
	return out, copyField(map[string]any{"status": out}, template.Object, "status", "lastPhaseTransitionTime")
}

// aggregateClaim: the claim of a cluster that has not reported is pending.
func aggregateClaim(_ *unstructured.Unstructured, items []workv1alpha2.AggregatedStatusItem) (map[string]any, error) {
	if len(items) == 0 {
		return nil, nil
	}
	var phases []corev1.PersistentVolumeClaimPhase
	for i := range items {
		status, err := decode[corev1.PersistentVolumeClaimStatus](&items[i])
		if err != nil {
			return nil, err
		}
		if status == nil {
			status = &corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending}
		}
		phases = append(phases, status.Phase)
	}
	return untyped(&corev1.PersistentVolumeClaimStatus{Phase: foremost(claimPhases, phases)})
}
