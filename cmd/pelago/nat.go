package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/dataplane/loader"
)

// nodeFlow is a translated flow with the node that translates it.
type nodeFlow struct {
	NodeName string `json:"nodeName"`
	loader.Flow
}

// nodeCounter is a counter with its node.
type nodeCounter struct {
	NodeName string `json:"nodeName"`
	loader.Counter
}

// natOptions are what the nat verbs share.
type natOptions struct {
	access access
	nodes  []string
	local  bool
	pins   string
	output string
}

func natCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nat",
		Short: "Look at address translation on the nodes",
		Long: `Address translation happens on the nodes where the pods run, in eBPF maps. These verbs read
the maps of all nodes (through the pods of pelago-node), of those named by --node, or with --local of this machine.`,
	}
	cmd.AddCommand(natListCommand(), natGetCommand(), natStatsCommand())
	return cmd
}

func (o *natOptions) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	o.access.addFlags(f)
	f.StringSliceVar(&o.nodes, "node", nil, "only these nodes (default: all that run pelago-node)")
	f.BoolVar(&o.local, "local", false, "read the maps of this machine; needs root and no API server")
	f.StringVar(&o.pins, "pin-path", loader.DefaultPinPath, "with --local: directory of the pinned maps")
	addOutputFlag(cmd, &o.output)
}

func natListCommand() *cobra.Command {
	var o natOptions
	var role, protocol string
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List translated flows",
		Example: `  pelago nat list --context g1
  pelago nat list --context g1 --node g1-n2 --protocol tcp -o json
  pelago nat list --local -o wide            # on a node`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flows, err := o.flows(cmd.Context())
			if err != nil {
				return err
			}
			flows = slices.DeleteFunc(flows, func(f nodeFlow) bool {
				return role != "" && string(f.Role) != role || protocol != "" && f.Protocol != protocol
			})
			return o.printFlows(cmd.OutOrStdout(), flows)
		},
	}
	o.addFlags(cmd)
	cmd.Flags().StringVar(&role, "role", "", "only flows that a local pod opened (client) or a remote one (server)")
	cmd.Flags().StringVar(&protocol, "protocol", "", "only tcp, udp or icmp")
	return cmd
}

func natGetCommand() *cobra.Command {
	var o natOptions
	cmd := &cobra.Command{
		Use:   "get ADDRESS[:PORT]",
		Short: "Find the flows in which an address occurs, before or after translation",
		Example: `  pelago nat get --context g1 120.1.0.3:1345     # who is behind this egress port?
  pelago nat get --context g2 10.7.2.5           # what runs from and to this pod?`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			matches, err := parseEndpoint(args[0])
			if err != nil {
				return err
			}
			flows, err := o.flows(cmd.Context())
			if err != nil {
				return err
			}
			flows = slices.DeleteFunc(flows, func(f nodeFlow) bool {
				return !slices.ContainsFunc(f.endpoints(), matches)
			})
			if len(flows) == 0 {
				return fmt.Errorf("no flow with %s on these nodes", args[0])
			}
			return o.printFlows(cmd.OutOrStdout(), flows)
		},
	}
	o.addFlags(cmd)
	return cmd
}

