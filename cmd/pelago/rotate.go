package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// rotateKeys are the flags of gateway rotate-keys.
type rotateKeys struct {
	access  access
	all     bool
	timeout time.Duration
}

func rotateKeysCommand() *cobra.Command {
	var r rotateKeys
	cmd := &cobra.Command{
		Use:   "rotate-keys NODE | --all",
		Short: "Give a gateway's WireGuard tunnels new keys, without losing a packet",
		Long: `rotate-keys gives all tunnels of a gateway new private keys, one tunnel after the
other, while packets go over another one. The other gateways learn the new public
keys through the hub, so it must be reachable. It takes about half a minute a
gateway; with --all one gateway comes after the other.

The node daemon does it, also if this command is interrupted or the daemon
restarts. Run again while it goes on, the command waits for the same change.

Only the wire wireguard needs it: IKE changes the keys of libreswan by itself.`,
		Example: `  pelago gateway rotate-keys g1-n1 --context g1

  # all gateways of a cluster
  pelago gateway rotate-keys --all --context g1

  # how far it is
  kubectl --context g1 get nodeindex g1-n1 -o jsonpath='{.status.keyRotation}'`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: gatewayNames(&r.access),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.all == (len(args) > 0) {
				return errors.New("name one gateway's node, or give --all")
			}
			return r.run(cmd.Context(), cmd.OutOrStdout(), args)
		},
	}
	r.access.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&r.all, "all", false, "all gateways of the cluster")
	cmd.Flags().DurationVar(&r.timeout, "timeout", 10*time.Minute, "how long to wait for each gateway; 0: do not wait")
	return cmd
}

// run changes the keys of one gateway, or of all.
func (r *rotateKeys) run(ctx context.Context, out io.Writer, args []string) error {
	m, err := r.access.member()
	if err != nil {
		return err
	}
	if err := m.requireKeys(ctx); err != nil {
		return err
	}
	var nodes []*corev1.Node
	if r.all {
		nodes, err = m.gatewayNodes(ctx)
	} else {
		nodes = make([]*corev1.Node, 1)
		nodes[0], err = m.gatewayNode(ctx, args[0])
	}
	if err != nil {
		return err
	}
	for _, n := range nodes { // before the first one is touched
		if err := m.requireInService(ctx, n.Name); err != nil {
			return err
		}
	}
	p := newProgress(out)
	for _, n := range nodes {
		if err := r.one(ctx, m, n, p); err != nil {
			return err
		}
	}
	return nil
}

// requireKeys refuses a cluster whose wire has no keys to change.
func (m *member) requireKeys(ctx context.Context) error {
	c, err := m.former(ctx)
	switch {
	case err != nil:
		return err
	case c.ClusterID == "":
		return errors.New("this cluster has not joined: there is nothing to rotate")
	case c.CableDriver == config.CableLibreswan:
		return fmt.Errorf("there is nothing to rotate: on the wire %s, IKE changes the keys by itself, after an hour at most", c.CableDriver)
	case c.CableDriver != config.CableWireGuard:
		return fmt.Errorf("there is nothing to rotate: the wire %s is not encrypted and has no keys", c.CableDriver)
	}
	return nil
}

// requireInService refuses a gateway that carries nothing: it has no tunnels that could change their keys.
func (m *member) requireInService(ctx context.Context, node string) error {
	n, err := m.nodeIndex(ctx, node)
	if err != nil {
		return err
	}
	if !n.Status.Gateway {
		return fmt.Errorf("gateway %s is not in service, so it has no tunnels: undrain or uncordon it, or see why pelago-node does not run there", node)
	}
	return nil
}

func (m *member) nodeIndex(ctx context.Context, node string) (*pelagov1alpha1.NodeIndex, error) {
	var n pelagov1alpha1.NodeIndex
	if err := m.client.Get(ctx, types.NamespacedName{Name: node}, &n); err != nil {
		return nil, fmt.Errorf("get NodeIndex %s: %w", node, err)
	}
	return &n, nil
}

