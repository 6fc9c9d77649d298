package install

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
	"k8s.io/apimachinery/pkg/util/wait"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// quiet is the time without a forwarded packet after which a gateway counts as drained.
const quiet = 2 * time.Second

// Gateways are the gateways of a member.
type Gateways struct{ view.Member }

func gatewayNames(nodes []*corev1.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}

// Drain moves all flows of a gateway to the others and, with a timeout, waits until it forwards no
// packet.
func (g Gateways) Drain(ctx context.Context, name string, force bool, timeout time.Duration, progress manifests.Progress) error {
	node, err := g.gatewayNode(ctx, name)
	if err != nil {
		return err
	}
	others, err := g.othersInService(ctx, name)
	if err != nil {
		return err
	}
	if len(others) == 0 && !force {
		return fmt.Errorf("node %s is the last gateway in service: label another with `kubectl label node NODE %s=true` and wait until `pelago show gateways` lists it, or give --force",
			name, submarinerv1.LabelGateway)
	}
	progress("Taking gateway %s out of service", name)
	if err := PatchNode(ctx, g.Typed, name, "annotations", pelagov1alpha1.AnnotationDrained, `"true"`); err != nil {
		return err
	}
	if timeout == 0 || len(others) == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := g.awaitIndex(limited, name, func(s pelagov1alpha1.NodeIndexStatus) bool { return !s.Gateway }); err != nil {
		return fmt.Errorf("wait until gateway %s leaves: %w: it stays in service until another answers its probes and reaches the same clusters: "+
			"check `pelago show gateways` and that pelago-node runs on %s", name, err, name)
	}
	progress("Its flows move to %s", strings.Join(others, ", "))
	err = g.awaitQuiet(limited, name)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("gateway %s still forwards packets after %s: check with `pelago show connections` whether the other gateways are connected", name, timeout)
	}
	if err != nil {
		return err
	}
	progress("It has forwarded no packet for %s", quiet)
	progress("Gateway %s is drained; return it to service with `pelago gateway undrain %s`", name, name)
	if by, drained := topology.Drained(node); drained && by != pelagov1alpha1.AnnotationDrained {
		progress("Its node is cordoned, which also keeps it out of service")
	}
	return nil
}

// awaitQuiet waits until a gateway has forwarded no packet for a while.
func (g Gateways) awaitQuiet(ctx context.Context, node string) error {
	var last uint64
	since := time.Now()
	return wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		counters, err := view.NAT{Member: g.Member, Nodes: []string{node}}.Counters(ctx)
		if err != nil {
			return false, err
		}
		var now uint64
		for _, c := range counters {
			if c.Verdict == "switched" {
				now += c.Packets
			}
		}
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= quiet, nil
	})
}

// Undrain returns a gateway to service and, with a timeout, waits until it serves.
func (g Gateways) Undrain(ctx context.Context, name string, timeout time.Duration, progress manifests.Progress) error {
	node, err := g.gatewayNode(ctx, name)
	if err != nil {
		return err
	}
	progress("Returning gateway %s to service", name)
	if err := PatchNode(ctx, g.Typed, name, "annotations", pelagov1alpha1.AnnotationDrained, "null"); err != nil {
		return err
	}
	if node.Spec.Unschedulable {
		progress("Node %s is cordoned, which keeps it out of service: kubectl uncordon %s", name, name)
		return nil
	}
	if timeout == 0 {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := g.awaitIndex(limited, name, func(s pelagov1alpha1.NodeIndexStatus) bool { return s.Serving }); err != nil {
		return fmt.Errorf("wait until gateway %s is in service: %w", name, err)
	}
	progress("Gateway %s is in service", name)
	return nil
}

// awaitIndex polls the NodeIndex of a node until its status matches.
func (g Gateways) awaitIndex(ctx context.Context, node string, matches func(pelagov1alpha1.NodeIndexStatus) bool) error {
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		n, err := g.nodeIndex(ctx, node)
		if err != nil {
			return false, err
		}
		return matches(n.Status), nil
	})
}

// gatewayNode returns a node, which must be a gateway.
func (g Gateways) gatewayNode(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := g.Typed.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	if !topology.IsGateway(node) {
		return nil, fmt.Errorf("node %s is no gateway: it has no label %s=true", name, submarinerv1.LabelGateway)
	}
	return node, nil
}

// othersInService are the other gateways that serve and are not drained, sorted.
func (g Gateways) othersInService(ctx context.Context, except string) ([]string, error) {
	nodes, err := g.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var indexes pelagov1alpha1.NodeIndexList
	if err := g.Client.List(ctx, &indexes); err != nil {
		return nil, fmt.Errorf("list NodeIndexes: %w", err)
	}
	return gatewayNames(slices.DeleteFunc(nodes, func(n *corev1.Node) bool {
		i := slices.IndexFunc(indexes.Items, func(x pelagov1alpha1.NodeIndex) bool { return x.Name == n.Name })
		_, drained := topology.Drained(n)
		return n.Name == except || drained || i < 0 || !topology.GatewayServing(n, &indexes.Items[i])
	})), nil
}

