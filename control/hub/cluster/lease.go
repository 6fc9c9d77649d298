package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

// pulse is what is known of one agent's life.
type pulse struct {
	renewed time.Time // what its Lease says, by the agent's clock: it is only compared with itself
	seen    time.Time // when that last changed, by our clock
}

// feel brings a pulse up to date. since is when a Cluster that is new to the monitor begins to count.
func feel(former *pulse, renewed, since, now time.Time) pulse {
	switch {
	case former == nil:
		return pulse{renewed: renewed, seen: since}
	case former.renewed.Equal(renewed):
		return *former
	}
	return pulse{renewed: renewed, seen: now}
}

// judge is the condition Ready of a pull member whose agent has not been heard of for too long; ok is false if that is not so,
// or said already. A cluster that has never reported has the longer grace of a start.
func (o MembershipOptions) judge(c *clusterv1alpha1.Cluster, p pulse, now time.Time) (condition metav1.Condition, ok bool) {
	ready := c.Ready()
	condition = metav1.Condition{Type: clusterv1alpha1.ConditionReady, Status: metav1.ConditionUnknown}
	switch {
	case ready == nil && now.Sub(p.seen) >= o.StartupGrace:
		condition.Reason = clusterv1alpha1.ReasonClusterStatusNeverUpdated
		condition.Message = fmt.Sprintf("the agent of cluster %s has never reported: see the logs of pelago-agent there", c.Name)
		return condition, true
	case ready != nil && ready.Status != metav1.ConditionUnknown && now.Sub(p.seen) >= o.Grace:
		condition.Reason = clusterv1alpha1.ReasonClusterStatusUnknown
		condition.Message = fmt.Sprintf("the agent of cluster %s has not renewed Lease %s/%s for %v: "+
			"see whether pelago-agent runs there and reaches the hub", c.Name, clusterv1alpha1.SecretNamespace, c.Name, o.Grace)
		return condition, true
	}
	return metav1.Condition{}, false
}

// monitor looks at the Leases of pull members. It reads them past the cache: nobody else needs them, and a watch would bring an
// event for each renewal of each member.
type monitor struct {
	MembershipOptions
	client client.Client
	live   client.Reader
	now    func() time.Time

	pulses map[types.UID]pulse
	looked time.Time // the last round that could read the Leases
}

// NeedLeaderElection: one monitor judges.
func (m *monitor) NeedLeaderElection() bool { return true }

// Start looks until ctx ends.
func (m *monitor) Start(ctx context.Context) error {
	ticker := time.NewTicker(m.Every)
	defer ticker.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		err := m.look(ctx)
		if err != nil && ctx.Err() == nil && err.Error() != said {
			slog.Warn("leases of members not looked at", "error", err)
			said = err.Error()
		}
		if err == nil {
			said = ""
		}
	}
}

// look judges all pull members once.
func (m *monitor) look(ctx context.Context) error {
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
	now := m.now()
	former := m.pulses
	if now.Sub(m.looked) > m.Grace/2 { // the hub was away or we were: so long nobody could renew, or be seen doing it
		former = nil
	}
	m.looked = now
	m.pulses = make(map[types.UID]pulse, len(clusters.Items))
	var failed error
	for i := range clusters.Items {
		c := &clusters.Items[i]
		if c.Spec.SyncMode != clusterv1alpha1.Pull || !c.Member() {
			continue
		}
		since := now
		if c.Ready() == nil {
			since = c.CreationTimestamp.Time
		}
		var before *pulse
		if p, known := former[c.UID]; known {
			before = &p
		}
		p := feel(before, renewed[c.Name], since, now)
		m.pulses[c.UID] = p
		condition, ok := m.judge(c, p, now)
		if !ok {
			continue
		}
		next := c.DeepCopy()
		meta.SetStatusCondition(&next.Status.Conditions, condition)
		if err := patchStatus(ctx, m.client, c, next); client.IgnoreNotFound(err) != nil && !kube.IsStale(err) { // a stale one is judged again
			failed = fmt.Errorf("say that cluster %s is not seen: %w", c.Name, err)
		}
	}
	return failed
}
