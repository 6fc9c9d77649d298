package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// heartbeat is the last renewal of a Lease that the monitor has observed. The zero value is none.
type heartbeat struct {
	// renewTime of the Lease, by the agent's clock: it is only compared with itself
	renewed time.Time
	seen    time.Time // when renewed last changed, by the hub's clock
}

// observe returns the heartbeat after a Lease was read. The grace of a Cluster that is new to the
// monitor begins at since.
func (h heartbeat) observe(renewed, since, now time.Time) heartbeat {
	switch {
	case h == heartbeat{}:
		return heartbeat{renewed: renewed, seen: since}
	case h.renewed.Equal(renewed):
		return h
	}
	return heartbeat{renewed: renewed, seen: now}
}

// expired is the condition Ready of a pull member whose agent has not renewed its Lease in time; ok
// is false if it has, or if Ready is Unknown already. A cluster that has never reported has the
// longer StartupGrace.
func (o MembershipOptions) expired(c *clusterv1alpha1.Cluster, h heartbeat, now time.Time) (condition metav1.Condition, ok bool) {
	ready := c.Ready()
	condition = metav1.Condition{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionUnknown}
	switch {
	case ready == nil && now.Sub(h.seen) >= o.StartupGrace:
		condition.Reason = clusterv1alpha1.ReasonClusterStatusNeverUpdated
		condition.Message = fmt.Sprintf("the agent of cluster %s has never reported: see the logs of pelago-agent there", c.Name)
		return condition, true
	case ready != nil && ready.Status != metav1.ConditionUnknown && now.Sub(h.seen) >= o.Grace:
		condition.Reason = clusterv1alpha1.ReasonClusterStatusUnknown
		condition.Message = fmt.Sprintf("the agent of cluster %s has not renewed Lease %s/%s for %v: "+
			"see whether pelago-agent runs there and reaches the hub", c.Name, clusterv1alpha1.SecretNamespace, c.Name, o.Grace)
		return condition, true
	}
	return metav1.Condition{}, false
}

// monitor checks the Leases of pull members, and the members' reports on each other. It lists
// Leases bypassing the cache: it is their only reader, and a watch would deliver an event for each
// renewal of each member.
type monitor struct {
	MembershipOptions
	client client.Client
	live   client.Reader

	heartbeats map[types.UID]heartbeat
	checked    time.Time // the last check that could list the Leases
}

// NeedLeaderElection implements manager.LeaderElectionRunnable: only the leader writes conditions.
func (m *monitor) NeedLeaderElection() bool { return true }

// Start checks until ctx ends.
func (m *monitor) Start(ctx context.Context) error {
	logged := ""
	// its error is that of ctx
	_ = wait.PollUntilContextCancel(ctx, m.Every, false, func(ctx context.Context) (done bool, _ error) {
		err := m.check(ctx)
		if err == nil {
			logged = ""
		} else if ctx.Err() == nil && err.Error() != logged {
			slog.Warn("leases of members not checked", "error", err)
			logged = err.Error()
		}
		return false, nil
	})
	return nil
}

// check compares all Leases with the heartbeats once. It sets Ready of the members whose Lease has
// expired, and DataPlaneReachable of all by the reports of the others.
func (m *monitor) check(ctx context.Context) error {
	var leases coordinationv1.LeaseList
	if err := m.live.List(ctx, &leases, client.InNamespace(clusterv1alpha1.SecretNamespace)); err != nil {
		return fmt.Errorf("list Leases in %s: %w", clusterv1alpha1.SecretNamespace, err)
	}
	var clusters clusterv1alpha1.ClusterList
	if err := m.client.List(ctx, &clusters); err != nil {
		return fmt.Errorf("list Clusters: %w", err)
	}
	renewed := map[string]time.Time{}
	for _, l := range leases.Items {
		if l.Spec.RenewTime != nil {
			renewed[l.Name] = l.Spec.RenewTime.Time
		}
	}
	now := time.Now()
	former := m.heartbeats
	// the hub was unavailable: agents could not renew, or renewals were not observed
	if now.Sub(m.checked) > m.Grace/2 {
		former = nil
	}
	m.checked = now
	m.heartbeats = make(map[types.UID]heartbeat, len(clusters.Items))
	var failed error
	about := readReports(clusters.Items)
	for i := range clusters.Items {
		c := &clusters.Items[i]
		if !c.Member() {
			continue
		}
		next := c.DeepCopy()
		changed := about[c.Name].setReachable(&next.Status.Conditions)
		if c.Spec.SyncMode == clusterv1alpha1.Pull {
			since := now
			if c.Ready() == nil {
				since = c.CreationTimestamp.Time
			}
			m.heartbeats[c.UID] = former[c.UID].observe(renewed[c.Name], since, now)
			if condition, ok := m.expired(c, m.heartbeats[c.UID], now); ok {
				changed = next.Status.SetReady(condition) || changed
			}
		}
		if !changed {
			continue
		}
		err := m.client.Status().Patch(ctx, next, kube.MergeFrom(c))
		// the next check repeats a stale write
		if client.IgnoreNotFound(err) != nil && !kube.IsStale(err) {
			failed = fmt.Errorf("write the conditions of Cluster %s: %w", c.Name, err)
		}
	}
	return failed
}
