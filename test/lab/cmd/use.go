package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/test/lab"
)

func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl [kubectl arguments]",
		Short:              "Run the lab's kubectl with its kubeconfig",
		Long:               "Run the kubectl that belongs to the lab's Kubernetes. --name, if given, comes first.",
		Example:            "  pelago-lab kubectl --context g1 get pods -A\n  pelago-lab kubectl --name small --context hub get ns",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			name, args := splitName(args)
			l, err := lab.Open(name)
			if err != nil {
				return err
			}
			k := exec.Command(l.Kubectl(), args...)
			k.Env = append(os.Environ(), "KUBECONFIG="+l.Kubeconfig())
			k.Stdin, k.Stdout, k.Stderr = os.Stdin, os.Stdout, os.Stderr
			ignoreInterrupt()
			return passStatus(k.Run())
		},
	}
}

// splitName takes "--name X" or "--name=X" off the front of args.
func splitName(args []string) (string, []string) {
	if len(args) > 1 && args[0] == "--name" {
		return args[1], args[2:]
	}
	if len(args) > 0 && strings.HasPrefix(args[0], "--name=") {
		return strings.TrimPrefix(args[0], "--name="), args[1:]
	}
	return lab.DefaultName, args
}

// ignoreInterrupt leaves ^C to the command that runs in our place.
func ignoreInterrupt() { signal.Ignore(os.Interrupt) }

func execCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "exec MEMBER -- COMMAND [ARGUMENTS]",
		Short: "Run a command on a node, a control plane or the router",
		Long: `Run a command on a member of the lab. On a node it runs in the node's network,
mount, pid and uts namespaces; the host's files are below /host, read-only. On a
cluster (its control plane), the hub and the router it runs in their network
namespace.`,
		Example: `  pelago-lab exec g1-n1 -- bash
  pelago-lab exec g1-n2 -- bpftool map list
  pelago-lab exec g1-n1 -- ctr -n k8s.io containers list
  pelago-lab exec router -- nft list ruleset`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: members(true, true, true),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			ignoreInterrupt()
			return passStatus(l.ExecStreams(context.Background(), args[0], lab.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}, args[1:]...))
		},
	}
}

func loadImageCommand() *cobra.Command {
	var clusters []string
	cmd := &cobra.Command{
		Use:     "load-image FILE.tar…",
		Short:   "Import image archives into the nodes",
		Long:    `Import image archives (docker save, OCI layout, or "pelago-lab image build") into containerd of every node.`,
		Example: "  pelago-lab load-image out/images/pelago.tar\n  pelago-lab load-image out/images/*.tar --cluster g1",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			l.OnProgress(steps(cmd))
			for _, file := range args {
				if err := l.LoadImage(cmd.Context(), file, clusters...); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&clusters, "cluster", nil, "only into the nodes of this cluster (may be repeated)")
	// fails only without that flag
	_ = cmd.RegisterFlagCompletionFunc("cluster", members(false, true, false))
	return cmd
}

func logsCommand() *cobra.Command {
	var follow bool
	var tail int
	cmd := &cobra.Command{
		Use:   "logs MEMBER [COMPONENT]",
		Short: "Show what the processes of a node or a control plane logged",
		Long: `Show logs. Components of a node: init, containerd, kubelet, kube-proxy. Of a
cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler. Without
a component the end of each is shown.`,
		Example: "  pelago-lab logs g1-n1\n  pelago-lab logs g1-n1 kubelet -f\n  pelago-lab logs hub kube-apiserver --tail 100",
		Args:    cobra.RangeArgs(1, 2),
		ValidArgsFunction: func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
			if l, err := open(cmd); err == nil && len(args) == 1 {
				logs, _ := l.Logs(args[0]) // nothing to offer is fine
				var names []string
				for _, log := range logs {
					names = append(names, log.Component)
				}
				return names, cobra.ShellCompDirectiveNoFileComp
			}
			return members(true, true, false)(cmd, args, prefix)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			l, err := open(cmd)
			if err != nil {
				return err
			}
			logs, err := l.Logs(args[0])
			if err != nil {
				return err
			}
			if len(args) == 2 {
				i := slices.IndexFunc(logs, func(log lab.Log) bool { return log.Component == args[1] })
				if i < 0 {
					return fmt.Errorf("%s has no component %q", args[0], args[1])
				}
				return printLog(cmd.Context(), cmd.OutOrStdout(), logs[i].File, tail, follow)
			}
			if follow {
				return errors.New("--follow needs a component")
			}
			if !cmd.Flags().Changed("tail") {
				tail = 20
			}
			for _, log := range logs {
				fmt.Fprintf(cmd.OutOrStdout(), "==> %s (%s) <==\n", log.Component, log.File)
				if err := printLog(cmd.Context(), cmd.OutOrStdout(), log.File, tail, false); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on printing what is added")
	cmd.Flags().IntVar(&tail, "tail", -1, "lines from the end (-1: all)")
	return cmd
}

// printLog copies the last lines of file to out and, if wanted, what is added
// to it until ctx ends. A log that does not exist yet is empty.
func printLog(ctx context.Context, out io.Writer, file string, tail int, follow bool) error {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if tail >= 0 {
		data, err := io.ReadAll(f)
		if err != nil {
			return err
		}
		lines := strings.SplitAfter(string(data), "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		if _, err := io.WriteString(out, strings.Join(lines[max(0, len(lines)-tail):], "")); err != nil {
			return err
		}
	}
	for {
		if _, err := io.Copy(out, f); err != nil {
			return err
		}
		if !follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(200 * time.Millisecond):
		}
	}
}
