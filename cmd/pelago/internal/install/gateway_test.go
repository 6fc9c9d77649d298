package install

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

// testNode is "name", with "!" before it if not ready, "*" if it is the control plane, "+" if it is a gateway.
func testNode(text string) *corev1.Node {
	name := strings.TrimLeft(text, "!*+")
	flags := text[:len(text)-len(name)]
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	if strings.Contains(flags, "*") {
		n.Labels["node-role.kubernetes.io/control-plane"] = ""
	}
	if strings.Contains(flags, "+") {
		n.Labels[submarinerv1.LabelGateway] = "true"
	}
	status := corev1.ConditionTrue
	if strings.Contains(flags, "!") {
		status = corev1.ConditionFalse
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
	return n
}

func TestChooseGateways(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes   string
		given   []string
		answers string // "" = no terminal
		noLabel bool
		want    []string
		wantErr string
	}{
		"the first worker":               {nodes: "*a c b", want: []string{"b"}},
		"the first ready worker":         {nodes: "*a !b c", want: []string{"c"}},
		"no worker":                      {nodes: "*a *b", want: []string{"a"}},
		"one is labelled":                {nodes: "*a b +c"},
		"given":                          {nodes: "*a b c", given: []string{"c", "a"}, want: []string{"c", "a"}},
		"given, though one is labelled":  {nodes: "+a b", given: []string{"b"}, want: []string{"b"}},
		"given, unknown":                 {nodes: "a b", given: []string{"x"}, wantErr: `"x": the cluster has no such node; it has a, b`},
		"prompt":                         {nodes: "*a b c d", answers: "2 3\n", want: []string{"c", "d"}},
		"prompt, default":                {nodes: "*a b c", answers: "\n", want: []string{"b"}},
		"prompt again after a wrong one": {nodes: "*a b c", answers: "9\nx\n1,1\n", want: []string{"b"}},
		"prompt, no answer":              {nodes: "*a b c", answers: "9", wantErr: "read the choice"},
		"no prompt with one candidate":   {nodes: "*a b", answers: "unread\n", want: []string{"b"}},
		"not to be labelled":             {nodes: "a b", noLabel: true, wantErr: "kubectl label node NODE submariner.io/gateway=true"},
		"no node":                        {wantErr: "has no node"},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []corev1.Node
			for _, text := range strings.Fields(tt.nodes) {
				nodes = append(nodes, *testNode(text))
			}
			var answers *view.Answers
			if tt.answers != "" {
				answers = view.NewAnswers(strings.NewReader(tt.answers))
			}
			got, err := ChooseGateways(t.Context(), nodes, tt.given, !tt.noLabel, answers, new(bytes.Buffer))
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Fatalf("error %v, want one with %q", err, tt.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// TestGatewayPromptEndsWithContext: Ctrl-C, which main turns into the end of the context, ends the prompt.
func TestGatewayPromptEndsWithContext(t *testing.T) {
	silent, end := io.Pipe()
	defer end.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := prompt(ctx, []string{"a", "b"}, view.NewAnswers(silent), io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
}
