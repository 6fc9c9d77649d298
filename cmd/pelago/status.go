package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/check"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
)

func statusCommand() *cobra.Command {
	var c checks
	var watch bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the clusterset on one screen",
		Long: `status reads what check reads, and prints what it means for the clusterset: clusters, paths
between them, services, workloads, and the findings with their remedies. A share such as
1/2 is what is ready of what exists; - is not known, or does not apply.

Exit status: as of pelago check. With --watch it prints again every 5 seconds.`,
		Example: `  pelago status
  pelago status --contexts g1,g2 --hub-kubeconfig hub.kubeconfig
  pelago status --watch
  pelago status -o json | jq '.paths[] | select(.gateways.ready == 0)'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.status(cmd.Context(), watch, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	c.addTargetFlags(f)
	view.AddOutputFlag(f, &c.output)
	f.BoolVarP(&watch, "watch", "w", false, "print again every 5 seconds, until interrupted")
	return cmd
}

func (c *checks) status(ctx context.Context, watch bool, out io.Writer) error {
	targets, err := c.targets(nil)
	if err != nil {
		return err
	}
	for {
		set, result, err := c.read(ctx, targets)
		if err != nil {
			return err
		}
		if watch && (c.output == "table" || c.output == "wide") {
			fmt.Fprintln(out, set.Now.Format(time.TimeOnly))
		}
		if err := check.NewStatus(set, result).Print(out, c.output); err != nil {
			return err
		}
		if !watch {
			return checkStatus(result)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(checkInterval):
		}
	}
}
