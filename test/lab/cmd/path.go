package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/lab"
)

func pathCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "path",
		Short: "Cut, delay and drop packets between two members",
		Long: `A path is the traffic between two members; their links are not changed. Its ends
are two nodes of one cluster, or nodes or clusters on both sides of the router.

Within a cluster one path at a time can be cut. Delay and loss are added by a
program in the router, so they exist between clusters only, and only one
combination at a time. "path heal" undoes everything.`,
	}
	cut := &cobra.Command{
		Use: "cut A B", Short: "Cut a path: packets are dropped silently",
		Example: "  pelago-lab path cut g1-n1 g1-n3\n  pelago-lab path cut g1-n1 g2",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: members(true, true, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			return l.CutPath(args[0], args[1])
		},
	}
	var delay time.Duration
	var loss string
	impair := &cobra.Command{
		Use: "impair A B", Short: "Delay and drop packets, in each direction",
		Example: "  pelago-lab path impair g1 g2 --delay 40ms\n  pelago-lab path impair g1-n1 g2-n1 --loss 20%",
		Args:    cobra.ExactArgs(2), ValidArgsFunction: members(true, true, false),
		RunE: func(cmd *cobra.Command, args []string) error {
			share, err := parseShare(loss)
			if err != nil {
				return err
			}
			l, err := open(cmd)
			if err != nil {
				return err
			}
			return l.ImpairPath(cmd.Context(), args[0], args[1], lab.Impairment{Delay: delay, Loss: share})
		},
	}
	impair.Flags().DurationVar(&delay, "delay", 0, "of each packet; the round-trip time grows by twice as much")
	impair.Flags().StringVar(&loss, "loss", "0%", "share of the packets that is dropped")
	heal := &cobra.Command{
		Use: "heal", Short: "Undo every cut and impairment of paths",
		Example: "  pelago-lab path heal",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			return l.HealPaths()
		},
	}
	cmd.AddCommand(cut, impair, heal)
	return cmd
}

// parseShare reads a percentage as a share of 0 to 1.
func parseShare(text string) (float64, error) {
	number, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || percent < 0 || percent > 100 {
		return 0, fmt.Errorf("read --loss: %q is no percentage such as 20%%", text)
	}
	return percent / 100, nil
}
