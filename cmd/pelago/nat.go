package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/dataplane/loader"
)

// nat are the common flags of the nat verbs.
type nat struct {
	access
	nodes []string
	local bool
	pins  string
}

func natCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "Show address translation on the nodes",
		Long: `Addresses are translated on the nodes where the pods run, with eBPF maps. These verbs read the
maps of all nodes (through the pods of pelago-node), of those named by --node, or with --local of this machine.`,
	}
	cmd.AddCommand(natListCommand(), natGetCommand(), natStatsCommand())
	return cmd
}

func (n *nat) add(cmd *cobra.Command) {
	f := cmd.Flags()
	n.addFlags(f)
	f.StringSliceVar(&n.nodes, "node", nil, "only these nodes (default: all that run pelago-node)")
	f.BoolVar(&n.local, "local", false, "read the maps of this machine; needs root and no API server")
	f.StringVar(&n.pins, "pin-path", loader.DefaultPinPath, "with --local: directory of the pinned maps")
	view.AddOutputFlag(f, &n.output)
}

// source is what the flags name.
func (n *nat) source() (view.NAT, error) {
	if n.local {
		return view.NAT{Local: true, Pins: n.pins}, nil
	}
	c, err := n.open()
	if err != nil {
		return view.NAT{}, err
	}
	return view.NAT{Member: c.Member, Nodes: n.nodes}, nil
}

// flows are those that match.
func (n *nat) flows(ctx context.Context, match func(view.Flow) bool) ([]view.Flow, error) {
	source, err := n.source()
	if err != nil {
		return nil, err
	}
	flows, err := source.Flows(ctx)
	return slices.DeleteFunc(flows, func(f view.Flow) bool { return !match(f) }), err
}

func natListCommand() *cobra.Command {
	var n nat
	var role, protocol string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List translated flows",
		Example: `  pelago nat list --context g1
  pelago nat list --context g1 --node g1-n2 --protocol tcp -o json
  pelago nat list --local -o wide            # on a node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flows, err := n.flows(cmd.Context(), func(f view.Flow) bool {
				return (role == "" || string(f.Role) == role) && (protocol == "" || f.Protocol == protocol)
			})
			if err != nil {
				return err
			}
			return view.PrintFlows(cmd.OutOrStdout(), n.output, flows)
		},
	}
	n.add(cmd)
	cmd.Flags().StringVar(&role, "role", "", "only flows that a local pod opened (client) or a remote one (server)")
	cmd.Flags().StringVar(&protocol, "protocol", "", "only tcp, udp or icmp")
	return cmd
}

func natGetCommand() *cobra.Command {
	var n nat
	cmd := &cobra.Command{
		Use:   "get ADDRESS[:PORT]",
		Short: "Find the flows in which an address occurs, before or after translation",
		Example: `  pelago nat get --context g1 120.1.0.3:1345     # which pod has this egress port?
  pelago nat get --context g2 10.7.2.5           # flows from and to this pod`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			match, err := view.EndpointMatch(args[0])
			if err != nil {
				return err
			}
			flows, err := n.flows(cmd.Context(), match)
			if err != nil {
				return err
			}
			if len(flows) == 0 {
				return fmt.Errorf("no flow with %s on these nodes", args[0])
			}
			return view.PrintFlows(cmd.OutOrStdout(), n.output, flows)
		},
	}
	n.add(cmd)
	return cmd
}

func natStatsCommand() *cobra.Command {
	var n nat
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show packet counters by node, hook and verdict",
		Example: `  pelago nat stats --context g1
  pelago nat stats --context g1 -o json | jq '.[] | select(.verdict | startswith("drop"))'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := n.source()
			if err != nil {
				return err
			}
			counters, err := source.Counters(cmd.Context())
			if err != nil {
				return err
			}
			return view.PrintCounters(cmd.OutOrStdout(), n.output, counters)
		},
	}
	n.add(cmd)
	return cmd
}

func inspectServicesCommand() *cobra.Command {
	var n nat
	list := &cobra.Command{
		Use:   "list",
		Short: "List the exported ports in the maps of the nodes, with their local backends and the weights of the nodes",
		Long: `list reads the maps of all nodes (through the pods of pelago-node), of those named by --node, or with --local of
this machine. A gateway picks the node of a new connection by the weights, which only gateways have; the node picks one of its
backends. Nodes are named by their index, see NodeIndex.`,
		Example: `  pelago service list --context g2
  pelago service list --context g2 --node g2-n1 -o json
  pelago service list --local -o wide            # on a node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := n.source()
			if err != nil {
				return err
			}
			services, err := source.Services(cmd.Context())
			if err != nil {
				return err
			}
			return view.PrintServices(cmd.OutOrStdout(), n.output, services)
		},
	}
	n.add(list)
	cmd := &cobra.Command{Use: "service", Short: "Show exported services on the nodes", Args: cobra.NoArgs}
	cmd.AddCommand(list)
	return cmd
}
