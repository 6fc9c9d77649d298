package rollout

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// PodReasons are the reasons of all pods that are not ready, and the taints of the nodes if a pod
// is not scheduled: the scheduler's message (1.37) has only the number of nodes.
func PodReasons(ctx context.Context, c kubernetes.Interface, namespace string) ([]string, error) {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	var out []string
	unscheduled := false
	for _, pod := range pods.Items {
		reason := PodReason(pod)
		switch {
		case reason == "":
		case pod.Spec.NodeName == "":
			unscheduled = true
			out = append(out, fmt.Sprintf("  pod %s has no node: %s", pod.Name, reason))
		default:
			out = append(out, fmt.Sprintf("  pod %s on node %q: %s", pod.Name, pod.Spec.NodeName, reason))
		}
	}
	if !unscheduled {
		return out, nil
	}
	taints, err := nodeTaints(ctx, c)
	return append(out, taints...), err
}

// nodeTaints names the nodes of each taint that keeps pods away.
func nodeTaints(ctx context.Context, c kubernetes.Interface) ([]string, error) {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the nodes and their taints: %w", err)
	}
	by := map[string][]string{}
	for _, node := range nodes.Items {
		for _, taint := range node.Spec.Taints {
			if taint.Effect != corev1.TaintEffectPreferNoSchedule {
				by[taint.ToString()] = append(by[taint.ToString()], node.Name)
			}
		}
	}
	var out []string
	for _, taint := range slices.Sorted(maps.Keys(by)) {
		out = append(out, fmt.Sprintf("  taint %s: nodes %s", taint, strings.Join(by[taint], ", ")))
	}
	return out, nil
}

// PodReason is "" for a ready pod. The termination message of a container takes precedence.
func PodReason(pod corev1.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && !s.Ready {
				return strings.TrimSpace(fmt.Sprintf("%s, exit status %d %s", t.Reason, t.ExitCode, t.Message))
			}
		}
		if w := s.State.Waiting; w != nil {
			return strings.TrimSpace(w.Reason + " " + w.Message)
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue {
			return ""
		}
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Status != corev1.ConditionTrue && condition.Message != "" {
			return condition.Message
		}
	}
	return string(pod.Status.Phase)
}
