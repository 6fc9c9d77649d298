package main

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	if err := annotate(ctx, m.typed, node.Name, pelagov1alpha1.AnnotationDrained, `"true"`); err != nil {
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
	if err := annotate(ctx, m.typed, node.Name, pelagov1alpha1.AnnotationDrained, "null"); err != nil {
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
	node, err := m.typed.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
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
	if err := m.client.List(ctx, &indexes); err != nil {
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
