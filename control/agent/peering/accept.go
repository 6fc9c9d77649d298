package peering

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/control/kube"
)

// known is the input of peers.
type known struct {
	clusters  []submarinerv1.Cluster  // copies in the system namespace
	endpoints []submarinerv1.Endpoint // copies in the system namespace
	nodes     []corev1.Node           // of this cluster
	peers     []v1alpha1.Peer         // as they were written last
	hub       []netip.Addr            // of its API server
	needed    []need                  // by this cluster
}

// routed reports whether the nodes route to a peer already.
func (k known) routed(peer string) bool {
	return slices.ContainsFunc(k.peers, func(p v1alpha1.Peer) bool { return p.Name == peer && routable(p.Status) })
}

// peers computes one Peer for each remote cluster, with its condition. Clusters are checked in the
// order in which they joined: if two overlap, the older one takes precedence. A cluster without a
// gateway keeps its ranges: the nodes still route them, and whether a younger cluster is accepted
// must not depend on another cluster's gateways coming and going.
func (o Options) peers(k known) ([]*v1alpha1.Peer, []problem) {
	remote := slices.DeleteFunc(slices.Clone(k.clusters), func(c submarinerv1.Cluster) bool { return c.Spec.ClusterID == o.ClusterID })
	slices.SortFunc(remote, func(a, b submarinerv1.Cluster) int {
		return cmp.Or(joinedAt(a).Compare(joinedAt(b)), cmp.Compare(a.Spec.ClusterID, b.Spec.ClusterID))
	})
	t := o.taken(k)
	own := slices.IndexFunc(k.clusters, func(c submarinerv1.Cluster) bool { return c.Spec.ClusterID == o.ClusterID })
	waits := own >= 0 && unapproved(&k.clusters[own])
	var out []*v1alpha1.Peer
	var problems []problem
	for i, c := range remote {
		index, err := number(c.Annotations[v1alpha1.AnnotationClusterIndex])
		if err == nil && index > config.MaxFabricCluster {
			err = fmt.Errorf("%d is more than %d", index, config.MaxFabricCluster)
		}
		if err != nil {
			problems = append(problems, problem{&remote[i], "NoClusterIndex", fmt.Sprintf(
				"annotation %s of the hub's Cluster %s: %v: join the cluster again", v1alpha1.AnnotationClusterIndex, c.Name, err)})
			continue
		}
		peer, verdict := o.peer(c, index, k.endpoints, t)
		if v := o.admissible(c, peer.Spec, t); !v.ok {
			verdict = o.keepRanges(c, peer, k, t, verdict, v)
		}
		switch {
		case unapproved(&remote[i]):
			verdict = awaitsApproval(c.Spec.ClusterID)
		case waits:
			verdict = awaitsApproval(o.ClusterID)
		}
		if verdict.ok || verdict.reason == v1alpha1.ReasonNoGateway {
			t.add(c.Spec.ClusterID, peer.Spec)
		}
		if verdict.reason == v1alpha1.ReasonNoGateway && !k.routed(peer.Name) {
			verdict.reason = v1alpha1.ReasonAwaitingGateway
		}
		meta.SetStatusCondition(&peer.Status.Conditions, verdict.condition())
		kube.Owner{HubID: o.HubID}.Mark(peer)
		out = append(out, peer)
	}
	return out, problems
}

