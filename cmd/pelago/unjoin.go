package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/cmd/pelago/internal/install"
	"github.com/pelago-net/pelago/cmd/pelago/internal/view"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
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
first.

With a NAME, at the hub, it ends the membership for workloads, push or pull: propagated
objects are removed from the cluster as the policies say, and the network stays.
--cluster-kubeconfig also removes the hub's ServiceAccount from a push member. --force
gives up an unreachable cluster: what was propagated to it stays there, and is listed.
A cluster that is ready has --timeout to remove it first.`,
		Example: `  pelago unjoin --context hub --clusterid g1
  pelago unjoin --context g1
  pelago unjoin --context g1 --yes    # in a script

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
		"--timeout; what was propagated to it and is left then stays there, and is listed")
	cmd.Flags().BoolVar(&u.ignore, "ignore-not-found", false, "succeed if the cluster has not joined")
	cmd.Flags().DurationVar(&u.timeout, "timeout", 2*time.Minute, "how long to wait until nodes are clean, or workloads removed")
	return cmd
}

// hub removes what the hub holds of the cluster.
func (u *unjoin) hub(ctx context.Context, c *cluster, _ []string, out io.Writer) error {
	hub := c.Client
	if _, err := broker.ReadClusterset(ctx, hub, deploy.BrokerNamespace); err != nil {
		return fmt.Errorf("%w: name the hub with --context", err)
	}
	progress := newProgress(out)
	registered, err := broker.Registered(ctx, hub, u.clusterID)
	workloads, err2 := u.takesWorkloads(ctx, hub)
	switch err := errors.Join(err, err2); {
	case err != nil:
		return err
	case !registered && !workloads && u.ignore:
		progress("Cluster %s is not registered at the hub", u.clusterID)
		return nil
	case !registered && !workloads:
		return fmt.Errorf("cluster %s is not registered at the hub: see `pelago show clusters`, or give --ignore-not-found", u.clusterID)
	case workloads: // before it loses its rights at the hub: its agent needs them to clean up
		if err := install.Withdraw(ctx, hub, u.clusterID, u.force, u.timeout, progress); err != nil {
			return err
		}
	}
	progress("Removing cluster %s from the hub", u.clusterID)
	if err := broker.Unregister(ctx, hub, deploy.BrokerNamespace, u.clusterID); err != nil {
		return err
	}
	progress("Cluster %s is removed; if Pelago runs there, remove it with `pelago unjoin --context CLUSTER`", u.clusterID)
	return nil
}

// member removes Pelago from the cluster.
func (u *unjoin) member(ctx context.Context, m *cluster, _ []string, out io.Writer) error {
	former, err := install.Former(ctx, m.Client)
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
	progress := newProgress(out)
	gateways, err := deploy.RemoveMember(ctx, m.Client, former.HubID, u.timeout, progress)
	if err != nil {
		return err
	}
	stay := "ServiceExports, egress IPs and custom resource definitions stay"
	if len(gateways) > 0 {
		stay += fmt.Sprintf(", and label %s of %s, which join has not set", submarinerv1.LabelGateway, strings.Join(gateways, ", "))
	}
	progress("Pelago is removed; %s. If it is not done yet, run `pelago unjoin --context HUB --clusterid %s`", stay, former.ClusterID)
	return nil
}

// workloads ends a cluster's membership for workloads: the Cluster and what belongs to it at the hub, and, with a kubeconfig
// of a push member, the hub's account there.
func (u *unjoin) workloads(ctx context.Context, h *cluster, args []string, out io.Writer) error {
	name, hub := args[0], h.Client
	hubID, err := h.propagates(ctx)
	if err != nil {
		return err
	}
	var member *cluster
	if u.cluster.file != "" {
		if member, _, err = u.cluster.open(); err != nil {
			return err
		}
	}
	have := &clusterv1alpha1.Cluster{}
	err = hub.Get(ctx, client.ObjectKey{Name: name}, have)
	if err != nil && (member == nil || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("get Cluster %s at the hub: %w: see `kubectl get clusters.cluster.karmada.io`", name, err)
	}
	if member != nil {
		if err := checkMember(ctx, member, have); err != nil {
			return err
		}
	}
	workloadsOnly, err := broker.WorkloadsOnly(ctx, hub, name)
	if err != nil {
		return err
	}
	progress := newProgress(out)
	if err := install.Withdraw(ctx, hub, name, u.force, u.timeout, progress); err != nil {
		return err
	}
	switch {
	case member != nil:
		if err := (deploy.PushAccount{Cluster: name, HubID: hubID}).Remove(ctx, member.Client, progress); err != nil {
			return err
		}
	case workloadsOnly:
		progress("Removing cluster %s from the hub", name)
		if err := broker.Unregister(ctx, hub, deploy.BrokerNamespace, name); err != nil {
			return err
		}
		progress("The agent stays in the cluster: remove it with `pelago unjoin --context CLUSTER`")
	case have.Spec.SyncMode == clusterv1alpha1.Push:
		progress("ServiceAccount %s/karmada-%s stays in the cluster: give --cluster-kubeconfig as well to remove it",
			clusterv1alpha1.SecretNamespace, name)
	default:
		progress("The agent for workloads stays in the cluster: `pelago join … --network-only` there removes it, or `pelago unjoin` all " +
			"of Pelago")
	}
	progress("Cluster %s is no member for workloads any more", name)
	return nil
}

// checkMember refuses to remove the account from a cluster other than the registered one, if one is registered.
func checkMember(ctx context.Context, member *cluster, have *clusterv1alpha1.Cluster) error {
	uid, err := broker.ClusterUID(ctx, member.Client)
	if err != nil {
		return fmt.Errorf("reach the cluster at %s: %w", member.Config.Host, err)
	}
	if have.Spec.ID != "" && have.Spec.ID != uid {
		return fmt.Errorf("--cluster-kubeconfig leads to another cluster (its namespace kube-system has UID %s) than %q is (%s)", uid,
			have.Name, have.Spec.ID)
	}
	return nil
}

// takesWorkloads reports whether there is a Cluster of this id, at a hub that may propagate no workloads.
func (u *unjoin) takesWorkloads(ctx context.Context, hub client.Client) (bool, error) {
	err := hub.Get(ctx, client.ObjectKey{Name: u.clusterID}, &clusterv1alpha1.Cluster{})
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return false, fmt.Errorf("get Cluster %s at the hub: %w", u.clusterID, err)
	}
	return err == nil, nil
}

// propagates returns the id of the hub, on which `pelago init` was run.
func (h *cluster) propagates(ctx context.Context) (hubID string, err error) {
	if hubID, err = broker.HubID(ctx, h.Client); err != nil {
		return "", fmt.Errorf("reach the hub at %s: %w", h.Config.Host, err)
	}
	ok, err := install.Propagates(h.Client)
	if err == nil && !ok {
		err = fmt.Errorf("the API server at %s is no hub for workloads: run `pelago init` there, or name the hub with --context",
			h.Config.Host)
	}
	return hubID, err
}
