package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy"
)

// awaitRollout waits until every component runs its newest template. The error of a timeout has the reasons of the pods.
func awaitRollout(ctx context.Context, c kubernetes.Interface, timeout time.Duration, p *progress) error {
	shown := map[string]string{}
	var components []view.Component
	var unread error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
		now, err := view.Installed(ctx, c)
		if err != nil {
			unread = err // retried until the timeout
			return false, nil
		}
		components = now
		for _, component := range components {
			text := fmt.Sprintf("%s %s: %d of %d ready", component.Kind, component.Name, component.Ready, component.Want)
			if component.Current && shown[component.Name] != text {
				shown[component.Name] = text
				p.step("%s", text)
			}
		}
		return !slices.ContainsFunc(components, func(c view.Component) bool { return !c.Done() }), nil
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
		if !component.Done() {
			waiting = append(waiting, fmt.Sprintf("%s %s (%d of %d ready)", component.Kind, component.Name, component.Ready, component.Want))
		}
	}
	return fmt.Errorf("after %s these do not run: %s: join again when the cause is gone\n%s",
		timeout, strings.Join(waiting, ", "), strings.Join(reasons, "\n"))
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

// progress prints steps, one line each, with the seconds since the start.
type progress struct {
	out   io.Writer
	start time.Time
}

func newProgress(out io.Writer) *progress { return &progress{out: out, start: time.Now()} }

// step is a deploy.Progress.
func (p *progress) step(format string, args ...any) {
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.start).Seconds(), fmt.Sprintf(format, args...))
}
