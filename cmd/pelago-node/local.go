package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/dataplane/cable"
	"github.com/pelago-net/pelago/dataplane/loader"
	"github.com/pelago-net/pelago/dataplane/netdev"
)

func checkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Say whether this node's kernel can run the data path, and what is missing",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := loader.CheckKernel(); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "this kernel has everything that the data path needs")
			return nil
		},
	}
}

func cleanupCommand() *cobra.Command {
	var pins, stateDir string
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Take everything off this node that pelago-node put there; connections through it end",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := errors.Join(loader.Remove(pins), netdev.Remove(), cable.RemoveDevices(""), os.RemoveAll(filepath.Dir(cacheFile(stateDir)))); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "removed programs, maps, devices, routes, rules, firewall rules and the copy of the API objects")
			return nil
		},
	}
	cmd.Flags().StringVar(&pins, "pin-path", dataplane.DefaultPinPath, "directory of the pinned maps and links")
	cmd.Flags().StringVar(&stateDir, "state-dir", defaultStateDir, stateDirHelp)
	return cmd
}

func removeSubmarinerCommand() *cobra.Command {
	var subnets []string
	cmd := &cobra.Command{
		Use:   "remove-submariner",
		Short: "Take everything off this node that Submariner put into the kernel; its pods must have stopped",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var remote []netip.Prefix
			for _, text := range subnets {
				p, err := netip.ParsePrefix(text)
				if err != nil {
					return fmt.Errorf("--remote-subnets: %q is no range in CIDR notation such as 242.1.0.0/16", text)
				}
				remote = append(remote, p.Masked())
			}
			if err := netdev.RemoveSubmariner(remote); err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), "removed Submariner's devices, routes, rules, IPsec policies and firewall rules")
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&subnets, "remote-subnets", nil, "ranges of other clusters, of which routes and IPsec policies are removed")
	return cmd
}

func statusCommand() *cobra.Command {
	var pins string
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show what is in the kernel of this node",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := loader.OpenMaps(pins)
			if err != nil {
				return err
			}
			defer l.Close()
			return printStatus(cmd.OutOrStdout(), l, pins)
		},
	}
	cmd.Flags().StringVar(&pins, "pin-path", dataplane.DefaultPinPath, "directory of the pinned maps and links")
	return cmd
}

func printStatus(out io.Writer, l *loader.Loader, pins string) error {
	s, err := l.Read()
	if err != nil {
		return err
	}
	attached, err := l.Attached()
	if err != nil {
		return err
	}
	counters, err := l.Counters()
	if err != nil {
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	role := "edge"
	if s.Settings.Gateway {
		role = "edge, gateway"
	}
	fmt.Fprintf(w, "node index\t%d\nrole\t%s\nready\t%t\naddress\t%s\ngeneration\t%d\nmaps and links\t%s\n",
		s.Settings.Node, role, s.Settings.Ready, s.Settings.Address, s.Settings.Generation, pins)
	bypassing := map[dataplane.Datapath]int{}
	for _, e := range s.Endpoints {
		bypassing[e.Datapath]++
	}
	fmt.Fprintf(w, "datapath\t%d pods hybrid, %d fast, the others strict\n", bypassing[dataplane.Hybrid], bypassing[dataplane.Fast])
	fmt.Fprintf(w, "routes\t%d prefixes into %s (table %d, rule priority %d)\n", len(s.Routes), netdev.Overlay, netdev.Table, netdev.RulePriority)
	fmt.Fprintf(w, "entries\t%d nodes, %d gateways, %d remote clusters, %d sources, %d egress IPs, %d global IPs, %d blocks, %d service ports\n",
		len(s.Nodes), len(s.Gateways), len(s.Clusters), len(s.Sources), len(s.Egresses), len(s.Globals), len(s.Blocks), len(s.Services))
	for _, hook := range slices.Sorted(maps.Keys(attached)) {
		fmt.Fprintf(w, "program %s\ton devices %v\n", hook, attached[hook])
	}
	for _, c := range counters {
		fmt.Fprintf(w, "%s %s\t%d packets\n", c.Hook, c.Verdict, c.Packets)
	}
	return w.Flush()
}
