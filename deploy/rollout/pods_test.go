package rollout

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// A pod that no node takes is explained by the taints of the nodes.
func TestPodReasonsTaints(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "pelago-system", Name: "pelago-dns"}}
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "2 node(s) had untolerated taint(s)"}}
	node := func(name string, taints ...corev1.Taint) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints}}
	}
	full := corev1.Taint{Key: corev1.TaintNodeDiskPressure, Effect: corev1.TaintEffectNoSchedule}
	own := corev1.Taint{Key: "dedicated", Value: "db", Effect: corev1.TaintEffectNoExecute}
	late := corev1.Taint{Key: "last", Effect: corev1.TaintEffectPreferNoSchedule}
	got, err := PodReasons(t.Context(), fake.NewClientset(pod, node("n1", full, late), node("n2", full, own)), "pelago-system")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{
		"  pod pelago-dns has no node: 2 node(s) had untolerated taint(s)",
		"  taint dedicated=db:NoExecute: nodes n2", "  taint node.kubernetes.io/disk-pressure:NoSchedule: nodes n1, n2",
	}, got); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
}

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