// keepRanges is the verdict on a peer that is not admissible. If it was accepted before, and a range
// alone is in the way, which was added or has got an address that this cluster needs, the peer keeps
// the others, so that its traffic goes on; of one that has grown the former part.
func (o Options) keepRanges(c submarinerv1.Cluster, peer *v1alpha1.Peer, k known, t *taken, gateways, refusal acceptance) acceptance {
	i := slices.IndexFunc(k.peers, func(p v1alpha1.Peer) bool { return p.Name == peer.Name })
	ranges := refusal.reason == v1alpha1.ReasonOverlappingCIDR || refusal.reason == v1alpha1.ReasonUnroutableCIDR
	if i < 0 || !ranges || !routable(k.peers[i].Status) || k.peers[i].Spec.ClusterIndex != peer.Spec.ClusterIndex || t.indexes[peer.Spec.ClusterIndex] != "" {
		return refusal
	}
	fabric, _ := o.fabricShare(c, peer.Spec.ClusterIndex) // none with globalnet: then no range equals it
	claimed := parsed(peer.Spec.Subnets)
	var kept []netip.Prefix
	for _, r := range slices.Concat(claimed, parsed(k.peers[i].Spec.Subnets)) {
		routed := r.String() == fabric || config.CheckRange(r) == nil && !r.Overlaps(o.Fabric) && t.permitted(c.Spec.ClusterID, r)
		if routed && inside(r, claimed) && !inside(r, kept) && t.overlap(c.Spec.ClusterID, []netip.Prefix{r}).ok {
			kept = append(kept, r)
		}
	}
	peer.Spec.Subnets = nil
	for _, r := range kept {
		peer.Spec.Subnets = append(peer.Spec.Subnets, r.String())
	}
	if len(kept) == 0 || len(kept) == 1 && peer.Spec.Subnets[0] == fabric {
		peer.Spec.Subnets = o.routed(c, peer.Spec.ClusterIndex)
		return refusal
	}
	if gateways.ok {
		gateways.reason = v1alpha1.ReasonRangeLeftOut
		gateways.message = fmt.Sprintf("only the ranges %s are used: %s", strings.Join(peer.Spec.Subnets, ", "), refusal.message)
	}
	return gateways
}

// admissible checks a cluster's ranges and index.
func (o Options) admissible(c submarinerv1.Cluster, spec v1alpha1.PeerSpec, t *taken) acceptance {
	id := c.Spec.ClusterID
	if own, other := len(o.GlobalCIDRs) > 0, len(c.Spec.GlobalCIDR) > 0; own != other {
		with, without := o.ClusterID, id
		if other {
			with, without = id, o.ClusterID
		}
		return acceptance{reason: v1alpha1.ReasonGlobalnetMismatch, message: fmt.Sprintf(
			"cluster %s has a GlobalCIDR and cluster %s has none: in one clusterset all have one or none; join one of them again", with, without)}
	}
	for _, r := range parsed(allocated(c)) {
		if err := config.CheckRange(r); err != nil {
			return acceptance{reason: v1alpha1.ReasonUnroutableCIDR, message: fmt.Sprintf(
				"cluster %s: %v: join it with other ranges, or use globalnet", id, err)}
		}
		if !t.permitted(id, r) {
			remedy := fmt.Sprintf("an administrator of the hub allows it with `pelago deploy-broker --cluster-ranges %s`, or use globalnet", r)
			if len(o.GlobalCIDRs) > 0 {
				remedy = "remove the cluster with `pelago unjoin`, and join it again"
			}
			return acceptance{reason: v1alpha1.ReasonUnroutableCIDR, message: fmt.Sprintf(
				"%s of cluster %s lies outside of the ranges of the clusterset, %s: %s", r, id, strings.Trim(fmt.Sprint(t.allowed), "[]"), remedy)}
		}
		if r.Overlaps(o.Fabric) {
			return acceptance{reason: v1alpha1.ReasonOverlappingCIDR, message: fmt.Sprintf(
				"%s of cluster %s overlaps the clusterset's fabric range %s: give it another range, or deploy the broker with another --fabric-cidr", r, id, o.Fabric)}
		}
	}
	if v := t.overlap(id, parsed(spec.Subnets)); !v.ok {
		return v
	}
	if other, ok := t.indexes[spec.ClusterIndex]; ok {
		return invalid("cluster index %d is that of cluster %s", spec.ClusterIndex, other)
	}
	return acceptance{ok: true}
}

// acceptance is the content of condition Accepted.
type acceptance struct {
	ok      bool
	reason  string
	message string
}

