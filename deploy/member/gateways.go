package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/agent/gateways"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/spec"
)

// chosenGateways are the nodes that join labels.
type chosenGateways struct {
	nodes []string
	// keep is the number that the agent keeps from then on; 0: the labels are the user's.
	keep int
}

// chooseGateways returns the nodes to label: the given ones; none if some have the label; else those
// that choose returns of several candidates, if it returns any; else as many as the agent keeps, ready
// ones of different zones, at least one. It sorts nodes by name.
func chooseGateways(nodes []corev1.Node, m spec.Member, choose func(candidates []string) ([]string, error)) (out chosenGateways, err error) {
	slices.SortFunc(nodes, func(a, b corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	if len(m.GatewayNodes) > 0 {
		for _, name := range m.GatewayNodes {
			if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return n.Name == name }) {
				return out, spec.Refuse("gatewayNodes", "spec.gatewayNodes %q: the cluster has no such node; it has %s", name, strings.Join(nodeNames(nodes), ", "))
			}
		}
		return chosenGateways{nodes: m.GatewayNodes}, nil
	}
	if slices.ContainsFunc(nodes, func(n corev1.Node) bool { return topology.IsGateway(&n) }) {
		return chosenGateways{keep: m.Gateways}, nil
	}
	if !m.LabelGateway {
		return out, spec.Refuse("labelGateway", "no node is a gateway: label one with `kubectl label node NODE %s=true`, or leave spec.labelGateway=false out", submarinerv1.LabelGateway)
	}
	candidates := gatewayCandidates(nodes)
	if len(candidates) == 0 {
		return out, errors.New("the cluster has no node")
	}
	if len(candidates) > 1 && choose != nil {
		if out.nodes, err = choose(candidates); len(out.nodes) > 0 || err != nil {
			return out, err
		}
	}
	out.keep = m.Gateways
	var values []gateways.Node
	for i := range nodes {
		values = append(values, gateways.Of(&nodes[i], nil))
	}
	if out.nodes = gateways.Desired(values, max(1, m.Gateways), time.Now()).Add; len(out.nodes) == 0 {
		out.nodes = candidates[:1] // none is ready
	}
	return out, nil
}

// warnSingle reports a cluster with one gateway.
func warnSingle(nodes []corev1.Node, chosen []string, progress manifests.Progress) {
	all := slices.Clone(chosen)
	for i := range nodes {
		if topology.IsGateway(&nodes[i]) && !slices.Contains(all, nodes[i].Name) {
			all = append(all, nodes[i].Name)
		}
	}
	if len(all) == 1 {
		progress("Warning: %s is the only gateway: while it is down or drained, the cluster has no connection to others. Add a node, or label "+
			"another with `kubectl label node NODE %s=true`", all[0], submarinerv1.LabelGateway)
	}
}

// gatewayCandidates are the workers, or all nodes if none exists; ready ones first, else in the
// order of nodes. Nodes on which pelago-node cannot run are left out.
func gatewayCandidates(nodes []corev1.Node) []string {
	nodes = slices.DeleteFunc(slices.Clone(nodes), func(n corev1.Node) bool { return !topology.HasDatapath(n.Labels) })
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

// labelGateways labels the nodes as gateways; kept ones with the annotation by which the agent knows its
// own.
func labelGateways(ctx context.Context, c client.Client, chosen chosenGateways, progress manifests.Progress) error {
	for _, name := range chosen.nodes {
		progress("Labelling node %s as gateway", name)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		text := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"}}}`, submarinerv1.LabelGateway)
		if chosen.keep > 0 {
			text = fmt.Appendf(nil, `{"metadata":{"labels":{%q:"true"},"annotations":{%q:"true"}}}`, submarinerv1.LabelGateway, pelagov1alpha1.AnnotationGatewayKept)
		}
		if err := c.Patch(ctx, node, client.RawPatch(types.MergePatchType, text), client.FieldOwner(manifests.Manager)); err != nil {
			return fmt.Errorf("label node %s: %w", name, err)
		}
	}
	return nil
}
