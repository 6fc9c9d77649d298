package peering

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/kube"
)

func (r *reconciler) peerSet() kube.ObjectSet[*v1alpha1.Peer] {
	return kube.ObjectSet[*v1alpha1.Peer]{
		Client: r.local, Owns: kube.Owner{HubID: r.HubID}.Owns,
		Copy: func(dst, src *v1alpha1.Peer) { dst.Spec = src.Spec },
	}
}

// ensurePeers writes specs, then conditions.
func (r *reconciler) ensurePeers(ctx context.Context, have, want []*v1alpha1.Peer) error {
	present := map[string]*v1alpha1.Peer{}
	for _, h := range have {
		present[h.Name] = h
	}
	var errs []error
	for _, w := range want {
		errs = append(errs, r.ensurePeer(ctx, present[w.Name], w))
	}
	return errors.Join(errs...)
}

func (r *reconciler) ensurePeer(ctx context.Context, have, want *v1alpha1.Peer) error {
	status, set := want.Status, r.peerSet()
	var present []*v1alpha1.Peer
	if have != nil {
		present = append(present, have)
		// A peer that is now refused gets its new condition first; the event of that write triggers
		// the reconcile that writes the new spec. So no node programs the new spec under the old,
		// accepting condition.
		if set.Owns(have) && routable(have.Status) && !routable(status) {
			return r.writeStatus(ctx, have, status)
		}
	}
	if err := set.Ensure(ctx, present, []*v1alpha1.Peer{want}); err != nil {
		return err
	}
	if have == nil {
		have = want // as created
	}
	return r.writeStatus(ctx, have, status)
}

// routable reports whether nodes route the peer's ranges: it is accepted, or was and has no gateway
// now.
func routable(status v1alpha1.PeerStatus) bool {
	c := meta.FindStatusCondition(status.Conditions, v1alpha1.PeerAccepted)
	return c != nil && (c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonNoGateway)
}

func accepted(status v1alpha1.PeerStatus) bool {
	return meta.IsStatusConditionTrue(status.Conditions, v1alpha1.PeerAccepted)
}

func (r *reconciler) writeStatus(ctx context.Context, current *v1alpha1.Peer, status v1alpha1.PeerStatus) error {
	next := current.DeepCopy()
	for _, c := range status.Conditions {
		meta.SetStatusCondition(&next.Status.Conditions, c)
	}
	return kube.PatchStatus(ctx, r.local, current, next)
}
