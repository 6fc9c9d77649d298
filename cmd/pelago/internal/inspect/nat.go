package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/dump"
)

// nat are the common flags of the nat verbs.
type nat struct {
	access Access
	output string
	nodes  []string
	local  bool
	pins   string
}

func natCommand(open func() Access) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "Show address translation on the nodes, and end flows",
		Long: `Addresses are translated on the nodes where the pods run, with eBPF maps. These verbs read the
maps of all nodes (through the pods of pelago-node), of those named by --node, or with --local of this machine.`,
	}
	cmd.AddCommand(natListCommand(open), natGetCommand(open), natStatsCommand(open), natFlushCommand(open))
	return cmd
}

func (n *nat) add(cmd *cobra.Command) {
	f := cmd.Flags()
	n.access.AddFlags(f)
	f.StringSliceVar(&n.nodes, "node", nil, "only these nodes (default: all that run pelago-node)")
	complete(cmd, n.access, "node", daemonNodes)
	f.BoolVar(&n.local, "local", false, "read the maps of this machine; needs root and no API server")
	f.StringVar(&n.pins, "pin-path", dataplane.DefaultPinPath, "with --local: directory of the pinned maps")
	view.AddOutputFlag(f, &n.output)
}

// source is what the flags name.
func (n *nat) source() (view.NAT, error) {
	if n.local {
		return view.NAT{Local: true, Pins: n.pins}, nil
	}
	m, _, err := n.access.Open("")
	if err != nil {
		return view.NAT{}, err
	}
	return view.NAT{Member: m, Nodes: n.nodes}, nil
}

// show reads rows of what the flags name, and prints them, also if some nodes do not answer: the
// error names those.
func show[R any](
	cmd *cobra.Command, n *nat, read func(view.NAT, context.Context) ([]R, error), write func(io.Writer, string, []R) error,
) error {
	source, err := n.source()
	if err != nil {
		return err
	}
	rows, err := read(source, cmd.Context())
	if err != nil && len(rows) == 0 {
		return err
	}
	return errors.Join(err, write(cmd.OutOrStdout(), n.output, rows))
}

// matching reads the flows that match.
func matching(match func(view.Flow) bool) func(view.NAT, context.Context) ([]view.Flow, error) {
	return func(source view.NAT, ctx context.Context) ([]view.Flow, error) {
		flows, err := source.Flows(ctx)
		return slices.DeleteFunc(flows, func(f view.Flow) bool { return !match(f) }), err
	}
}

