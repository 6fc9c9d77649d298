package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/hub/cluster"
	"github.com/pelago-net/pelago/deploy"
	"github.com/pelago-net/pelago/deploy/broker"
)

// workloads ends a cluster's membership for workloads: the Cluster and what belongs to it at the hub, and, with a kubeconfig
// of a push member, the hub's account there.
func (u *unjoin) workloads(ctx context.Context, name string, out io.Writer) error {
	cfg, err := u.access.config()
	if err != nil {
		return err
	}
	hub, hubID, err := openPropagatingHub(ctx, cfg)
	if err != nil {
		return err
	}
	var member *rest.Config
	if u.cluster.file != "" {
		if member, _, err = u.cluster.config(); err != nil {
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
		if err := (deploy.PushAccount{Cluster: name, HubID: hubID}).Remove(ctx, member, p.step); err != nil {
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
func checkMember(ctx context.Context, member *rest.Config, have *clusterv1alpha1.Cluster, gone bool) error {
	m, err := openMember(member)
	if err != nil {
		return err
	}
	uid, err := broker.ClusterUID(ctx, m.client)
	if err != nil {
		return fmt.Errorf("reach the cluster at %s: %w", member.Host, err)
	}
	if !gone && have.Spec.ID != "" && have.Spec.ID != uid {
		return fmt.Errorf("--cluster-kubeconfig leads to another cluster (its namespace kube-system has UID %s) than %q is (%s)", uid,
			have.Name, have.Spec.ID)
	}
	return nil
}

// withdrawAny is withdraw for --clusterid, at a hub that may propagate no workloads and know no such Cluster.
func (u *unjoin) withdrawAny(ctx context.Context, cfg *rest.Config, p *progress) error {
	hub, err := clusterClient(cfg)
	if err != nil {
		return err
	}
	ok, err := propagates(hub)
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
		left, err := cluster.Abandon(ctx, hub, name)
		for _, object := range left {
			p.step("%s stays in the cluster", object)
		}
		if err != nil {
			return err
		}
	}
	var last error
	err := wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, u.timeout, true, func(context.Context) (bool, error) {
		last = hub.Get(ctx, client.ObjectKey{Name: name}, member) // the end of the time does not cut off the last look
		return apierrors.IsNotFound(last), nil
	})
	if err == nil {
		return cluster.Forget(ctx, hub, hub, name) // pelago-hub has done so already, if it runs
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
