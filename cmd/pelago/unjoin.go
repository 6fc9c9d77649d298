package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pelago-net/pelago/control/broker"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
)

// unjoin are the flags of unjoin.
type unjoin struct {
	access    access
	clusterID string
	timeout   time.Duration
}

func unjoinCommand() *cobra.Command {
	var u unjoin
	cmd := &cobra.Command{
		Use:   "unjoin",
		Short: "Remove a cluster from its clusterset",
		Long: `unjoin has two halves. At the hub, with --clusterid, it withdraws the cluster's
rights and removes all that the hub holds of it; its addresses become free, and
the other clusters stop sending to it. At the member, without --clusterid, it
takes Pelago off the nodes and out of the cluster. Do the hub's half first.`,
		Example: `  pelago unjoin --context hub --clusterid g1
  pelago unjoin --context g1`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if u.clusterID == "" {
				return u.member(cmd.Context(), cmd.OutOrStdout())
			}
			return u.hub(cmd.Context(), cmd.OutOrStdout())
		},
	}
	u.access.addFlags(cmd.Flags())
	cmd.Flags().StringVar(&u.clusterID, "clusterid", "", "remove what the hub, which the kubeconfig names, holds of this cluster")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 2*time.Minute, "how long to wait for nodes to be clean")
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
