package main

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
)

// leave ends the membership of the cluster of an object, which is nil if it is gone: first at the hub, then in the cluster.
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
		args := []string{"unjoin", have.Name}
		if have.Spec.SyncMode == clusterv1alpha1.Pull {
			args[1] = "--clusterid=" + have.Name
		}
		args = append(append(args, "--timeout="+leaveTimeout.String()), hub.flags()...)
		ready := have.Ready()
		if u == nil && (ready == nil || ready.Status != metav1.ConditionTrue) || have.DeletionTimestamp != nil && r.lost(have, have.DeletionTimestamp.Time) {
			args = append(args, "--force")
		}
		if err := r.run(ctx, hub.files(), args...); err != nil {
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

// lost reports whether a member has been not ready for longer than giveUp, counted from since or, if later, from when that began.
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

// clean removes Pelago from a cluster that has left the hub.
func (r *capi) clean(ctx context.Context, hub *hubAccess, key client.ObjectKey, s *capiState) error {
	member, err := r.kubeconfig(ctx, key)
	if err != nil {
		return errors.New(err.Error()) // nothing waits for it
	}
	if s.mode == clusterv1alpha1.Push {
		return r.run(ctx, append(hub.files(), member), append([]string{"unjoin", s.leaving, "--cluster-kubeconfig=@member"}, hub.flags()...)...)
	}
	return r.run(ctx, []credential{member}, "unjoin", "--yes", "--kubeconfig=@member")
}