func natStatsCommand() *cobra.Command {
	var o natOptions
	cmd := &cobra.Command{
		Use:   "stats",
		Short: "Show what became of packets: counters by node, hook and verdict",
		Example: `  pelago nat stats --context g1
  pelago nat stats --context g1 -o json | jq '.[] | select(.verdict | startswith("drop"))'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			counters, err := o.counters(cmd.Context())
			if err != nil {
				return err
			}
			return o.print(cmd.OutOrStdout(), counters, func(w io.Writer) {
				fmt.Fprintln(w, "NODE\tHOOK\tVERDICT\tPACKETS\tBYTES")
				for _, c := range counters {
					fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\n", c.NodeName, c.Hook, c.Verdict, c.Packets, c.Bytes)
				}
			})
		},
	}
	o.addFlags(cmd)
	return cmd
}

// parseEndpoint makes a predicate of ADDRESS or ADDRESS:PORT.
func parseEndpoint(text string) (func(netip.AddrPort) bool, error) {
	if ap, err := netip.ParseAddrPort(text); err == nil {
		return func(e netip.AddrPort) bool { return e == ap }, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil, fmt.Errorf("%q is no address and no address:port", text)
	}
	return func(e netip.AddrPort) bool { return e.Addr() == a }, nil
}

func (f nodeFlow) endpoints() []netip.AddrPort {
	return []netip.AddrPort{f.Opening.Source, f.Opening.Destination, f.Translated.Source, f.Translated.Destination}
}

func (o *natOptions) flows(ctx context.Context) ([]nodeFlow, error) {
	flows, err := gather(ctx, o, "list", func(l *loader.Loader, node string) ([]nodeFlow, error) {
		flows, err := l.Flows()
		out := make([]nodeFlow, len(flows))
		for i, f := range flows {
			out[i] = nodeFlow{node, f}
		}
		return out, err
	})
	slices.SortFunc(flows, func(a, b nodeFlow) int {
		return cmp.Or(cmp.Compare(a.NodeName, b.NodeName), cmp.Compare(a.Protocol, b.Protocol),
			a.Opening.Source.Compare(b.Opening.Source), a.Opening.Destination.Compare(b.Opening.Destination))
	})
	return flows, err
}

func (o *natOptions) counters(ctx context.Context) ([]nodeCounter, error) {
	return gather(ctx, o, "stats", func(l *loader.Loader, node string) ([]nodeCounter, error) {
		counters, err := l.Counters()
		out := make([]nodeCounter, len(counters))
		for i, c := range counters {
			out[i] = nodeCounter{node, c}
		}
		return out, err
	})
}

// gather reads rows from this machine's maps, or has every node do so with the same verb. A node that cannot be asked
// fails the whole: half a list of flows looks like a whole one.
func gather[T any](ctx context.Context, o *natOptions, verb string, read func(*loader.Loader, string) ([]T, error)) ([]T, error) {
	if o.local {
		l, err := loader.OpenMaps(o.pins)
		if err != nil {
			return nil, err
		}
		defer l.Close()
		return read(l, cmp.Or(os.Getenv("NODE_NAME"), "local"))
	}
	cfg, err := o.access.config()
	if err != nil {
		return nil, err
	}
	nodes := o.nodes
	if len(nodes) == 0 {
		if nodes, err = nodesWithDaemon(ctx, cfg); err != nil {
			return nil, err
		}
	}
	rows := []T{}
	var errs []error
	for _, node := range nodes {
		out, err := runOnNode(ctx, cfg, node, "pelago", "nat", verb, "--local", "-o", "json")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		var some []T
		if err := json.Unmarshal(out, &some); err != nil {
			errs = append(errs, fmt.Errorf("read the answer of node %s: %w (is its pelago of another version?)", node, err))
		}
		rows = append(rows, some...)
	}
	return rows, errors.Join(errs...)
}

func (o *natOptions) printFlows(w io.Writer, flows []nodeFlow) error {
	wide := o.output == "wide"
	return o.print(w, flows, func(w io.Writer) {
		header := "NODE\tROLE\tPROTO\tSOURCE\tDESTINATION\tSOURCE AFTER\tDESTINATION AFTER\tSTATE\tIDLE"
		if wide {
			header += "\tPOD\tCLUSTER INDEX\tFAR NODE INDEX"
		}
		fmt.Fprintln(w, header)
		for _, f := range flows {
			row := []string{
				f.NodeName, string(f.Role), f.Protocol, f.Opening.Source.String(), f.Opening.Destination.String(),
				f.Translated.Source.String(), f.Translated.Destination.String(), f.State, f.Idle.Round(time.Second).String(),
			}
			if wide {
				row = append(row, f.Pod.String(), fmt.Sprint(f.Cluster), fmt.Sprint(f.Node))
			}
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
	})
}

func (o *natOptions) print(w io.Writer, rows any, table func(io.Writer)) error {
	if o.output == "json" || o.output == "yaml" {
		return encode(w, o.output, rows)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	table(t)
	return t.Flush()
}
