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
	"k8s.io/client-go/kubernetes"

	pelagov1alpha1 "github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/topology"
	"github.com/pelago-net/pelago/deploy"
)

// quiet is the time without a forwarded packet after which a gateway counts as drained.
const quiet = 2 * time.Second

func gatewayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Drain gateways, return them to service, and rotate their keys",
		Long: `All nodes with the label ` + submarinerv1.LabelGateway + `=true are gateways, and all are
used at once. Drain a gateway before its node is rebooted or removed: its flows move
to the other gateways without packet loss. A cordon (kubectl cordon, kubectl
drain) does the same. A drained gateway leaves only once another serves.`,
		Example: `  pelago gateway drain g1-n1 --context g1
  pelago gateway undrain g1-n1 --context g1
  pelago gateway rotate-keys --all --context g1
  pelago show gateways`,
	}
	cmd.AddCommand(drainCommand(), undrainCommand(), rotateKeysCommand())
	return cmd
}

// drain are the flags of gateway drain and undrain.
type drain struct {
	access  access
	force   bool
	timeout time.Duration
}

func drainCommand() *cobra.Command {
	var d drain
	cmd := &cobra.Command{
		Use:   "drain NODE",
		Short: "Move all flows of a gateway to the others, and wait until it forwards no packet",
		Example: `  pelago gateway drain g1-n1 --context g1
  pelago gateway drain g1-n1 --context g1 --timeout 5m && kubectl --context g1 drain g1-n1 --ignore-daemonsets`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: gatewayNames(&d.access),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.drain(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	d.access.addFlags(cmd.Flags())
	cmd.Flags().BoolVar(&d.force, "force", false, "drain even if no other gateway is ready; the last one stays in use until another is ready")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 2*time.Minute, "how long to wait until the gateway forwards no packet; 0: do not wait")
	return cmd
}

func undrainCommand() *cobra.Command {
	var d drain
	cmd := &cobra.Command{
		Use:               "undrain NODE",
		Short:             "Return a drained gateway to service",
		Example:           `  pelago gateway undrain g1-n1 --context g1`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: gatewayNames(&d.access),
		RunE: func(cmd *cobra.Command, args []string) error {
			return d.undrain(cmd.Context(), cmd.OutOrStdout(), args[0])
		},
	}
	d.access.addFlags(cmd.Flags())
	cmd.Flags().DurationVar(&d.timeout, "timeout", time.Minute, "how long to wait until the gateway serves; 0: do not wait")
	return cmd
}

func (d *drain) drain(ctx context.Context, out io.Writer, name string) error {
	m, node, err := d.gateway(ctx, name)
	if err != nil {
		return err
	}
	others, err := d.othersInService(ctx, m, name)
	if err != nil {
		return err
	}
	if len(others) == 0 && !d.force {
		return fmt.Errorf("node %s is the last gateway in service: label another with `kubectl label node NODE %s=true` and wait until `pelago show gateways` lists it, or give --force",
			name, submarinerv1.LabelGateway)
	}
	p := newProgress(out)
	p.step("Taking gateway %s out of service", name)
	if err := annotate(ctx, m.Typed, node.Name, pelagov1alpha1.AnnotationDrained, `"true"`); err != nil {
		return err
	}
	if d.timeout == 0 || len(others) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if err := d.await(ctx, m, name, func(n *pelagov1alpha1.NodeIndex) bool { return !n.Status.Gateway }); err != nil {
		return fmt.Errorf("wait until gateway %s leaves: %w: it stays in service until another answers its probes and reaches the same clusters: "+
			"check `pelago show gateways` and that pelago-node runs on %s", name, err, name)
	}
	p.step("Its flows move to %s", strings.Join(others, ", "))
	if err := d.awaitQuiet(ctx, name, p); err != nil {
		return err
	}
	p.step("Gateway %s is drained; return it to service with `pelago gateway undrain %s`", name, name)
	if by, drained := topology.Drained(node); drained && by != pelagov1alpha1.AnnotationDrained {
		p.step("Its node is cordoned, which also keeps it out of service")
	}
	return nil
}

// awaitQuiet waits until the gateway has forwarded no packet for a while.
func (d *drain) awaitQuiet(ctx context.Context, name string, p *progress) error {
	o := natOptions{access: d.access, nodes: []string{name}}
	var last uint64
	since := time.Now()
	err := wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		counters, err := o.counters(ctx)
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
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("gateway %s still forwards packets after %s: check with `pelago show connections` whether the other gateways are connected", name, d.timeout)
	}
	if err == nil {
		p.step("It has forwarded no packet for %s", quiet)
	}
	return err
}

