// Package install has the verbs about a hub that init has made, what they and others print, and the
// gateways of a member.
package install

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
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
		fmt.Fprint(out, "Numbers, separated by spaces, or nothing: the agent chooses gateways and keeps their number: ")
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

// pick reads numbers from 1; nothing is nil.
func pick(candidates []string, line string) ([]string, error) {
	fields := strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' || r == '\n' || r == '\r' })
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
