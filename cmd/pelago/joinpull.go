package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/deploy/broker"
)

// grantTime is how long the hub may take to see that a cluster has registered; it refuses the cluster's own writes until then.
const grantTime = 10 * time.Second

// pull makes the cluster a member for workloads, by the identity that it has just got: token. It says whether it did: not with
// --network-only, and not at a hub that propagates no workloads.
func (j *join) pull(ctx context.Context, info broker.Info, set broker.Clusterset, token, uid string, p *progress) (bool, error) {
	if j.networkOnly {
		return false, nil
	}
	cfg := info.Config()
	cfg.BearerToken = token
	hub, err := clusterClient(cfg)
	if err != nil {
		return false, err
	}
	ok, err := propagates(hub)
	if err != nil {
		return false, err
	}
	if !ok {
		p.step("The hub propagates no workloads (`pelago init` was not run there): cluster %s takes part in the network only",
			j.clusterID)
		return false, nil
	}
	p.step("Registering cluster %s for workloads", j.clusterID)
	cluster := &clusterv1alpha1.Cluster{
		ObjectMeta: metav1.ObjectMeta{Name: j.clusterID},
		Spec:       clusterv1alpha1.ClusterSpec{ID: uid, SyncMode: clusterv1alpha1.Pull},
	}
	if !set.AutoAccept {
		cluster.Spec.Taints = []clusterv1alpha1.Taint{unapprovedTaint}
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 500*time.Millisecond, grantTime, true, func(ctx context.Context) (bool, error) {
		last = hub.Create(ctx, cluster.DeepCopy())
		return !apierrors.IsForbidden(last), nil
	})
	if ctx.Err() != nil {
		return false, fmt.Errorf("register cluster %q for workloads: %w", j.clusterID, err)
	}
	switch {
	case last == nil:
		j.reportAcceptance(cluster, p)
		return true, nil
	case apierrors.IsAlreadyExists(last):
		return true, j.checkPull(ctx, hub, uid, p)
	case apierrors.IsForbidden(last):
		return false, fmt.Errorf("register cluster %q for workloads: %w: run `pelago deploy-broker` at the hub again, which gives "+
			"members that right, or join with --network-only", j.clusterID, last)
	}
	return false, fmt.Errorf("register cluster %q for workloads: %w", j.clusterID, last)
}

// checkPull looks at the Cluster of this name that exists. Only the hub's administrators and this cluster can have made it.
func (j *join) checkPull(ctx context.Context, hub client.Client, uid string, p *progress) error {
	have := &clusterv1alpha1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Name: j.clusterID}, have)
	if apierrors.IsForbidden(err) {
		p.step("Cluster %s is registered; pelago-hub has not given it its rights yet", j.clusterID)
		return nil
	}
	if err != nil {
		return fmt.Errorf("get Cluster %s at the hub: %w", j.clusterID, err)
	}
	remedy := fmt.Sprintf("run `pelago unjoin %s` at the hub first, or join with --network-only", j.clusterID)
	switch {
	case have.DeletionTimestamp != nil:
		return fmt.Errorf("cluster %q is being removed from the hub: wait until it is gone, then join again", j.clusterID)
	case have.Spec.SyncMode != clusterv1alpha1.Pull:
		return fmt.Errorf("cluster %q is a push member: the hub writes it already: %s", j.clusterID, remedy)
	case have.Spec.ID != uid:
		return fmt.Errorf("name %q belongs to another cluster for workloads (its namespace kube-system has UID %s): %s", j.clusterID,
			have.Spec.ID, remedy)
	}
	j.reportAcceptance(have, p)
	return nil
}

// reportAcceptance prints what an administrator of the hub has to do before workloads come to the cluster.
func (j *join) reportAcceptance(cluster *clusterv1alpha1.Cluster, p *progress) {
	if !cluster.Accepted() {
		p.step("Cluster %s gets no workloads before an administrator of the hub accepts it: pelago clusters accept %s", j.clusterID, j.clusterID)
	}
}
