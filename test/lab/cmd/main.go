// Command pelago-lab brings up real Kubernetes clusters on this machine for
// development and tests, loads images into them, enters their nodes and breaks
// them on demand. Package test/lab does the work.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := root().ExecuteContext(ctx)
	if err == nil {
		return
	}
	// A command inside the lab has failed: it printed its error, and its status is passed on.
	var status exitStatus
	if errors.As(err, &status) {
		os.Exit(int(status))
	}
	fmt.Fprintln(os.Stderr, "error:", err)
	os.Exit(1)
}

// exitStatus ends the program with the status of a command that it ran.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// passStatus turns the failure of a command run for the user into exitStatus.
func passStatus(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return exitStatus(exit.ExitCode())
	}
	return err
}

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pelago-lab",
		Short: "Real Kubernetes clusters on one machine, to develop and test on",
		Long: `pelago-lab brings up real Kubernetes clusters on this machine, without Docker
and without virtual machines. A node is a set of namespaces with its own
containerd, kubelet and kube-proxy; a router joins the clusters, a hub (API
server and etcd, no nodes) and the host. Everything can be cut, shaped, paused
and killed. "down" leaves nothing behind.

All commands need root. A lab is named by --name; several may exist at once.`,
		Example: `  pelago-lab up --clusters 2 --nodes 2 --pod-cidr 10.7.0.0/16 --service-cidr 10.77.0.0/16
  pelago-lab status
  pelago-lab kubectl --context g1 get pods -A
  pelago-lab exec g1-n1 -- ip route
  pelago-lab down`,
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.PersistentFlags().String("name", lab.DefaultName, "name of the lab")
	// Fails only without such a flag.
	_ = cmd.RegisterFlagCompletionFunc("name", func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := lab.Names() // no completion without labs
		return names, cobra.ShellCompDirectiveNoFileComp
	})
	cmd.AddGroup(&cobra.Group{ID: "life", Title: "A lab's life:"}, &cobra.Group{ID: "use", Title: "Using it:"},
		&cobra.Group{ID: "break", Title: "Breaking it:"}, &cobra.Group{ID: "build", Title: "Building:"})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			cmd.AddCommand(c)
		}
	}
	add("life", upCommand(), downCommand(), statusCommand())
	add("use", kubeconfigCommand(), kubectlCommand(), execCommand(), loadImageCommand(), logsCommand())
	add("break", pauseCommand(), killCommand(), healCommand(), linkCommand(), pathCommand())
	add("build", prerequisitesCommand(), buildCommand(), imageCommand())
	return cmd
}

// nameOf returns --name.
func nameOf(cmd *cobra.Command) string {
	name, _ := cmd.Flags().GetString("name") // defined on the root
	return name
}

// open opens the lab that --name names.
func open(cmd *cobra.Command) (*lab.Lab, error) { return lab.Open(nameOf(cmd)) }

// steps prints lines with the time since the command began.
func steps(cmd *cobra.Command) func(string) {
	start := time.Now()
	return func(line string) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%7.1fs  %s\n", time.Since(start).Seconds(), line)
	}
}

// members completes the names of nodes, clusters and the router, as selected.
func members(nodes, clusters, router bool) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		l, err := open(cmd)
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		for _, c := range l.Plan().Clusters {
			if clusters {
				names = append(names, c.Name)
			}
			for _, n := range c.Nodes {
				if nodes {
					names = append(names, n.Name)
				}
			}
		}
		if router {
			names = append(names, "router")
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
