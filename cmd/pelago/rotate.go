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
		Short: "Rotate the keys of a gateway's WireGuard tunnels without packet loss",
		Long: `rotate-keys generates new private keys for all tunnels of a gateway, one tunnel after
the other, while another one carries the traffic. The other gateways get the new
public keys through the hub, so it must be reachable. It takes about half a minute a
gateway; with --all the gateways rotate one after the other.

The node daemon rotates, also if this command is interrupted or the daemon restarts.
Run again during a rotation, the command waits for it.

Only the wire wireguard needs this: IKE rotates the keys of libreswan.`,
		Example: `  pelago gateway rotate-keys g1-n1 --context g1

  # all gateways of a cluster
  pelago gateway rotate-keys --all --context g1

  # progress
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
	m, err := r.access.open()
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
func (m *cluster) requireKeys(ctx context.Context) error {
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

// requireInService refuses a gateway out of service: it has no tunnels.
func (m *cluster) requireInService(ctx context.Context, node string) error {
	n, err := m.nodeIndex(ctx, node)
	if err != nil {
		return err
	}
	if !n.Status.Gateway {
		return fmt.Errorf("gateway %s is not in service, so it has no tunnels: undrain or uncordon it, or see why pelago-node does not run there", node)
	}
	return nil
}

func (m *cluster) nodeIndex(ctx context.Context, node string) (*pelagov1alpha1.NodeIndex, error) {
	var n pelagov1alpha1.NodeIndex
	if err := m.client.Get(ctx, types.NamespacedName{Name: node}, &n); err != nil {
		return nil, fmt.Errorf("get NodeIndex %s: %w", node, err)
	}
	return &n, nil
}

// one changes the keys of one gateway.
func (r *rotateKeys) one(ctx context.Context, m *cluster, node *corev1.Node, p *progress) error {
	n, err := m.nodeIndex(ctx, node.Name)
	if err != nil {
		return err
	}
	request, running := underWay(node.Annotations[pelagov1alpha1.AnnotationRotateKeys], n.Status.KeyRotation)
	if running {
		p.step("Gateway %s rotates its keys already, as requested at %s", node.Name, request)
	} else {
		request = time.Now().UTC().Format(time.RFC3339)
		p.step("Requesting new keys of gateway %s", node.Name)
		if err := annotate(ctx, m.typed, node.Name, pelagov1alpha1.AnnotationRotateKeys, fmt.Sprintf("%q", request)); err != nil {
			return err
		}
	}
	if r.timeout == 0 {
		return nil
	}
	return r.await(ctx, m, node.Name, request, p)
}

// underWay reports whether the rotation that the annotation requests is not complete.
func underWay(annotation string, reported *pelagov1alpha1.KeyRotation) (request string, running bool) {
	if _, err := time.Parse(time.RFC3339, annotation); err != nil {
		return "", false // none, or one that the node daemon refuses
	}
	return annotation, reported == nil || reported.Request != annotation || reported.TunnelsLeft > 0
}

// await waits until the gateway reports the end of the rotation, and prints its progress.
func (r *rotateKeys) await(ctx context.Context, m *cluster, node, request string, p *progress) error {
	limited, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	var last pelagov1alpha1.KeyRotation
	err := wait.PollUntilContextCancel(limited, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		// Not the limited context: the client's rate limiter fails requests that might exceed its deadline, with an error of its own.
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
		return fmt.Errorf("gateway %s has new keys, but %s: check `pelago show connections`, and whether those gateways reach the hub", node, last.Message)
	case err == nil:
		p.step("Gateway %s has new keys, and all gateways that it was connected with use them", node)
		return nil
	case limited.Err() == nil || ctx.Err() != nil: // another error, or interrupted
		return fmt.Errorf("wait for the new keys of gateway %s: %w", node, err)
	case last.Request == "":
		return fmt.Errorf("pelago-node on %s has not started the rotation after %s: check whether it runs there (kubectl -n %s get pods -o wide); it rotates once it runs",
			node, r.timeout, config.SystemNamespace)
	}
	return fmt.Errorf("gateway %s has not rotated all its keys after %s: %s. The rotation continues; run the command again to wait for it", node, r.timeout, last.Message)
}

// gatewayNodes are all nodes that are gateways by their label, by name.
func (m *cluster) gatewayNodes(ctx context.Context) ([]*corev1.Node, error) {
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
		m, err := a.open()
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
