package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy"
)

// chooseGateways returns the nodes that are to be labelled: those of --gateway-node; none if some carry the label; else
// one that the user chooses, or that is chosen for them.
func (j *join) chooseGateways(ctx context.Context, c kubernetes.Interface, answers *bufio.Reader, out io.Writer) ([]string, error) {
	list, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	nodes := list.Items
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if len(j.gatewayNodes) > 0 {
		for _, name := range j.gatewayNodes {
			if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
				return nil, fmt.Errorf("--gateway-node %q: the cluster has no such node; it has %s", name, strings.Join(nodeNames(nodes), ", "))
			}
		}
		return j.gatewayNodes, nil
	}
	if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return topology.IsGateway(&n) }) {
		return nil, nil
	}
	if !j.labelGateway {
		return nil, fmt.Errorf("no node is a gateway: label one with `kubectl label node NODE %s=true`, or leave --label-gateway=false out", submarinerv1.LabelGateway)
	}
	candidates := gatewayCandidates(nodes)
	if len(candidates) == 0 {
		return nil, errors.New("the cluster has no node")
	}
	if len(candidates) == 1 || answers == nil {
		return candidates[:1], nil
	}
	return ask(candidates, answers, out)
}

// gatewayCandidates are the workers, or all nodes if there is none; ready ones first, then by name.
func gatewayCandidates(nodes []corev1.Node) []string {
	workers := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool {
		_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
		_, master := n.Labels["node-role.kubernetes.io/master"]
		return controlPlane || master
	})
	if len(workers) == 0 {
		workers = slices.Clone(nodes)
	}
	slices.SortStableFunc(workers, func(a, b corev1.Node) int {
		if ready := isReady(a); ready != isReady(b) {
			if ready {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Name, b.Name)
	})
	return nodeNames(workers)
}

func isReady(n corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func nodeNames(nodes []corev1.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// ask lets the user choose one or several by number.
func ask(candidates []string, answers *bufio.Reader, out io.Writer) ([]string, error) {
	fmt.Fprintln(out, "No node is a gateway yet. Which are to be?")
	for i, name := range candidates {
		fmt.Fprintf(out, "  %d  %s\n", i+1, name)
	}
	for {
		fmt.Fprint(out, "Numbers, separated by spaces [1]: ")
		line, err := answers.ReadString('\n')
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

// labelGateways makes the nodes gateways.
func labelGateways(ctx context.Context, c kubernetes.Interface, nodes []string, p *progress) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:"true"}}}`, submarinerv1.LabelGateway)
	for _, node := range nodes {
		p.step("Labelling node %s as gateway", node)
		_, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: deploy.Manager})
		if err != nil {
			return fmt.Errorf("label node %s as gateway: %w", node, err)
		}
	}
	return nil
}
