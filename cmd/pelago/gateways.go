package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/spf13/cobra"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
)

func gatewayCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gateway",
		Short: "Drain gateways, return them to service, and rotate their keys",
		Long: `All nodes with the label ` + submarinerv1.LabelGateway + `=true are gateways, and all are
used at once. Drain a gateway before its node is rebooted or removed: its flows move
to the other gateways without packet loss. A cordon (kubectl cordon, kubectl
drain) does the same. A drained gateway stays in service until another gateway is
ready.`,
		Example: `  pelago gateway drain g1-n1 --context g1
  pelago gateway undrain g1-n1 --context g1
  pelago gateway rotate-keys --all --context g1
  pelago show gateways`,
	}
	cmd.AddCommand(drainCommand(), undrainCommand(), rotateKeysCommand())
	return cmd
}

// gatewayVerb completes a command whose argument is the node of a gateway.
func gatewayVerb(cmd *cobra.Command, do action) *cobra.Command {
	var a access
	a.addFlags(cmd.Flags())
	cmd.Args = cobra.MaximumNArgs(1)
	cmd.ValidArgsFunction = a.complete(func(ctx context.Context, m *cluster, args []string, _ string) []string {
		nodes, err := install.Gateways{Member: m.Member}.Nodes(ctx)
		if err != nil || len(args) > 0 {
			return nil
		}
		return names(nodes)
	})
	cmd.RunE = a.run(do)
	return cmd
}

func drainCommand() *cobra.Command {
	var force bool
	var timeout time.Duration
	cmd := gatewayVerb(&cobra.Command{
		Use:   "drain NODE",
		Short: "Move all flows of a gateway to the others, and wait until it forwards no packet",
		Example: `  pelago gateway drain g1-n1 --context g1
  pelago gateway drain g1-n1 --context g1 --timeout 5m && kubectl --context g1 drain g1-n1 --ignore-daemonsets`,
	}, func(ctx context.Context, m *cluster, args []string, out io.Writer) error {
		return install.Gateways{Member: m.Member}.Drain(ctx, args[0], force, timeout, newProgress(out))
	})
	cmd.Args = cobra.ExactArgs(1)
	cmd.Flags().BoolVar(&force, "force", false, "drain even if no other gateway is ready; the last one stays in use until another is ready")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait until the gateway forwards no packet; 0: do not wait")
	return cmd
}

func undrainCommand() *cobra.Command {
	var timeout time.Duration
	cmd := gatewayVerb(&cobra.Command{
		Use:     "undrain NODE",
		Short:   "Return a drained gateway to service",
		Example: `  pelago gateway undrain g1-n1 --context g1`,
	}, func(ctx context.Context, m *cluster, args []string, out io.Writer) error {
		return install.Gateways{Member: m.Member}.Undrain(ctx, args[0], timeout, newProgress(out))
	})
	cmd.Args = cobra.ExactArgs(1)
	cmd.Flags().DurationVar(&timeout, "timeout", time.Minute, "how long to wait until the gateway serves; 0: do not wait")
	return cmd
}

func rotateKeysCommand() *cobra.Command {
	var all bool
	var timeout time.Duration
	cmd := gatewayVerb(&cobra.Command{
		Use:   "rotate-keys NODE | --all",
		Short: "Rotate the keys of a gateway without packet loss",
		Long: `rotate-keys generates new private keys for a gateway; with --all the gateways rotate
one after the other. The other gateways get the new public keys through the hub, so
it must be reachable.

With the cable driver wireguard each tunnel gets a key, one tunnel after the other,
while another one carries the traffic: about half a minute. With libreswan the key
that authenticates the gateway is replaced two minutes after its publication, and
connections stay: IKE rekeys their traffic by itself.

The node daemon rotates, also if this command is interrupted or the daemon restarts.
Run again during a rotation, the command waits for it.`,
		Example: `  pelago gateway rotate-keys g1-n1 --context g1

  # all gateways of a cluster
  pelago gateway rotate-keys --all --context g1

  # progress
  kubectl --context g1 get nodeindex g1-n1 -o jsonpath='{.status.keyRotation}'`,
		PreRunE: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("name one gateway's node, or give --all")
			}
			return nil
		},
	}, func(ctx context.Context, m *cluster, args []string, out io.Writer) error {
		return install.Gateways{Member: m.Member}.RotateKeys(ctx, args, timeout, newProgress(out))
	})
	cmd.Flags().BoolVar(&all, "all", false, "all gateways of the cluster")
	cmd.Flags().DurationVar(&timeout, "timeout", 10*time.Minute, "how long to wait for each gateway; 0: do not wait")
	return cmd
}