func (v acceptance) condition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.PeerAccepted, Status: metav1.ConditionFalse, Reason: v.reason, Message: v.message}
	if v.ok {
		c.Status = metav1.ConditionTrue
	}
	return c
}

// awaitsApproval is the verdict on a connection with a cluster that no administrator of the hub has
// accepted. Its ranges and its index are not taken: another cluster may have them.
func awaitsApproval(cluster string) acceptance {
	return acceptance{reason: v1alpha1.ReasonUnapproved, message: fmt.Sprintf(
		"no administrator of the hub has accepted cluster %s: run `pelago clusters accept %s` with access to the hub", cluster, cluster)}
}

func invalid(format string, args ...any) acceptance {
	return acceptance{reason: v1alpha1.ReasonInvalidEndpoint, message: fmt.Sprintf(format, args...)}
}

// peer merges the Endpoints of one cluster.
func (o Options) peer(c submarinerv1.Cluster, index int32, endpoints []submarinerv1.Endpoint, t *taken) (*v1alpha1.Peer, acceptance) {
	peer := &v1alpha1.Peer{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.ClusterID},
		Spec:       v1alpha1.PeerSpec{ClusterIndex: index, Subnets: o.routed(c, index), Gateways: []v1alpha1.PeerGateway{}, Labels: maps.Clone(c.Labels)},
	}
	delete(peer.Spec.Labels, v1alpha1.LabelManagedBy) // of the copy
	var bad []acceptance
	for _, e := range endpoints {
		if e.Spec.ClusterID != c.Spec.ClusterID {
			continue
		}
		if g, v := o.gateway(c, index, e); v.ok {
			t.elsewhere(&g)
			peer.Spec.Gateways = append(peer.Spec.Gateways, g)
		} else {
			bad = append(bad, v)
		}
	}
	slices.SortFunc(peer.Spec.Gateways, func(a, b v1alpha1.PeerGateway) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
	// A gateway that changes its address has two Endpoints for a short time.
	peer.Spec.Gateways = slices.CompactFunc(peer.Spec.Gateways, func(a, b v1alpha1.PeerGateway) bool { return a.Name == b.Name })
	mine := map[string]string{}
	peer.Spec.Gateways = slices.DeleteFunc(peer.Spec.Gateways, func(g v1alpha1.PeerGateway) bool {
		v := t.distinct(c.Spec.ClusterID, g, mine)
		if !v.ok {
			bad = append(bad, v)
		}
		return !v.ok
	})
	slices.SortFunc(bad, func(a, b acceptance) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.message, b.message))
	})
	switch {
	case len(peer.Spec.Gateways) == 0 && len(bad) > 0:
		return peer, bad[0]
	case len(peer.Spec.Gateways) == 0:
		return peer, acceptance{reason: v1alpha1.ReasonNoGateway, message: fmt.Sprintf(
			"cluster %s has no ready gateway: label a node of it with %s=true and see that pelago-node is ready there", c.Spec.ClusterID, submarinerv1.LabelGateway)}
	case len(bad) > 0:
		return peer, acceptance{ok: true, reason: v1alpha1.ReasonAccepted, message: fmt.Sprintf("%d of %d gateways are used; %s",
			len(peer.Spec.Gateways), len(peer.Spec.Gateways)+len(bad), bad[0].message)}
	}
	return peer, acceptance{ok: true, reason: v1alpha1.ReasonAccepted, message: fmt.Sprintf("%d gateways are used", len(peer.Spec.Gateways))}
}

// parsed leaves out texts that are not prefixes; the hub refuses Clusters that have such.
func parsed(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		if p, err := netip.ParsePrefix(t); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

func number(text string) (int32, error) {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("%q is no number from 1 to 65535", text)
	}
	return int32(n), nil
}

// joinedAt is when a cluster joined; the zero time for a copy without the annotation.
func joinedAt(c submarinerv1.Cluster) time.Time {
	t, err := time.Parse(time.RFC3339, c.Annotations[v1alpha1.AnnotationJoinedAt])
	if err != nil {
		return time.Time{}
	}
	return t
}
