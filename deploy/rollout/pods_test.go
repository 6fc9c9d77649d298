package rollout

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestPodReason(t *testing.T) {
	status := func(s corev1.ContainerStatus) corev1.Pod {
		return corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning, ContainerStatuses: []corev1.ContainerStatus{s}}}
	}
	waiting := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff", Message: "back-off"}}
	died := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Error", ExitCode: 1, Message: "kernel 5.4 is too old"}}
	for want, pod := range map[string]corev1.Pod{
		"Error, exit status 1 kernel 5.4 is too old": status(corev1.ContainerStatus{State: waiting, LastTerminationState: died}),
		"CrashLoopBackOff back-off":                  status(corev1.ContainerStatus{State: waiting}),
		"no node fits": {Status: corev1.PodStatus{Phase: corev1.PodPending, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "no node fits"}}}},
		"Pending": {Status: corev1.PodStatus{Phase: corev1.PodPending}},
		"": {Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			ContainerStatuses: []corev1.ContainerStatus{{Ready: true, LastTerminationState: died}}}},
	} {
		if got := PodReason(pod); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
