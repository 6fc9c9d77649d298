// Package install has the verbs about a hub that init has made, and what several verbs print while they wait: progress, the rollout
// of the components, prompts.
package install

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// PromptGateways lets the user choose one or several by number.
func PromptGateways(ctx context.Context, candidates []string, answers *view.Answers, out io.Writer) ([]string, error) {
	fmt.Fprintln(out, "No node is a gateway yet. Choose the gateways:")
	for i, name := range candidates {
		fmt.Fprintf(out, "  %d  %s\n", i+1, name)
	}
	for {
		fmt.Fprint(out, "Numbers, separated by spaces [1]: ")
		line, err := answers.Line(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the choice of gateways: %w", err)
		}
		chosen, err := pick(candidates, line)
		if err == nil {
			return chosen, nil
		}
		fmt.Fprintln(out, err)
	}
}

// pick reads numbers from 1; nothing is 1.
func pick(candidates []string, line string) ([]string, error) {
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' || r == '\r' })
	if len(fields) == 0 {
		fields = []string{"1"}
	}
	var chosen []string
	for _, field := range fields {
		n, err := strconv.Atoi(field)
		if err != nil || n < 1 || n > len(candidates) {
			return nil, fmt.Errorf("%q is no number from 1 to %d", field, len(candidates))
		}
		if !slices.Contains(chosen, candidates[n-1]) {
			chosen = append(chosen, candidates[n-1])
		}
	}
	return chosen, nil
}

// PatchNode sets one of the labels or annotations of a node; value is JSON, null removes it.
func PatchNode(ctx context.Context, c kubernetes.Interface, node, field, key, value string) error {
	patch := fmt.Sprintf(`{"metadata":{%q:{%q:%s}}}`, field, key, value)
	_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manifests.Manager})
	if err != nil {
		return fmt.Errorf("patch %s of node %s: %w", field, node, err)
	}
	return nil
}

// AwaitRollout waits until every component runs its newest template. The error of a timeout has the reasons of the pods.
func AwaitRollout(ctx context.Context, c kubernetes.Interface, workloadsOnly bool, timeout time.Duration, progress manifests.Progress) error {
	installed := func(ctx context.Context) ([]view.Component, error) { return view.Installed(ctx, c, workloadsOnly) }
	return awaitRollout(ctx, c, manifests.SystemNamespace, installed, "join", timeout, progress)
}

// explainAfter is the time between two looks at why pods do not run.
const explainAfter = 10 * time.Second

func awaitRollout(
	ctx context.Context, c kubernetes.Interface, namespace string, installed func(context.Context) ([]view.Component, error), verb string,
	timeout time.Duration, progress manifests.Progress,
) error {
	shown := map[string]string{}
	var waiting []string
	var unread error
	explained := time.Now()
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, timeout, true, func(ctx context.Context) (bool, error) {
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
			if !component.Done() {
				waiting = append(waiting, fmt.Sprintf("%s (%s)", name, ready))
			}
		}
		if len(waiting) > 0 && time.Since(explained) > explainAfter {
			explained = time.Now()
			reasons, err := view.PodReasons(ctx, c, namespace)
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
	reasons, err := view.PodReasons(ctx, c, namespace)
	if err != nil {
		return err
	}
	return fmt.Errorf("after %s these do not run: %s: %s again when the cause is gone\n%s",
		timeout, strings.Join(waiting, ", "), verb, strings.Join(reasons, "\n"))
}
