package kinds

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	workv1alpha2 "github.com/pelago-net/pelago/api/work/v1alpha2"
)

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
