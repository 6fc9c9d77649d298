package member

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/broker"
	"github.com/pelago-net/pelago/deploy/manifests"
)

// Leaving is how a cluster leaves its hub.
type Leaving struct {
	// Force: an unreachable cluster is given up, a ready one after Timeout; what was propagated to
	// it stays there.
	Force          bool
	IgnoreNotFound bool
	// Timeout bounds the wait until workloads are removed.
	Timeout time.Duration
	// Push is a push member from which the hub's account is removed.
	Push     *manifests.Cluster
	Progress manifests.Progress

	abandon bool // with Force: a ready cluster is not waited for either
}

// Unregister removes what the hub holds of a cluster, with an administrator's access to the hub.
func Unregister(ctx context.Context, hub client.Client, id string, l Leaving) error {
	known, workloads, err := l.known(ctx, hub, id)
	if err != nil || !known {
		return err
	}
	if workloads { // before it loses its rights at the hub: its agent needs them to clean up
		if err := withdraw(ctx, hub, id, l); err != nil {
			return err
		}
	}
	l.Progress("Removing cluster %s from the hub", id)
	if err := broker.Unregister(ctx, hub, manifests.BrokerNamespace, id); err != nil {
		return err
	}
	l.Progress("Cluster %s is removed; if Pelago runs there, remove it with `pelago unjoin --context CLUSTER`", id)
	return nil
}

// Evict removes a cluster that is not trusted any more: its rights at the hub and its connections
// first, then what the hub holds of it. A pull member, which has no rights to clean up then, is given
// up; a push member is cleaned by the hub, for at most Timeout with Force.
func Evict(ctx context.Context, hub client.Client, id string, l Leaving) error {
	known, workloads, err := l.known(ctx, hub, id)
	if err != nil || !known {
		return err
	}
	l.Progress("Revoking the rights and the connections of cluster %s", id)
	// its tunnels end with its acceptance; a push member has no entry at the broker
	_, err = broker.Approve(ctx, hub, id, false, nil)
	c := &clusterv1alpha1.Cluster{}
	if workloads && err == nil {
		err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := hub.Get(ctx, client.ObjectKey{Name: id}, c); err != nil || !c.Accepted() {
				return client.IgnoreNotFound(err)
			}
			before := c.DeepCopy()
			c.Spec.Taints = append(c.Spec.Taints, UnapprovedTaint)
			return hub.Patch(ctx, c, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
		})
	}
	// whatever of this fails, the rights go
	if err := errors.Join(err, broker.Unregister(ctx, hub, manifests.BrokerNamespace, id)); err != nil {
		return fmt.Errorf("evict cluster %s: %w", id, err)
	}
	l.Progress("Cluster %s has no rights any more: API servers accept its tokens for up to 10 s more", id)
	if workloads {
		l.abandon = c.Spec.SyncMode == clusterv1alpha1.Pull
		l.Force = l.Force || l.abandon
		if err := withdraw(ctx, hub, id, l); err != nil {
			return err
		}
	}
	l.Progress("Cluster %s is evicted", id)
	return nil
}

// known reports whether the hub knows a cluster, which is an error unless IgnoreNotFound, and
// whether as a member for workloads.
func (l Leaving) known(ctx context.Context, hub client.Client, id string) (known, workloads bool, err error) {
	if _, err := broker.ReadClusterset(ctx, hub, manifests.BrokerNamespace); err != nil {
		return false, false, fmt.Errorf("%w: name the hub with --context", err)
	}
	registered, err := broker.Registered(ctx, hub, id)
	workloads, err2 := takesWorkloads(ctx, hub, id)
	switch err := errors.Join(err, err2); {
	case err != nil:
		return false, false, err
	case registered || workloads:
		return true, workloads, nil
	case l.IgnoreNotFound:
		l.Progress("Cluster %s is not registered at the hub", id)
		return false, false, nil
	}
	return false, false, fmt.Errorf("cluster %s is not registered at the hub: see `kubectl -n submariner-k8s-broker get clusters.submariner.io`, or give --ignore-not-found", id)
}