// RotateKeys rotates the keys of the named gateway, of all if none is named.
func (g Gateways) RotateKeys(ctx context.Context, named []string, timeout time.Duration, progress manifests.Progress) error {
	if err := g.requireKeys(ctx); err != nil {
		return err
	}
	var nodes []*corev1.Node
	var err error
	if len(named) == 0 {
		nodes, err = g.Nodes(ctx)
	} else {
		nodes = make([]*corev1.Node, 1)
		nodes[0], err = g.gatewayNode(ctx, named[0])
	}
	if err != nil {
		return err
	}
	for _, n := range nodes { // all are checked before the first one is changed
		index, err := g.nodeIndex(ctx, n.Name)
		if err != nil {
			return err
		}
		if !index.Status.Gateway {
			return fmt.Errorf("gateway %s is not in service, so it has no tunnels: undrain or uncordon it, or see why pelago-node does not run there", n.Name)
		}
	}
	for _, n := range nodes {
		if err := g.rotateKeysOf(ctx, n, timeout, progress); err != nil {
			return err
		}
	}
	return nil
}

// requireKeys refuses a cluster whose wire has no keys to change.
func (g Gateways) requireKeys(ctx context.Context) error {
	c, err := member.Former(ctx, g.Client)
	switch {
	case err != nil:
		return err
	case c.ClusterID == "":
		return errors.New("this cluster has not joined: there is nothing to rotate")
	case c.CableDriver == config.CableVXLAN:
		return fmt.Errorf("there is nothing to rotate: traffic of cable driver %s is not encrypted and has no keys", c.CableDriver)
	}
	return nil
}

func (g Gateways) nodeIndex(ctx context.Context, node string) (*pelagov1alpha1.NodeIndex, error) {
	var n pelagov1alpha1.NodeIndex
	if err := g.Client.Get(ctx, types.NamespacedName{Name: node}, &n); err != nil {
		return nil, fmt.Errorf("get NodeIndex %s: %w", node, err)
	}
	return &n, nil
}

// rotateKeysOf requests the rotation of one gateway's keys, unless one is under way, and waits for
// it.
func (g Gateways) rotateKeysOf(ctx context.Context, node *corev1.Node, timeout time.Duration, progress manifests.Progress) error {
	n, err := g.nodeIndex(ctx, node.Name)
	if err != nil {
		return err
	}
	request, running := underWay(node.Annotations[pelagov1alpha1.AnnotationRotateKeys], n.Status.KeyRotation)
	if running {
		progress("Gateway %s rotates its keys already, as requested at %s", node.Name, request)
	} else {
		request = time.Now().UTC().Format(time.RFC3339)
		progress("Requesting new keys of gateway %s", node.Name)
		if err := PatchNode(ctx, g.Typed, node.Name, "annotations", pelagov1alpha1.AnnotationRotateKeys, fmt.Sprintf("%q", request)); err != nil {
			return err
		}
	}
	if timeout == 0 {
		return nil
	}
	return g.awaitRotation(ctx, node.Name, request, timeout, progress)
}

// underWay reports whether the rotation that the annotation requests is not complete.
func underWay(annotation string, reported *pelagov1alpha1.KeyRotation) (request string, running bool) {
	if _, err := time.Parse(time.RFC3339, annotation); err != nil {
		return "", false // none, or one that the node daemon refuses
	}
	return annotation, reported == nil || reported.Request != annotation || reported.TunnelsLeft > 0
}

// awaitRotation waits until the gateway reports the end of the rotation, and prints its progress.
func (g Gateways) awaitRotation(ctx context.Context, node, request string, timeout time.Duration, progress manifests.Progress) error {
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var last pelagov1alpha1.KeyRotation
	err := wait.PollUntilContextCancel(limited, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		// Not the limited context: the client's rate limiter fails requests that might exceed its
		// deadline, with an error of its own.
		n, err := g.nodeIndex(ctx, node)
		if err != nil {
			return false, err
		}
		now := n.Status.KeyRotation
		if now == nil || now.Request != request {
			return false, nil
		}
		if *now != last && now.TunnelsLeft > 0 {
			progress("Tunnels left: %d; %s", now.TunnelsLeft, now.Message)
		}
		last = *now
		return now.TunnelsLeft == 0, nil
	})
	switch {
	case err == nil && last.Message != "":
		return fmt.Errorf("gateway %s has new keys, but %s: check `pelago show connections`, and whether those gateways reach the hub", node, last.Message)
	case err == nil:
		progress("Gateway %s has new keys, and all gateways that it was connected with use them", node)
		return nil
	case limited.Err() == nil || ctx.Err() != nil: // another error, or interrupted
		return fmt.Errorf("wait for the new keys of gateway %s: %w", node, err)
	case last.Request == "":
		return fmt.Errorf("pelago-node on %s has not started the rotation after %s: check whether it runs there (kubectl -n %s get pods -o wide); it rotates once it runs",
			node, timeout, config.SystemNamespace)
	}
	return fmt.Errorf("gateway %s has not rotated all its keys after %s: %s. The rotation continues; run the command again to wait for it", node, timeout, last.Message)
}

// Nodes are all nodes that are gateways by their label, by name.
func (g Gateways) Nodes(ctx context.Context) ([]*corev1.Node, error) {
	list, err := g.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: submarinerv1.LabelGateway + "=true"})
	if err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no node is a gateway: none has the label %s=true", submarinerv1.LabelGateway)
	}
	nodes := kube.Pointers(list.Items)
	slices.SortFunc(nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes, nil
}
