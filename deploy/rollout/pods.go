package rollout

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// PodReasons are the reasons of all pods that are not ready.
func PodReasons(ctx context.Context, c kubernetes.Interface, namespace string) ([]string, error) {
	pods, err := c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
	}
	var out []string
	for _, pod := range pods.Items {
		if reason := PodReason(pod); reason != "" {
			out = append(out, fmt.Sprintf("  pod %s on node %q: %s", pod.Name, pod.Spec.NodeName, reason))
		}
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