// one changes the keys of one gateway.
func (r *rotateKeys) one(ctx context.Context, m *member, node *corev1.Node, p *progress) error {
	n, err := m.nodeIndex(ctx, node.Name)
	if err != nil {
		return err
	}
	request, running := underWay(node.Annotations[pelagov1alpha1.AnnotationRotateKeys], n.Status.KeyRotation)
	if running {
		p.step("Gateway %s changes its keys already, as it was asked to at %s", node.Name, request)
	} else {
		request = time.Now().UTC().Format(time.RFC3339)
		p.step("Gateway %s is asked to change its keys", node.Name)
		if err := annotate(ctx, m.typed, node.Name, pelagov1alpha1.AnnotationRotateKeys, fmt.Sprintf("%q", request)); err != nil {
			return err
		}
	}
	if r.timeout == 0 {
		return nil
	}
	return r.await(ctx, m, node.Name, request, p)
}

// underWay says whether the change that the annotation asks for is not at its end.
func underWay(annotation string, reported *pelagov1alpha1.KeyRotation) (request string, running bool) {
	if _, err := time.Parse(time.RFC3339, annotation); err != nil {
		return "", false // none, or one that the node daemon refuses
	}
	return annotation, reported == nil || reported.Request != annotation || reported.TunnelsLeft > 0
}

// await waits until the gateway reports that it is done, and says how far it is meanwhile.
func (r *rotateKeys) await(ctx context.Context, m *member, node, request string, p *progress) error {
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var last pelagov1alpha1.KeyRotation
	err := wait.PollUntilContextCancel(limited, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		// Not with the limited context: the client refuses a request that might come too late, with an error of its own.
		n, err := m.nodeIndex(ctx, node)
		if err != nil {
			return false, err
		}
		now := n.Status.KeyRotation
		if now == nil || now.Request != request {
			return false, nil
		}
		if *now != last && now.TunnelsLeft > 0 {
			p.step("Tunnels left: %d; %s", now.TunnelsLeft, now.Message)
		}
		last = *now
		return now.TunnelsLeft == 0, nil
	})
	switch {
	case err == nil && last.Message != "":
		return fmt.Errorf("gateway %s has new keys, but %s: look at `pelago show connections`, and whether those gateways reach the hub", node, last.Message)
	case err == nil:
		p.step("Gateway %s has new keys, and all gateways that it was connected with use them", node)
		return nil
	case limited.Err() == nil || ctx.Err() != nil: // an error of its own, or the user's end
		return fmt.Errorf("wait for the new keys of gateway %s: %w", node, err)
	case last.Request == "":
		return fmt.Errorf("pelago-node on %s has not begun to change its keys after %s: see whether it runs there (kubectl -n %s get pods -o wide); it begins when it does",
			node, r.timeout, config.SystemNamespace)
	}
	return fmt.Errorf("gateway %s has not changed all its keys after %s: %s. It goes on; run the command again to wait for it", node, r.timeout, last.Message)
}

// gatewayNodes are all nodes that are gateways by their label, by name.
func (m *member) gatewayNodes(ctx context.Context) ([]*corev1.Node, error) {
	list, err := m.typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: submarinerv1.LabelGateway + "=true"})
	if err != nil {
		return nil, fmt.Errorf("list gateways: %w", err)
	}
	if len(list.Items) == 0 {
		return nil, fmt.Errorf("no node is a gateway: none has the label %s=true", submarinerv1.LabelGateway)
	}
	var out []*corev1.Node
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	slices.SortFunc(out, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	return out, nil
}

// gatewayNames completes the name of a gateway's node.
func gatewayNames(a *access) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		m, err := a.member()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), 3*time.Second)
		defer cancel()
		nodes, err := m.gatewayNodes(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var out []string
		for _, n := range nodes {
			if strings.HasPrefix(n.Name, begin) {
				out = append(out, n.Name)
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
