package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// chooseGateways returns the nodes to label: the given ones; none if some have the label; else
// those that choose returns of several candidates, without it the first one. It sorts nodes by
// name.
func chooseGateways(nodes []corev1.Node, given []string, label bool, choose func(candidates []string) ([]string, error)) ([]string, error) {
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if len(given) > 0 {
		for _, name := range given {
			if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
				return nil, spec.Refuse("gatewayNodes", "spec.gatewayNodes %q: the cluster has no such node; it has %s", name, strings.Join(nodeNames(nodes), ", "))
			}
		}
		return given, nil
	}
	if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return topology.IsGateway(&n) }) {
		return nil, nil
	}
	if !label {
		return nil, spec.Refuse("labelGateway", "no node is a gateway: label one with `kubectl label node NODE %s=true`, or leave spec.labelGateway=false out", submarinerv1.LabelGateway)
	}
	candidates := gatewayCandidates(nodes)
	if len(candidates) == 0 {
		return nil, errors.New("the cluster has no node")
	}
	if len(candidates) == 1 || choose == nil {
		return candidates[:1], nil
	}
	return choose(candidates)
}

// gatewayCandidates are the workers, or all nodes if none exists; ready ones first, else in the
// order of nodes.
func gatewayCandidates(nodes []corev1.Node) []string {
	workers := slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool {
		_, controlPlane := n.Labels["node-role.kubernetes.io/control-plane"]
		_, master := n.Labels["node-role.kubernetes.io/master"]
		return controlPlane || master
	})
	if len(workers) == 0 {
		workers = nodes
	}
	notReady := func(n corev1.Node) bool {
		return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
	}
	ready := slices.DeleteFunc(slices.Clone(workers), notReady)
	others := slices.DeleteFunc(slices.Clone(workers), func(n corev1.Node) bool { return !notReady(n) })
	return nodeNames(append(ready, others...))
}

func nodeNames(nodes []corev1.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// labelGateways labels the nodes as gateways.
func labelGateways(ctx context.Context, c client.Client, nodes []string, progress manifests.Progress) error {
	for _, name := range nodes {
		progress("Labelling node %s as gateway", name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, submarinerv1.LabelGateway))
		if err := c.Patch(ctx, node, patch, client.FieldOwner(manifests.Manager)); err != nil {
			return fmt.Errorf("label node %s: %w", name, err)
		}
	}
	return nil
}
