package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/deploy"
)

// component is a DaemonSet or Deployment of Pelago in a member.
type component struct {
	kind, name, image string
	ready, want       int32
	// current: the counts belong to the newest template.
	current bool
}

func (c component) done() bool { return c.current && c.ready >= c.want }

// awaitRollout waits until every component runs its newest template. The error of a timeout has the reasons of the pods.
func awaitRollout(ctx context.Context, c kubernetes.Interface, timeout time.Duration, p *progress) error {
	shown := map[string]string{}
	var components []component
	var unread error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		now, err := installed(ctx, c)
		if err != nil {
			unread = err // retried until the timeout
			return false, nil
		}
		components = now
		for _, component := range components {
			text := fmt.Sprintf("%s %s: %d of %d ready", component.kind, component.name, component.ready, component.want)
			if component.current && shown[component.name] != text {
				shown[component.name] = text
				p.step("%s", text)
			}
		}
		return !slices.ContainsFunc(components, func(c component) bool { return !c.done() }), nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || components == nil {
		return fmt.Errorf("wait for the components: %w", errors.Join(err, unread))
	}
	reasons, err := podReasons(ctx, c)
	if err != nil {
		return err
	}
	var waiting []string
	for _, component := range components {
		if !component.done() {
			waiting = append(waiting, fmt.Sprintf("%s %s (%d of %d ready)", component.kind, component.name, component.ready, component.want))
		}
	}
	return fmt.Errorf("after %s these do not run: %s: join again when the cause is gone\n%s",
		timeout, strings.Join(waiting, ", "), strings.Join(reasons, "\n"))
}

// installed reads the components of a member; that for workloads is missing where it takes part in the network only.
func installed(ctx context.Context, c kubernetes.Interface) ([]component, error) {
	node, err := c.AppsV1().DaemonSets(deploy.SystemNamespace).Get(ctx, deploy.NodeDaemonSet, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get DaemonSet %s: %w", deploy.NodeDaemonSet, err)
	}
	s := node.Status
	out := []component{{
		kind: "DaemonSet", name: node.Name, image: node.Spec.Template.Spec.Containers[0].Image,
		ready: min(s.NumberReady, s.UpdatedNumberScheduled), want: max(s.DesiredNumberScheduled, 1),
		current: s.ObservedGeneration >= node.Generation,
	}}
	for _, name := range []string{deploy.AgentDeployment, deploy.DNSDeployment, deploy.ExecutionDeployment} {
		d, err := c.AppsV1().Deployments(deploy.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		if name == deploy.ExecutionDeployment && apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get Deployment %s: %w", name, err)
		}
		s := d.Status
		out = append(out, component{
			kind: "Deployment", name: name, image: d.Spec.Template.Spec.Containers[0].Image,
			ready: min(s.ReadyReplicas, s.UpdatedReplicas), want: ptr.Deref(d.Spec.Replicas, 1), current: s.ObservedGeneration >= d.Generation,
		})
	}
	return out, nil
}

// podReasons are the reasons of all pods that are not ready.
func podReasons(ctx context.Context, c kubernetes.Interface) ([]string, error) {
	pods, err := c.CoreV1().Pods(deploy.SystemNamespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", deploy.SystemNamespace, err)
	}
	var out []string
	for _, pod := range pods.Items {
		if reason := podReason(pod); reason != "" {
			out = append(out, fmt.Sprintf("  pod %s on node %q: %s", pod.Name, pod.Spec.NodeName, reason))
		}
	}
	return out, nil
}

// podReason is "" for a ready pod. The termination message of a container takes precedence.
func podReason(pod corev1.Pod) string {
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
