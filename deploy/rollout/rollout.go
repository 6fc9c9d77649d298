// Package rollout waits until what was installed runs, and finds out why pods do not. The command
// line calls it for members and hubs.
package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/deploy/manifests"
)

// AwaitMember waits until every component of a member runs its newest template. The error of a
// timeout has the reasons of the pods.
func AwaitMember(ctx context.Context, c kubernetes.Interface, workloadsOnly bool, timeout time.Duration, progress manifests.Progress) error {
	installed := func(ctx context.Context) ([]Component, error) { return Installed(ctx, c, workloadsOnly) }
	return Await(ctx, c, manifests.SystemNamespace, installed, "join", timeout, progress)
}

// explainAfter is the interval at which the reasons why pods do not run are read.
const explainAfter = 10 * time.Second

// Await waits until every component that installed reads runs its newest template, and reports why
// pods do not run. verb is the command that the error of a timeout names. timeout bounds the time
// without progress: a DaemonSet is updated node by node, so that the whole takes the longer the more
// nodes there are.
func Await(
	ctx context.Context, c kubernetes.Interface, namespace string, installed func(context.Context) ([]Component, error), verb string,
	timeout time.Duration, progress manifests.Progress,
) error {
	shown := map[string]string{}
	var waiting []string
	var unread error
	explained, progressed := time.Now(), time.Now()
	most := map[string]int32{} // of each component, the pods of the newest template that were ready
	err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if time.Since(progressed) > timeout {
			return false, context.DeadlineExceeded
		}
		components, err := installed(ctx)
		if err != nil {
			unread = err // retried until the timeout
			return false, nil
		}
		waiting = nil
		for _, component := range components {
			name, ready := component.Kind+" "+component.Name, fmt.Sprintf("%d of %d ready", component.Ready, component.Want)
			if component.Current && shown[name] != ready {
				shown[name] = ready
				progress("%s: %s", name, ready)
			}
			if component.Current && component.Ready > most[name] { // a pod that flaps is no progress
				most[name], progressed = component.Ready, time.Now()
			}
			if !component.Done() {
				waiting = append(waiting, fmt.Sprintf("%s (%s)", name, ready))
			}
		}
		if len(waiting) > 0 && time.Since(explained) > explainAfter {
			explained = time.Now()
			reasons, err := PodReasons(ctx, c, namespace)
			unread = err
			for _, reason := range reasons {
				if shown[reason] == "" {
					shown[reason] = reason
					progress("%s", strings.TrimSpace(reason))
				}
			}
		}
		return len(waiting) == 0, nil
	})
	if err == nil {
		return nil
	}
	if ctx.Err() != nil || waiting == nil {
		return fmt.Errorf("wait for the components: %w", errors.Join(err, unread))
	}
	reasons, unread := PodReasons(ctx, c, namespace)
	return errors.Join(fmt.Errorf("after %s without progress these do not run: %s: %s again when the cause is gone\n%s",
		timeout, strings.Join(waiting, ", "), verb, strings.Join(reasons, "\n")), unread)
}
