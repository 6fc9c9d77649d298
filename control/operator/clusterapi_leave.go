package operator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	clusterv1alpha1 "github.com/pelago-net/pelago/api/cluster/v1alpha1"
	"github.com/pelago-net/pelago/deploy/member"
)

// leave ends the membership of the cluster of an object, which is nil if it is gone: first at the
// hub, then in the cluster.
func (r *capi) leave(ctx context.Context, hub *hubAccess, key client.ObjectKey, u *unstructured.Unstructured, s *capiState) error {
	have, err := r.member(ctx, hub, key, "")
	if err != nil || have == nil && s.leaving == "" {
		return err
	}
	if have != nil {
		if u == nil && have.DeletionTimestamp == nil && !r.lost(have, time.Time{}) {
			return reported{reasonRetained, fmt.Sprintf("member %s stays, since its deletion was not observed and it is ready: if it is to leave, run "+
				"`pelago unjoin %s` at the hub", have.Name, have.Name)}
		}
		s.applied = applied{}
		if s.leaving != have.Name {
			s.leaving, s.mode, s.since = have.Name, have.Spec.SyncMode, time.Now()
		}
		ready := have.Ready()
		force := u == nil && (ready == nil || ready.Status != metav1.ConditionTrue) || have.DeletionTimestamp != nil && r.lost(have, have.DeletionTimestamp.Time)
		if err := unregister(ctx, hub, have, force); err != nil {
			after := &clusterv1alpha1.Cluster{}
			if hub.Get(ctx, client.ObjectKeyFromObject(have), after) == nil && after.DeletionTimestamp != nil {
				message := "member " + have.Name + " is being removed from the hub"
				if c := meta.FindStatusCondition(after.Status.Conditions, clusterv1alpha1.ConditionRemoved); c != nil {
					message += ": " + c.Message
				}
				return reported{reasonLeaving, message}
			}
			return err
		}
		r.record(key, "")
	}
	if u != nil {
		err = r.clean(ctx, hub, key, s)
	}
	if err != nil && u.GetDeletionTimestamp() == nil && time.Since(s.since) < r.giveUp {
		return err
	}
	name, message := s.leaving, ""
	s.leaving = ""
	if err != nil {
		message = fmt.Sprintf("; what Pelago has in the cluster stays there: %v", err)
	}
	return reported{reasonLeft, fmt.Sprintf("member %s has left the hub%s", name, message)}
}

// lost reports whether a member has been not ready for longer than giveUp, counted from since or,
// if later, from when that began.
func (r *capi) lost(c *clusterv1alpha1.Cluster, since time.Time) bool {
	if ready := c.Ready(); ready != nil {
		if ready.Status == metav1.ConditionTrue {
			return false
		}
		if ready.LastTransitionTime.After(since) {
			since = ready.LastTransitionTime.Time
		}
	} else if c.CreationTimestamp.After(since) {
		since = c.CreationTimestamp.Time
	}
	return time.Since(since) > r.giveUp
}

// unregister removes a member at the hub.
func unregister(ctx context.Context, hub *hubAccess, have *clusterv1alpha1.Cluster, force bool) error {
	l := member.Leaving{Force: force, Timeout: leaveTimeout, Progress: progress}
	if have.Spec.SyncMode == clusterv1alpha1.Pull {
		return member.Unregister(ctx, hub.Client, have.Name, l)
	}
	id, err := member.HubID(ctx, hub.cluster)
	if err != nil {
		return err
	}
	return member.LeaveWorkloads(ctx, hub.Client, id, have.Name, l)
}

// clean removes Pelago from a cluster that has left the hub.
func (r *capi) clean(ctx context.Context, hub *hubAccess, key client.ObjectKey, s *capiState) error {
	access, err := r.kubeconfig(ctx, key)
	if err != nil {
		return errors.New(err.Error()) // nothing waits for it
	}
	if s.mode != clusterv1alpha1.Push {
		c, err := access.open()
		if err != nil {
			return err
		}
		return remove(ctx, c)
	}
	c, _, err := access.push()
	if err != nil {
		return err
	}
	id, err := member.HubID(ctx, hub.cluster)
	if err != nil {
		return err
	}
	return member.LeaveWorkloads(ctx, hub.Client, id, s.leaving, member.Leaving{Timeout: removeTimeout, Push: &c, Progress: progress})
}
