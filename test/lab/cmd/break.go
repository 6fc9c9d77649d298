package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/lab"
)

// nodeCommand is a command that does one thing to one or more nodes.
func nodeCommand(use, short, long, example string, do func(*cobra.Command, *lab.Lab, string) error) *cobra.Command {
	return &cobra.Command{
		Use: use + " NODE…", Short: short, Long: long, Example: example,
		Args: cobra.MinimumNArgs(1), ValidArgsFunction: members(true, false, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			l.OnProgress(steps(cmd))
			for _, node := range args {
				if err := do(cmd, l, node); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func pauseCommand() *cobra.Command {
	return nodeCommand("pause", "Stop every process of a node (SIGSTOP)",
		"Stop every process of a node, containers included. Its kernel still forwards packets. heal continues the processes.",
		"  pelago-lab pause g1-n1",
		func(cmd *cobra.Command, l *lab.Lab, node string) error { return l.Pause(cmd.Context(), node) })
}

func killCommand() *cobra.Command {
	return nodeCommand("kill", "Switch a node off at once, as a power failure would",
		"Remove a node's link and kill all of its processes at once. Its disk stays; heal boots it again.",
		"  pelago-lab kill g1-n1",
		func(cmd *cobra.Command, l *lab.Lab, node string) error { return l.Kill(cmd.Context(), node) })
}

func healCommand() *cobra.Command {
	return nodeCommand("heal", "Bring back a node that was paused, killed or cut off",
		"Continue, boot or reconnect a node, and wait until it is Ready.",
		"  pelago-lab heal g1-n1",
		func(cmd *cobra.Command, l *lab.Lab, node string) error { return l.Heal(cmd.Context(), node) })
}

func linkCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "link",
		Short: "Cut, shape and heal the links of nodes and clusters",
		Long: `A node's link leads to its cluster's switch; the link of a cluster (or the hub)
leads from its switch to the router, so cutting it separates the whole cluster
from all others and from the host.

Delay and loss between clusters: pelago-lab path impair.`,
	}
	var unplug bool
	cut := &cobra.Command{
		Use: "cut NODE|CLUSTER…", Short: "Cut links: frames are dropped silently",
		Example: "  pelago-lab link cut g1-n1\n  pelago-lab link cut g2 --unplug",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: members(true, true, false),
		RunE: eachLink(func(l *lab.Lab, target string) error { return l.CutLink(target, unplug) }),
	}
	cut.Flags().BoolVar(&unplug, "unplug", false, "take the link down, with carrier loss at both ends")
	heal := &cobra.Command{
		Use: "heal NODE|CLUSTER…", Short: "Undo cut and shape",
		Example: "  pelago-lab link heal g1-n1 g2",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: members(true, true, false),
		RunE: eachLink(func(l *lab.Lab, target string) error { return l.HealLink(target) }),
	}
	var rate, burst, queue string
	shape := &cobra.Command{
		Use: "shape NODE|CLUSTER…", Short: "Limit the rate of links, in both directions",
		Long:    "Limit the rate of links in both directions by a token bucket (tbf).",
		Example: "  pelago-lab link shape g1 --rate 100mbit\n  pelago-lab link shape g1-n1 --rate 1gbit --queue 256k",
		Args:    cobra.MinimumNArgs(1), ValidArgsFunction: members(true, true, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := parseShape(rate, burst, queue)
			if err != nil {
				return err
			}
			return eachLink(func(l *lab.Lab, target string) error { return l.ShapeLink(target, s) })(cmd, args)
		},
	}
	shape.Flags().StringVar(&rate, "rate", "", "bits per second: a number with kbit, mbit or gbit (required)")
	shape.Flags().StringVar(&burst, "burst", "64k", "bytes that may pass at once (suffixes k, m)")
	shape.Flags().StringVar(&queue, "queue", "128k", "bytes that are queued before frames are dropped (suffixes k, m)")
	_ = shape.MarkFlagRequired("rate") // fails only without that flag
	cmd.AddCommand(cut, heal, shape)
	return cmd
}

func eachLink(do func(*lab.Lab, string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		l, err := open(cmd)
		if err != nil {
			return err
		}
		for _, target := range args {
			if err := do(l, target); err != nil {
				return err
			}
		}
		return nil
	}
}

// parseShape reads the flags of "link shape".
func parseShape(rate, burst, queue string) (lab.Shape, error) {
	bits, err := parseUnits(rate, map[string]float64{"kbit": 1e3, "mbit": 1e6, "gbit": 1e9, "bit": 1})
	if err != nil || bits < 8000 {
		return lab.Shape{}, fmt.Errorf("read --rate: %q is no rate of at least 8kbit, such as 100mbit", rate)
	}
	sizes := map[string]float64{"k": 1 << 10, "m": 1 << 20, "": 1}
	b, err := parseUnits(burst, sizes)
	if err != nil || b < 1600 || b > 1<<30 {
		return lab.Shape{}, fmt.Errorf("read --burst: %q is no size of 1600 bytes (one frame) to 1024m", burst)
	}
	q, err := parseUnits(queue, sizes)
	if err != nil || q < 1600 || q > 1<<30 {
		return lab.Shape{}, fmt.Errorf("read --queue: %q is no size of 1600 bytes (one frame) to 1024m", queue)
	}
	return lab.Shape{Rate: uint64(bits / 8), Burst: uint32(b), Queue: uint32(q)}, nil
}

// parseUnits reads a number with one of the given suffixes, the longest that matches.
func parseUnits(text string, units map[string]float64) (float64, error) {
	text = strings.ToLower(text)
	best, found := "", false
	for unit := range units {
		if strings.HasSuffix(text, unit) && (!found || len(unit) > len(best)) {
			best, found = unit, true
		}
	}
	if !found {
		return 0, fmt.Errorf("%q has no known unit", text)
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, best), 64)
	return n * units[best], err
}