func natListCommand(open func() Access) *cobra.Command {
	n := nat{access: open()}
	var role, protocol string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List translated flows, and the mappings of UDP",
		Long: `list prints the translated flows. One with the state mapping is an endpoint-independent mapping of UDP (annotation
pelago.io/nat-mapping of the egress object): what its source shows to all other clusters.`,
		Example: `  pelago nat list --context g1
  pelago nat list --context g1 --node g1-n2 --protocol tcp -o json
  pelago nat list --local -o wide            # on a node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &n, matching(func(f view.Flow) bool {
				return (role == "" || string(f.Role) == role) && (protocol == "" || f.Protocol == protocol)
			}), view.PrintFlows)
		},
	}
	n.add(cmd)
	view.AddChoice(cmd.Flags(), &role, "role", "", "only flows that a local pod opened (client) or a remote one (server)",
		string(dump.RoleClient), string(dump.RoleServer))
	view.AddChoice(cmd.Flags(), &protocol, "protocol", "", "only tcp, udp or icmp", "tcp", "udp", "icmp")
	return cmd
}

func natGetCommand(open func() Access) *cobra.Command {
	n := nat{access: open()}
	cmd := &cobra.Command{
		Use:   "get ADDRESS[:PORT] [ADDRESS[:PORT]]",
		Short: "Find the flows in which an address occurs, or two, before or after translation",
		Example: `  pelago nat get --context g1 120.1.0.3:1345     # which pod has this egress port?
  pelago nat get --context g2 10.7.2.5           # flows from and to this pod
  pelago nat get --context g1 10.7.2.5 120.2.0.20:80 -o json`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			match := func(view.Flow) bool { return true }
			for _, arg := range args {
				occurs, err := view.EndpointMatch(arg)
				if err != nil {
					return err
				}
				before := match
				match = func(f view.Flow) bool { return before(f) && occurs(f) }
			}
			return show(cmd, &n, func(source view.NAT, ctx context.Context) ([]view.Flow, error) {
				flows, err := matching(match)(source, ctx)
				if len(flows) == 0 && err == nil {
					err = fmt.Errorf("no flow with %s on these nodes", strings.Join(args, " and "))
				}
				return flows, err
			}, view.PrintFlows)
		},
	}
	n.add(cmd)
	return cmd
}

func natFlushCommand(open func() Access) *cobra.Command {
	n := nat{access: open()}
	var f view.Flush
	var yes bool
	cmd := &cobra.Command{
		Use:   "flush",
		Short: "Remove flows from the nodes: of a pod, towards a cluster, or all; their connections end",
		Long: `flush removes flow entries by the program that also removes expired ones, so the packet path never sees half of a flow. TCP
connections of removed flows are reset at their next packet; other flows start anew, with another port.`,
		Example: `  pelago nat flush --context g1 --pod 10.7.2.5 --yes
  pelago nat flush --context g1 --far-cluster 2 --node g1-n2 --yes    # the index of "pelago show networks -o wide"
  pelago nat flush --context g1 --all --yes -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.Validate(); err != nil {
				return err
			}
			if !yes {
				return fmt.Errorf("the connections of %s end: confirm with --yes", f)
			}
			source, err := n.source()
			if err != nil {
				return err
			}
			removed, err := source.Flush(cmd.Context(), f)
			return errors.Join(err, view.PrintFlushed(cmd.OutOrStdout(), n.output, removed))
		},
	}
	n.add(cmd)
	fs := cmd.Flags()
	fs.TextVar(&f.Pod, "pod", f.Pod, "the flows of this local address")
	fs.Uint16Var(&f.Cluster, "far-cluster", 0, "the flows from and to the cluster with this index")
	fs.BoolVar(&f.All, "all", false, "all flows")
	fs.BoolVar(&yes, "yes", false, "confirm that connections end")
	return cmd
}

func natStatsCommand(open func() Access) *cobra.Command {
	n := nat{access: open()}
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show packet counters by node, hook and verdict",
		Example: `  pelago nat stats --context g1
  pelago nat stats --context g1 -o json | jq '.[] | select(.verdict | startswith("drop"))'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return show(cmd, &n, view.NAT.Counters, view.PrintCounters)
		},
	}
	n.add(cmd)
	return cmd
}

func serviceCommand(open func() Access) *cobra.Command {
	n := nat{access: open()}
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
			return show(cmd, &n, view.NAT.Services, view.PrintServices)
		},
	}
	n.add(list)
	cmd := &cobra.Command{Use: "service", Short: "Show exported services on the nodes", Args: cobra.NoArgs}
	cmd.AddCommand(list)
	return cmd
}

func mapCommand(open func() Access) *cobra.Command {
	cmd := &cobra.Command{
		Use: "map", Short: "Show the tables in the kernel of the nodes, decoded", Args: cobra.NoArgs,
		Long: `map decodes the maps that the programs use, of all nodes (through the pods of pelago-node), of those named by
--node, or with --local of this machine. For flows see pelago nat list, for counters pelago nat stats.`,
	}
	list := nat{access: open()}
	listing := &cobra.Command{
		Use: "list", Short: "List the maps with the number of their entries", Args: cobra.NoArgs,
		Example: `  pelago map list --context g1 --node g1-n2
  pelago map list --local -o json                # on a node`,
		RunE: func(cmd *cobra.Command, _ []string) error { return show(cmd, &list, view.NAT.Maps, view.PrintMaps) },
	}
	list.add(listing)
	entries := nat{access: open()}
	dumping := &cobra.Command{
		Use: "dump NAME", Short: "Print the entries of a map", Args: cobra.ExactArgs(1),
		ValidArgs: dump.Names(),
		Example: `  pelago map dump routes --context g1 --node g1-n2
  pelago map dump services --context g1 -o json | jq '.[] | select(.key == "120.1.0.20:80/tcp")'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			rows := func(n view.NAT, ctx context.Context) ([]view.MapRow, error) { return n.Dump(ctx, args[0]) }
			return show(cmd, &entries, rows, view.PrintDump)
		},
	}
	entries.add(dumping)
	cmd.AddCommand(listing, dumping)
	return cmd
}
