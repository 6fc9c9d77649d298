package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/control/config"
	hubcluster "github.com/pelago-net/pelago/control/hub/cluster"
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
	c, err := u.access.open()
	if err != nil {
		return err
	}
	hub := c.Client
	if _, err := broker.ReadClusterset(ctx, hub, deploy.BrokerNamespace); err != nil {
		return fmt.Errorf("%w: name the hub with --context", err)
	}
	p := newProgress(out)
	// Before the cluster loses its rights at the hub: its agent needs them to clean up.
	if err := u.withdrawAny(ctx, hub, p); err != nil {
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
	m, err := u.access.open()
	if err != nil {
		return err
	}
	former, err := install.Former(ctx, m.Client)
	if err != nil {
		return err
	}
	if former.ClusterID == "" {
		return fmt.Errorf("this cluster has not joined a clusterset (no ConfigMap %s/%s): name a member with --context, or a cluster of this hub with --clusterid",
			config.SystemNamespace, config.ConfigMapName)
	}
	p := newProgress(out)
	if err := deploy.RemoveMember(ctx, m.Client, former.HubID, u.timeout, p.step); err != nil {
		return err
	}
	p.step("Pelago is removed; ServiceExports, egress IPs and custom resource definitions stay. "+
		"If it is not done yet, run `pelago unjoin --context HUB --clusterid %s`", former.ClusterID)
	return nil
}

// workloads ends a cluster's membership for workloads: the Cluster and what belongs to it at the hub, and, with a kubeconfig
// of a push member, the hub's account there.
func (u *unjoin) workloads(ctx context.Context, name string, out io.Writer) error {
	hub, hubID, err := openPropagatingHub(ctx, &u.access)
	if err != nil {
		return err
	}
	var member *cluster
	if u.cluster.file != "" {
		cfg, _, err := u.cluster.config()
		if err != nil {
			return err
		}
		if member, err = openCluster(cfg); err != nil {
			return err
		}
	}
	have := &clusterv1alpha1.Cluster{}
	err = hub.Get(ctx, client.ObjectKey{Name: name}, have)
	gone := apierrors.IsNotFound(err)
	if err != nil && (!gone || member == nil) {
		return fmt.Errorf("get Cluster %s at the hub: %w: see `kubectl get clusters.cluster.karmada.io`", name, err)
	}
	if member != nil {
		if err := checkMember(ctx, member, have, gone); err != nil {
			return err
		}
	}
	p := newProgress(out)
	if err := u.withdraw(ctx, hub, name, p); err != nil {
		return err
	}
	switch {
	case member != nil:
		if err := (deploy.PushAccount{Cluster: name, HubID: hubID}).Remove(ctx, member.Client, p.step); err != nil {
			return err
		}
	case have.Spec.SyncMode == clusterv1alpha1.Push:
		p.step("ServiceAccount %s/karmada-%s stays in the cluster: give --cluster-kubeconfig as well to remove it",
			clusterv1alpha1.SecretNamespace, name)
	default:
		p.step("The agent for workloads stays in the cluster: `pelago join … --network-only` there removes it, or `pelago unjoin` all " +
			"of Pelago")
	}
	p.step("Cluster %s is no member for workloads any more", name)
	return nil
}

// checkMember refuses to remove an account from another cluster than the one that is registered.
func checkMember(ctx context.Context, member *cluster, have *clusterv1alpha1.Cluster, gone bool) error {
	uid, err := broker.ClusterUID(ctx, member.Client)
	if err != nil {
		return fmt.Errorf("reach the cluster at %s: %w", member.config.Host, err)
	}
	if !gone && have.Spec.ID != "" && have.Spec.ID != uid {
		return fmt.Errorf("--cluster-kubeconfig leads to another cluster (its namespace kube-system has UID %s) than %q is (%s)", uid,
			have.Name, have.Spec.ID)
	}
	return nil
}

// withdrawAny is withdraw for --clusterid, at a hub that may propagate no workloads and know no such Cluster.
func (u *unjoin) withdrawAny(ctx context.Context, hub client.Client, p *progress) error {
	ok, err := install.Propagates(hub)
	if err != nil || !ok {
		return err
	}
	err = hub.Get(ctx, client.ObjectKey{Name: u.clusterID}, &clusterv1alpha1.Cluster{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Cluster %s at the hub: %w", u.clusterID, err)
	}
	return u.withdraw(ctx, hub, u.clusterID, p)
}

// withdraw deletes the Cluster and waits until it is gone, which takes as long as what was propagated to it is being removed.
func (u *unjoin) withdraw(ctx context.Context, hub client.Client, name string, p *progress) error {
	member := &clusterv1alpha1.Cluster{}
	member.Name = name
	p.step("Removing what was propagated to cluster %s", name)
	if err := client.IgnoreNotFound(hub.Delete(ctx, member)); err != nil {
		return fmt.Errorf("delete Cluster %s at the hub: %w", name, err)
	}
	if u.force {
		left, err := hubcluster.Abandon(ctx, hub, name)
		for _, object := range left {
			p.step("%s stays in the cluster", object)
		}
		if err != nil {
			return err
		}
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, u.timeout, true, func(context.Context) (bool, error) {
		last = hub.Get(ctx, client.ObjectKey{Name: name}, member) // not the limited context: the last request completes
		return apierrors.IsNotFound(last), nil
	})
	if err == nil {
		return hubcluster.Forget(ctx, hub, hub, name) // pelago-hub has done so already, if it runs
	}
	if ctx.Err() != nil || last != nil {
		return fmt.Errorf("wait until Cluster %s is gone from the hub: %w", name, errors.Join(err, last))
	}
	return fmt.Errorf("after %s cluster %s is still being removed: pelago-hub must run, and reach the cluster (push) or be reached "+
		"by its agent (pull); "+
		"see `kubectl describe clusters.cluster.karmada.io %s` and `kubectl -n %s%s get works`. Run this again to wait for it, "+
		"or with --force if the cluster will not come back",
		u.timeout, name, name, clusterv1alpha1.ExecutionNamespacePrefix, name)
}