// Remove removes Pelago from a cluster that has joined with a configuration.
func Remove(ctx context.Context, c client.Client, former config.Config, o Removal) error {
	o.HubID = former.HubID
	progress := o.Progress
	gateways, err := RemoveMember(ctx, c, o)
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

// LeaveWorkloads ends a cluster's membership for workloads, push or pull; the network stays.
func LeaveWorkloads(ctx context.Context, hub client.Client, hubID, name string, l Leaving) error {
	have := &clusterv1alpha1.Cluster{}
	err := hub.Get(ctx, client.ObjectKey{Name: name}, have)
	if err != nil && (l.Push == nil || !apierrors.IsNotFound(err)) {
		return fmt.Errorf("get Cluster %s at the hub: %w: see `kubectl get clusters.cluster.karmada.io`", name, err)
	}
	if l.Push != nil {
		if err := checkMember(ctx, *l.Push, have); err != nil {
			return err
		}
	}
	workloadsOnly, err := broker.WorkloadsOnly(ctx, hub, name)
	if err != nil {
		return err
	}
	if err := withdraw(ctx, hub, name, l); err != nil {
		return err
	}
	switch {
	case l.Push != nil:
		if err := (PushAccount{Cluster: name, HubID: hubID}).Remove(ctx, l.Push.Client, l.Progress); err != nil {
			return err
		}
	case workloadsOnly:
		l.Progress("Removing cluster %s from the hub", name)
		if err := broker.Unregister(ctx, hub, manifests.BrokerNamespace, name); err != nil {
			return err
		}
		l.Progress("The agent stays in the cluster: remove it with `pelago unjoin --context CLUSTER`")
	case have.Spec.SyncMode == clusterv1alpha1.Push:
		l.Progress("ServiceAccount %s/karmada-%s stays in the cluster: give --cluster-kubeconfig as well to remove it",
			clusterv1alpha1.SecretNamespace, name)
	default:
		l.Progress("The agent for workloads stays in the cluster: `pelago join … --network-only` there removes it, or `pelago unjoin` all " +
			"of Pelago")
	}
	l.Progress("Cluster %s is no member for workloads any more", name)
	return nil
}

// checkMember refuses to remove the account from a cluster other than the registered one, if one is
// registered.
func checkMember(ctx context.Context, c manifests.Cluster, have *clusterv1alpha1.Cluster) error {
	uid, err := broker.ClusterUID(ctx, c.Client)
	if err != nil {
		return fmt.Errorf("reach the cluster at %s: %w", c.Config.Host, err)
	}
	if have.Spec.ID != "" && have.Spec.ID != uid {
		return fmt.Errorf("--cluster-kubeconfig leads to another cluster (its namespace kube-system has UID %s) than %q is (%s)", uid,
			have.Name, have.Spec.ID)
	}
	return nil
}

// takesWorkloads reports whether there is a Cluster of this id, at a hub that may propagate no
// workloads.
func takesWorkloads(ctx context.Context, hub client.Client, id string) (bool, error) {
	err := hub.Get(ctx, client.ObjectKey{Name: id}, &clusterv1alpha1.Cluster{})
	if err != nil && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return false, fmt.Errorf("get Cluster %s at the hub: %w", id, err)
	}
	return err == nil, nil
}

// HubID returns the id of a hub on which `pelago init` was run.
func HubID(ctx context.Context, hub manifests.Cluster) (id string, err error) {
	if id, err = broker.HubID(ctx, hub.Client); err != nil {
		return "", fmt.Errorf("reach the hub at %s: %w", hub.Config.Host, err)
	}
	ok, err := Propagates(hub.Client)
	if err == nil && !ok {
		err = fmt.Errorf("the API server at %s is no hub for workloads: run `pelago init` there, or name the hub with --context",
			hub.Config.Host)
	}
	return id, err
}

// Accept lets other clusters connect to a cluster, and the hub send it workloads.
func Accept(ctx context.Context, hub client.Client, name string) error {
	if _, err := broker.Approve(ctx, hub, name, true, nil); err != nil {
		return err
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c := &clusterv1alpha1.Cluster{}
		if err := hub.Get(ctx, client.ObjectKey{Name: name}, c); err != nil {
			return err
		}
		before := c.DeepCopy()
		c.Spec.Taints = slices.DeleteFunc(c.Spec.Taints, func(t clusterv1alpha1.Taint) bool { return t.Key == clusterv1alpha1.TaintUnapproved })
		return hub.Patch(ctx, c, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
	if err != nil {
		return fmt.Errorf("accept Cluster %s at the hub: %w", name, err)
	}
	return nil
}
