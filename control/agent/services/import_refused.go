package services

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	mcs "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	"github.com/pelago-net/pelago/control/topology"
)

// Reasons of Events.
const (
	reasonNotImported = "NotImported" // on a Peer: no endpoint of a service is ready
	// reasonClusterGone is on a Peer: its lease has expired; and that of Ready of a ServiceImport all
	// exporters of which are gone.
	reasonClusterGone    = "ClusterGone"
	reasonForeignAddress = "ForeignAddress" // on a Peer: a service has addresses of others
	reasonInvalidWeight  = "InvalidWeight"  // on a ServiceImport
)

// reasonPeerRefused is that of the condition Ready of a ServiceImport all exporters of which are
// refused.
const reasonPeerRefused = "PeerRefused"

// refusal is why a cluster is not connected. A name that resolves to its addresses would lead to
// another component, or nowhere.
type refusal struct {
	peer *v1alpha1.Peer // nil: not accepted or refused yet
	why  string
	// addressed: its addresses are its own, only no packet gets there. Else they may be those of
	// another component, and are not imported.
	addressed bool
}

// refusalOf reports whether a cluster is refused. One that has no gateway now, or none yet, is
// not: its services stay, and work with the gateway.
func refusalOf(peer *v1alpha1.Peer) (refusal, bool) {
	if peer == nil {
		return refusal{}, true
	}
	c := meta.FindStatusCondition(peer.Status.Conditions, v1alpha1.PeerAccepted)
	switch {
	case c == nil:
		return refusal{}, true
	case c.Status == metav1.ConditionTrue || c.Reason == v1alpha1.ReasonNoGateway || c.Reason == v1alpha1.ReasonAwaitingGateway:
		return refusal{}, false
	}
	return refusal{peer: peer, why: c.Reason + ": " + c.Message, addressed: c.Reason == v1alpha1.ReasonWireMismatch}, true
}

// refusals are the causes for the clusters that are refused, sorted.
func (s importState) refusals() (causes []string) {
	for _, id := range slices.Sorted(maps.Keys(s.refused)) {
		if r := s.refused[id]; r.peer != nil {
			causes = append(causes, "cluster "+id+": "+r.why)
		}
	}
	return causes
}

// readPeer reads the Peer of a cluster; nil if there is none.
func (r *importReconciler) readPeer(ctx context.Context, id string) (*v1alpha1.Peer, error) {
	peer := &v1alpha1.Peer{}
	err := r.local.Get(ctx, client.ObjectKey{Name: id}, peer)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read Peer %s: %w", id, err)
	}
	return peer, nil
}

// readPeers adds which of the contributing clusters are refused, and the ranges of the others.
func (r *importReconciler) readPeers(ctx context.Context, s *importState) error {
	s.refused, s.ranges = map[string]refusal{}, map[string]peerRanges{}
	for _, x := range s.contributions {
		id := x.Spec.Cluster
		if _, done := s.refused[id]; done || id == r.cluster.id || !exportedTo(x, r.cluster.id) {
			continue
		}
		peer, err := r.readPeer(ctx, id)
		if err != nil {
			return err
		}
		if refusal, ok := refusalOf(peer); ok {
			s.refused[id] = refusal
			continue
		}
		ranges := peerRanges{peer: peer}
		for _, text := range peer.Spec.Subnets {
			if p, err := netip.ParsePrefix(text); err == nil { // agent/peering writes prefixes only
				ranges.prefixes = append(ranges.prefixes, p)
			}
		}
		s.ranges[id] = ranges
	}
	return nil
}

// peerRanges are the ranges that are routed to a cluster.
type peerRanges struct {
	peer     *v1alpha1.Peer
	prefixes []netip.Prefix
}

// foreign returns the addresses of a slice that are in none of them: names would lead to someone
// else. The hub refuses them, too.
func (p peerRanges) foreign(endpoints []discoveryv1.Endpoint) (out []string) {
	for _, e := range endpoints {
		for _, text := range e.Addresses {
			ip, err := netip.ParseAddr(text)
			if err != nil || !slices.ContainsFunc(p.prefixes, func(r netip.Prefix) bool { return r.Contains(ip) }) {
				out = append(out, text)
			}
		}
	}
	return out
}

// notice is an Event about a service, to be recorded once while its cause lasts.
type notice struct {
	on                  client.Object
	about, reason, text string // about names the cause
}

// notices are the problems of a service, reported to administrators.
func (s importState) notices(imported *mcs.ServiceImport) (out []notice) {
	service := s.namespace + "/" + s.name
	for id, refusal := range s.refused {
		if refusal.peer != nil {
			out = append(out, notice{refusal.peer, id, reasonNotImported, fmt.Sprintf("no endpoint of service %s of cluster %s is ready: %s", service, id, refusal.why)})
		}
	}
	for _, h := range s.hubSlices {
		id := h.Labels[mcs.LabelSourceCluster]
		ranges, known := s.ranges[id]
		if foreign := ranges.foreign(h.Endpoints); known && len(foreign) > 0 {
			out = append(out, notice{ranges.peer, h.Name, reasonForeignAddress, fmt.Sprintf(
				"service %s of cluster %s: its addresses %s are in none of the ranges of the cluster and are left out", service, id, list(foreign))})
		}
	}
	if imported != nil {
		_, problems := topology.ReadBalancing(imported.Annotations)
		for _, p := range problems {
			out = append(out, notice{imported, p, reasonInvalidWeight, p})
		}
	}
	return out
}

// tell makes an Event of each notice that is new for the service.
func (r *importReconciler) tell(service types.NamespacedName, notices []notice) {
	r.toldMu.Lock()
	defer r.toldMu.Unlock()
	said := map[string]string{}
	for _, n := range notices {
		said[n.about] = n.text
		if r.told[service][n.about] != n.text {
			r.events.Event(n.on, corev1.EventTypeWarning, n.reason, n.text)
		}
	}
	if len(said) == 0 {
		delete(r.told, service)
		return
	}
	r.told[service] = said
}

// judged lets a Peer's events pass if they change what is imported.
var judged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*v1alpha1.Peer)
	after, ok2 := e.ObjectNew.(*v1alpha1.Peer)
	if !ok1 || !ok2 {
		return true
	}
	was, out := refusalOf(before)
	is, outNow := refusalOf(after)
	return out != outNow || was.why != is.why || !slices.Equal(before.Spec.Subnets, after.Spec.Subnets)
}}

// ofPeer: whether a cluster is connected decides on all services that it contributes to.
func (r *importReconciler) ofPeer(_ context.Context, obj client.Object) []reconcile.Request {
	if !r.hub.Synced() {
		return nil // the hub's first picture requests everything
	}
	return r.hub.OfCluster(obj)
}
