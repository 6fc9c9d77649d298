// Command pelago-node keeps the kernel of one node in line with the API objects. It runs as a
// DaemonSet in the host's network.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	root := &cobra.Command{
		Use:   "pelago-node",
		Short: "Load and feed the eBPF programs that join this node's cluster to others",
		Long: `pelago-node loads the eBPF programs, makes the device pelago0 with its routes, and keeps the tables of the
kernel as the API objects say. What is in the kernel goes on working when it stops.`,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(runCommand(), ikeCommand(), statusCommand(), traceCommand(), checkCommand(), cleanupCommand(), removeSubmarinerCommand())
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "pelago-node:", err)
		os.Exit(1)
	}
}
