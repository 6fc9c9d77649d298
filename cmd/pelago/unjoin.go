package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// unjoin are the flags of unjoin.
type unjoin struct {
	access    access
	clusterID string
	cluster   kubeconfigFile
	timeout   time.Duration
	force     bool
}

func unjoinCommand() *cobra.Command {
	var u unjoin
	cmd := &cobra.Command{
		Use:   "unjoin [NAME]",
		Short: "Remove a cluster from its clusterset",
		Long: `unjoin has two halves. At the hub, with --clusterid, it withdraws the cluster's
rights and removes all that the hub holds of it; its addresses become free, and
the other clusters stop sending to it. At the member, without --clusterid, it
takes Pelago off the nodes and out of the cluster. Do the hub's half first.

With a NAME, at the hub, the cluster is no member for workloads any more, push or
pull: what was propagated to it is removed there as its policies say, and the network
stays. --cluster-kubeconfig also removes the hub's ServiceAccount from a push
member. A cluster that does not answer any more is given up with --force: what was
propagated to it stays there, and is listed.`,
		Example: `  pelago unjoin --context hub --clusterid g1
  pelago unjoin --context g1

  # workloads only
  pelago unjoin c2 --context hub --cluster-kubeconfig c2.kubeconfig`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) == 1 && u.clusterID != "":
				return fmt.Errorf("give either the name %s, for workloads only, or --clusterid %s, for everything", args[0], u.clusterID)
			case len(args) == 1:
				return u.workloads(cmd.Context(), args[0], cmd.OutOrStdout())
			case u.cluster.file != "":
				return fmt.Errorf("--cluster-kubeconfig %s: say which member this is: `pelago unjoin NAME`", u.cluster.file)
			case u.clusterID != "":
				return u.hub(cmd.Context(), cmd.OutOrStdout())
			}
			return u.member(cmd.Context(), cmd.OutOrStdout())
		},
	}
	u.access.addFlags(cmd.Flags())
	u.cluster.add(cmd.Flags())
	cmd.Flags().StringVar(&u.clusterID, "clusterid", "", "remove what the hub, which the kubeconfig names, holds of this cluster")
	cmd.Flags().BoolVar(&u.force, "force", false, "at the hub: do not wait for a cluster that cannot be reached; what was "+
		"propagated to it stays there, and is listed")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 2*time.Minute, "how long to wait for nodes to be clean, or for workloads to be "+
		"gone")
	return cmd
}

// hub removes what the hub holds of the cluster.
func (u *unjoin) hub(ctx context.Context, out io.Writer) error {
	if err := config.CheckClusterID(u.clusterID); err != nil {
		return err
	}
	cfg, err := u.access.config()
	if err != nil {
		return err
	}
	hub, err := broker.NewClient(cfg)
	if err != nil {
		return err
	}
	if _, err := broker.ReadClusterset(ctx, hub, deploy.BrokerNamespace); err != nil {
		return fmt.Errorf("%w: name the hub with --context", err)
	}
	p := newProgress(out)
	// While the cluster has its rights at the hub, its agent can clean up.
	if err := u.withdrawAny(ctx, cfg, p); err != nil {
		return err
	}
	p.step("Removing cluster %s from the hub", u.clusterID)
	if err := broker.Unregister(ctx, hub, deploy.BrokerNamespace, u.clusterID); err != nil {
		return err
	}
	p.step("Cluster %s is removed; if Pelago runs there, remove it with `pelago unjoin --context CLUSTER`", u.clusterID)
	return nil
}

// member removes Pelago from the cluster.
func (u *unjoin) member(ctx context.Context, out io.Writer) error {
	cfg, err := u.access.config()
	if err != nil {
		return err
	}
	m, err := openMember(cfg)
	if err != nil {
		return err
	}
	former, err := m.former(ctx)
	if err != nil {
		return err
	}
	if former.ClusterID == "" {
		return fmt.Errorf("this cluster has not joined a clusterset (no ConfigMap %s/%s): name a member with --context, or a cluster of this hub with --clusterid",
			config.SystemNamespace, config.ConfigMapName)
	}
	p := newProgress(out)
	if err := deploy.StopMember(ctx, cfg, u.timeout, p.step); err != nil {
		return err
	}
	p.step("Removing what the agent has made")
	if err := removeLeftovers(ctx, m.client, former.HubID); err != nil {
		return err
	}
	if err := deploy.RemoveMember(ctx, cfg, p.step); err != nil {
		return err
	}
	p.step("Pelago is removed; ServiceExports, egress IPs and custom resource definitions stay. "+
		"If it is not done yet, run `pelago unjoin --context HUB --clusterid %s`", former.ClusterID)
	return nil
}
