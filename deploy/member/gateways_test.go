package member

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/deploy/spec"
)

// testNode is "name", with "!" before it if not ready, "*" if it is the control plane, "+" if it is
// a gateway.
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

func TestOneGatewayIsAWarning(t *testing.T) {
	for _, tt := range []struct {
		nodes  string
		chosen []string
		only   string // empty: no warning
	}{{"+a b c", nil, "a"}, {"a b c", []string{"b"}, "b"}, {"+a b c", []string{"b"}, ""}, {"+a +b c", nil, ""}} {
		var nodes []corev1.Node
		for _, text := range strings.Fields(tt.nodes) {
			nodes = append(nodes, *testNode(text))
		}
		var lines []string
		warnSingle(nodes, tt.chosen, func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) })
		warned := len(lines) == 1 && strings.HasPrefix(lines[0], "Warning: "+tt.only+" is the only gateway")
		if warned != (tt.only != "") || len(lines) > 1 {
			t.Errorf("%s, %v chosen: %q", tt.nodes, tt.chosen, lines)
		}
	}
}

func TestChooseGateways(t *testing.T) {
	for name, tt := range map[string]struct {
		nodes   string
		given   []string
		chosen  []string // nil = no terminal
		noLabel bool
		want    []string
		wantErr string
		// keep is the number of gateways of the spec, wantKeep that of the agent.
		keep, wantKeep int
	}{
		"two ready workers":             {nodes: "*a b !c d e", want: []string{"b", "d"}, keep: 2, wantKeep: 2},
		"one of two is ready":           {nodes: "!b c", want: []string{"c"}, keep: 2, wantKeep: 2},
		"none is ready":                 {nodes: "!b !c", want: []string{"b"}, keep: 2, wantKeep: 2},
		"given ones are not kept":       {nodes: "a b c", given: []string{"c"}, want: []string{"c"}, keep: 2},
		"chosen ones are not kept":      {nodes: "*a b c d", chosen: []string{"c"}, want: []string{"c"}, keep: 2},
		"nothing is chosen":             {nodes: "*a b c d", chosen: []string{}, want: []string{"b", "c"}, keep: 2, wantKeep: 2},
		"the agent adds to those":       {nodes: "+a b c", keep: 3, wantKeep: 3},
		"the first worker":              {nodes: "*a c b", want: []string{"b"}},
		"the first ready worker":        {nodes: "*a !b c", want: []string{"c"}},
		"no worker":                     {nodes: "*a *b", want: []string{"a"}},
		"one is labelled":               {nodes: "*a b +c"},
		"given":                         {nodes: "*a b c", given: []string{"c", "a"}, want: []string{"c", "a"}},
		"given, though one is labelled": {nodes: "+a b", given: []string{"b"}, want: []string{"b"}},
		"given, unknown":                {nodes: "a b", given: []string{"x"}, wantErr: `"x": the cluster has no such node; it has a, b`},
		"several to choose from":        {nodes: "*a b c d", chosen: []string{"c", "d"}, want: []string{"c", "d"}},
		"no prompt with one candidate":  {nodes: "*a b", chosen: []string{"a"}, want: []string{"b"}},
		"not to be labelled":            {nodes: "a b", noLabel: true, wantErr: "kubectl label node NODE submariner.io/gateway=true"},
		"no node":                       {wantErr: "has no node"},
	} {
		t.Run(name, func(t *testing.T) {
			var nodes []corev1.Node
			for _, text := range strings.Fields(tt.nodes) {
				nodes = append(nodes, *testNode(text))
			}
			var choose func([]string) ([]string, error)
			if tt.chosen != nil {
				choose = func(candidates []string) ([]string, error) {
					if diff := cmp.Diff([]string{"b", "c", "d"}, candidates); diff != "" {
						t.Errorf("candidates -want +got\n%s", diff)
					}
					return tt.chosen, nil
				}
			}
			chosen, err := chooseGateways(nodes, spec.Member{Gateways: tt.keep, GatewayNodes: tt.given, LabelGateway: !tt.noLabel}, choose)
			got := chosen.nodes
			if keep := chosen.keep; err == nil && keep != tt.wantKeep {
				t.Errorf("the agent keeps %d, want %d", keep, tt.wantKeep)
			}
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
