package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/observe"
	"github.com/pelago-net/pelago/dataplane/trace"
)

// traceFlags name the packet of `pelago-node trace`.
type traceFlags struct {
	from, to, protocol, receivedFrom string
	cable, bounced, switched         bool
}

func traceCommand() *cobra.Command {
	var flags traceFlags
	var pins string
	cmd := &cobra.Command{
		Use:   "trace --from IP[:PORT] --to IP:PORT",
		Short: "Print what this node's programs decide about the first packet of a connection, and where they send it",
		Long: `trace reads the tables in the kernel of this node and prints, as JSON, what its programs decide by them about the first
packet of a connection: of a local pod or, with --received-from, of another node. It sends no packet.

The addresses are those at this node: after the first step, the "packet" of the step before. A received packet is taken to have the
right token. Not considered: quotas of flows, session affinity of ClusterSetIPs, sizes of packets (pelago trace --size), and what the node's stack drops
before or after, for example by a NetworkPolicy. The port after translation is one of many; another one may take another gateway.

Use pelago trace, which follows the packet over all nodes of its way.

The exit status is 1 if the packet is dropped.`,
		Example: `  pelago-node trace --from 10.7.2.10 --to 120.2.0.20:80
  pelago-node trace --from 120.1.0.1:1280 --to 120.2.0.20:80 --received-from 172.16.1.2            # at the gateway
  pelago-node trace --from 120.1.0.1:1280 --to 120.2.0.20:80 --received-from 172.16.1.1 --cable    # at the remote gateway`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			packet, err := flags.packet()
			if err != nil {
				return err
			}
			l, err := loader.OpenMaps(pins)
			if err != nil {
				return err
			}
			defer l.Close()
			tables, err := l.Tables()
			if err != nil {
				return err
			}
			return flags.trace(cmd.OutOrStdout(), tables, packet)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.from, "from", "", "source address, with its port if it matters (default port 40000)")
	f.StringVar(&flags.to, "to", "", "destination address and port")
	f.StringVar(&flags.protocol, "proto", "tcp", "tcp, udp or sctp")
	f.StringVar(&flags.receivedFrom, "received-from", "", "outer source address of a packet that another node sent")
	f.BoolVar(&flags.cable, "cable", false, "with --received-from: from a gateway of another cluster")
	f.BoolVar(&flags.bounced, "bounced", false, "with --received-from: \"bounced\" in the header of the step before")
	f.BoolVar(&flags.switched, "switch", false, "with --received-from: \"switch\" in the header of the step before")
	f.StringVar(&pins, "pin-path", dataplane.DefaultPinPath, "directory of the pinned maps and links")
	_ = cmd.MarkFlagRequired("from") // fails only without such a flag
	_ = cmd.MarkFlagRequired("to")
	cmd.AddCommand(hopCommand(&pins), sendCommand(&pins), watchCommand(&pins))
	return cmd
}

// hop, send and watch are what `pelago trace` runs on nodes. They read their argument from standard
// input: a token must not stand in an argument, which audit logs record.

func machineCommand[T any](use, short string, pins *string, run func(cmd *cobra.Command, l *loader.Loader, in T) error) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var in T
			// Decode a single value instead of reading to EOF: watch runs until standard input
			// ends.
			if err := json.NewDecoder(cmd.InOrStdin()).Decode(&in); err != nil {
				return fmt.Errorf("read the request from standard input: %w", err)
			}
			l, err := loader.OpenMaps(*pins)
			if err != nil {
				return err
			}
			defer l.Close()
			return run(cmd, l, in)
		},
	}
	cmd.Flags().StringVar(pins, "pin-path", dataplane.DefaultPinPath, "directory of the pinned maps and links")
	return cmd
}

func hopCommand(pins *string) *cobra.Command {
	return machineCommand("hop", "Answer what this node decides about a packet", pins, func(cmd *cobra.Command, l *loader.Loader, r trace.Request) error {
		answer, err := observe.Trace(l, r)
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
	})
}

func sendCommand(pins *string) *cobra.Command {
	return machineCommand("send", "Send a packet as a local source", pins, func(_ *cobra.Command, l *loader.Loader, p trace.Probe) error {
		return observe.Send(l, p)
	})
}

func watchCommand(pins *string) *cobra.Command {
	return machineCommand("watch", "Print where a packet was seen until standard input ends", pins, func(cmd *cobra.Command, l *loader.Loader, p trace.Probe) error {
		done := make(chan struct{})
		ready := func() error {
			go func() {
				_, _ = io.Copy(io.Discard, cmd.InOrStdin()) // an error ends it as well
				close(done)
			}()
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "{}")
			return err
		}
		watched, err := observe.Watch(l, p, ready, done)
		if err != nil {
			return err
		}
		return json.NewEncoder(cmd.OutOrStdout()).Encode(watched)
	})
}

// packet validates the flags.
func (f traceFlags) packet() (p trace.Packet, err error) {
	protocols := map[string]uint8{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}
	if p.Protocol = protocols[f.protocol]; p.Protocol == 0 {
		return p, fmt.Errorf("--proto %q: use tcp, udp or sctp", f.protocol)
	}
	if p.Source, err = netip.ParseAddrPort(f.from); err != nil {
		address, err := netip.ParseAddr(f.from)
		if err != nil {
			return p, fmt.Errorf("--from %q is no address and no address:port", f.from)
		}
		p.Source = netip.AddrPortFrom(address, 40000)
	}
	if p.Destination, err = netip.ParseAddrPort(f.to); err != nil {
		return p, fmt.Errorf("--to %q is no address:port", f.to)
	}
	if !p.Source.Addr().Is4() || !p.Destination.Addr().Is4() {
		return p, errors.New("--from and --to must be IPv4 addresses")
	}
	if (f.cable || f.bounced || f.switched) && f.receivedFrom == "" {
		return p, errors.New("--cable, --bounced and --switch need --received-from")
	}
	return p, nil
}

// trace prints the step. The error is not nil if the packet is dropped.
func (f traceFlags) trace(out io.Writer, tables trace.Tables, packet trace.Packet) error {
	step := tables.Leave(packet, 0)
	if f.receivedFrom != "" {
		source, err := netip.ParseAddr(f.receivedFrom)
		if err != nil {
			return fmt.Errorf("--received-from %q is no address", f.receivedFrom)
		}
		header := trace.Header{
			Source: source, Cable: f.cable, Bounced: f.bounced, Switch: f.switched, Token: tables.State.Settings.Overlay.Current,
		}
		if f.cable {
			header.Token = tables.State.Settings.Cable.Current
		}
		step = tables.Receive(packet, header)
	}
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	if err := e.Encode(step); err != nil {
		return fmt.Errorf("print the step: %w", err)
	}
	if step.Dropped() {
		return fmt.Errorf("this node drops the packet: %s", step.Verdict)
	}
	return nil
}