func (d *drain) undrain(ctx context.Context, out io.Writer, name string) error {
	m, node, err := d.gateway(ctx, name)
	if err != nil {
		return err
	}
	p := newProgress(out)
	p.step("Returning gateway %s to service", name)
	if err := annotate(ctx, m.Typed, node.Name, pelagov1alpha1.AnnotationDrained, "null"); err != nil {
		return err
	}
	if node.Spec.Unschedulable {
		p.step("Node %s is cordoned, which keeps it out of service: kubectl uncordon %s", name, name)
		return nil
	}
	if d.timeout == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	if err := d.await(ctx, m, name, func(n *pelagov1alpha1.NodeIndex) bool { return n.Status.Serving }); err != nil {
		return fmt.Errorf("wait until gateway %s is in service: %w", name, err)
	}
	p.step("Gateway %s is in service", name)
	return nil
}

// await polls the NodeIndex of a node until it matches wanted.
func (d *drain) await(ctx context.Context, m *cluster, node string, wanted func(*pelagov1alpha1.NodeIndex) bool) error {
	return wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		n, err := m.nodeIndex(ctx, node)
		if err != nil {
			return false, err
		}
		return wanted(n), nil
	})
}

// gateway opens the cluster and returns the node, which must be a gateway.
func (d *drain) gateway(ctx context.Context, name string) (*cluster, *corev1.Node, error) {
	m, err := d.access.open()
	if err != nil {
		return nil, nil, err
	}
	node, err := m.gatewayNode(ctx, name)
	return m, node, err
}

// gatewayNode returns a node, which must be a gateway.
func (m *cluster) gatewayNode(ctx context.Context, name string) (*corev1.Node, error) {
	node, err := m.Typed.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	if !topology.IsGateway(node) {
		return nil, fmt.Errorf("node %s is no gateway: it has no label %s=true", name, submarinerv1.LabelGateway)
	}
	return node, nil
}

// othersInService are the other gateways that serve and are not drained, sorted.
func (d *drain) othersInService(ctx context.Context, m *cluster, except string) ([]string, error) {
	nodes, err := m.gatewayNodes(ctx)
	if err != nil {
		return nil, err
	}
	var indexes pelagov1alpha1.NodeIndexList
	if err := m.Client.List(ctx, &indexes); err != nil {
		return nil, fmt.Errorf("list NodeIndexes: %w", err)
	}
	byName := map[string]*pelagov1alpha1.NodeIndex{}
	for i := range indexes.Items {
		byName[indexes.Items[i].Name] = &indexes.Items[i]
	}
	var out []string
	for _, n := range nodes {
		index := byName[n.Name]
		if _, drained := topology.Drained(n); n.Name != except && !drained && index != nil && topology.GatewayServing(n, index) {
			out = append(out, n.Name)
		}
	}
	return out, nil
}

// annotate sets an annotation of a node; value is JSON, null removes it.
func annotate(ctx context.Context, c kubernetes.Interface, node, annotation, value string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
	if _, err := c.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: deploy.Manager}); err != nil {
		return fmt.Errorf("annotate node %s: %w", node, err)
	}
	return nil
}

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
	c, err := install.Former(ctx, m.Client)
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
	if err := m.Client.Get(ctx, types.NamespacedName{Name: node}, &n); err != nil {
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
		if err := annotate(ctx, m.Typed, node.Name, pelagov1alpha1.AnnotationRotateKeys, fmt.Sprintf("%q", request)); err != nil {
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
	list, err := m.Typed.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: submarinerv1.LabelGateway + "=true"})
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
