package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/manifests"
	"github.com/pelago-net/pelago/deploy/member"
)

// unjoin are the flags of unjoin.
type unjoin struct {
	access
	clusterID     string
	cluster       kubeconfigFile
	timeout       time.Duration
	force, ignore bool
	confirm       func(question string) error
}

func unjoinCommand() *cobra.Command {
	var u unjoin
	cmd := &cobra.Command{
		Use: "unjoin [NAME]", Aliases: []string{"unregister"},
		Short: "Remove a cluster from its clusterset",
		Long: `unjoin has two steps. At the hub, with --clusterid, it revokes the cluster's rights and
removes all that the hub stores of it; its addresses become free, and the other
clusters stop sending to it. At the member, without --clusterid, it removes Pelago from
the nodes and the cluster, after a prompt unless --yes is given. Do the hub's step
first. A node that is off keeps what Pelago has installed on it: it is named, the exit
status is 1, and a pod cleans it as soon as it is back. Run unjoin again then. --force
gives such nodes up.

With a NAME, at the hub, it ends the membership for workloads, push or pull: propagated
objects are removed from the cluster as the policies say, and the network stays.
--cluster-kubeconfig also removes the hub's ServiceAccount from a push member. --force
gives up an unreachable cluster: what was propagated to it stays there, and is listed.
A cluster that is ready has --timeout to remove it first.`,
		Example: `  pelago unjoin --context hub --clusterid g1
  pelago unjoin --context g1
  pelago unjoin --context g1 --yes    # in a script

  # nodes that are off never return
  pelago unjoin --context g1 --yes --timeout 10s --force

  # workloads only
  pelago unjoin c2 --context hub --cluster-kubeconfig c2.kubeconfig`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && u.clusterID != "":
				return fmt.Errorf("give either the name %s, for workloads only, or --clusterid %s, for everything", args[0], u.clusterID)
			case len(args) == 1:
				return u.run(u.workloads)(cmd, args)
			case u.cluster.file != "":
				return fmt.Errorf("--cluster-kubeconfig %s: say which member this is: `pelago unjoin NAME`", u.cluster.file)
			case u.clusterID == "":
				return u.run(u.member)(cmd, args)
			}
			if err := config.CheckClusterID(u.clusterID); err != nil {
				return err
			}
			return u.run(u.hub)(cmd, args)
		},
	}
	cmd.ValidArgsFunction = u.complete(clusterNames)
	u.addFlags(cmd.Flags())
	u.cluster.add(cmd.Flags())
	cmd.Flags().StringVar(&u.clusterID, "clusterid", "", "remove this cluster from the hub that the kubeconfig names")
	u.confirm = view.AddConfirmation(cmd, "at the member: skip the confirmation prompt")
	cmd.Flags().BoolVar(&u.force, "force", false, "at the hub: do not wait for an unreachable cluster, and for a ready one at most "+
		"--timeout; what was propagated to it and is left then stays there, and is listed; at the member: give up nodes that are not clean after --timeout")
	cmd.Flags().BoolVar(&u.ignore, "ignore-not-found", false, "succeed if the cluster has not joined")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 2*time.Minute, "how long to wait until nodes are clean, or workloads removed")
	return cmd
}

// hub removes what the hub holds of the cluster.
func (u *unjoin) hub(ctx context.Context, c *cluster, _ []string, out io.Writer) error {
	return member.Unregister(ctx, c.Client, u.clusterID, u.leaving(out))
}

// leaving are the flags about a cluster that leaves the hub.
func (u *unjoin) leaving(out io.Writer) member.Leaving {
	return member.Leaving{Force: u.force, IgnoreNotFound: u.ignore, Timeout: u.timeout, Progress: newProgress(out)}
}

// member removes Pelago from the cluster.
func (u *unjoin) member(ctx context.Context, m *cluster, _ []string, out io.Writer) error {
	former, err := member.Former(ctx, m.Client)
	if err != nil {
		return err
	}
	if former.ClusterID == "" && u.ignore {
		newProgress(out)("This cluster has not joined a clusterset")
		return nil
	}
	if former.ClusterID == "" {
		return fmt.Errorf("this cluster has not joined a clusterset (no ConfigMap %s/%s): name a member with --context, or a cluster of this hub with --clusterid",
			config.SystemNamespace, config.ConfigMapName)
	}
	if err := u.confirm(fmt.Sprintf("Remove Pelago from all nodes of cluster %s at %s?", former.ClusterID, m.Config.Host)); err != nil {
		return err
	}
	return member.Remove(ctx, m.Client, former, member.Removal{Timeout: u.timeout, Force: u.force, Progress: newProgress(out)})
}

// workloads ends a cluster's membership for workloads: the Cluster and what belongs to it at the
// hub, and, with a kubeconfig of a push member, the hub's account there.
func (u *unjoin) workloads(ctx context.Context, h *cluster, args []string, out io.Writer) error {
	hubID, err := member.HubID(ctx, manifests.Cluster(h.Member))
	if err != nil {
		return err
	}
	l := u.leaving(out)
	if u.cluster.file != "" {
		m, _, err := u.cluster.open()
		if err != nil {
			return err
		}
		at := manifests.Cluster(m.Member)
		l.Push = &at
	}
	return member.LeaveWorkloads(ctx, h.Client, hubID, args[0], l)
}
