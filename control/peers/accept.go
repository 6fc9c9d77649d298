package peers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/objectset"
)

// known is everything that decides about peers.
type known struct {
	clusters  []submarinerv1.Cluster  // copies in the system namespace
	endpoints []submarinerv1.Endpoint // copies in the system namespace
}

// claim is ranges that are in use and by whom.
type claim struct {
	who    string
	ranges []netip.Prefix
}

// peers computes one Peer for each remote cluster, with its condition. Clusters are judged in the order in which they
// joined: where two clash, the older one stays.
func (o Options) peers(k known) ([]*v1alpha1.Peer, []problem) {
	remote := slices.DeleteFunc(slices.Clone(k.clusters), func(c submarinerv1.Cluster) bool { return c.Spec.ClusterID == o.ClusterID })
	slices.SortFunc(remote, func(a, b submarinerv1.Cluster) int {
		return cmp.Or(joinedAt(a).Compare(joinedAt(b)), cmp.Compare(a.Spec.ClusterID, b.Spec.ClusterID))
	})
	taken := []claim{
		{fmt.Sprintf("the pods of this cluster %s", o.ClusterID), o.PodCIDRs},
		{fmt.Sprintf("the services of this cluster %s", o.ClusterID), o.ServiceCIDRs},
		{fmt.Sprintf("the GlobalCIDR of this cluster %s", o.ClusterID), o.GlobalCIDRs},
	}
	indexes := map[int32]string{int32(o.ClusterIndex): o.ClusterID}
	var out []*v1alpha1.Peer
	var problems []problem
	for i, c := range remote {
		index, err := number(c.Annotations[v1alpha1.AnnotationClusterIndex])
		if err != nil {
			problems = append(problems, problem{&remote[i], "NoClusterIndex", fmt.Sprintf(
				"annotation %s of the hub's Cluster %s: %v: join the cluster again", v1alpha1.AnnotationClusterIndex, c.Name, err)})
			continue
		}
		peer, verdict := o.peer(c, index, k.endpoints)
		ranges := parsed(peer.Spec.Subnets)
		if verdict.ok {
			verdict = overlap(c.Spec.ClusterID, ranges, taken, verdict)
		}
		if other, ok := indexes[peer.Spec.ClusterIndex]; ok && verdict.ok {
			verdict = invalid("cluster index %d is that of cluster %s", peer.Spec.ClusterIndex, other)
		}
		if verdict.ok {
			taken = append(taken, claim{"cluster " + c.Spec.ClusterID, ranges})
			indexes[peer.Spec.ClusterIndex] = c.Spec.ClusterID
		}
		meta.SetStatusCondition(&peer.Status.Conditions, verdict.condition())
		objectset.Owner{HubID: o.HubID}.Mark(peer)
		out = append(out, peer)
	}
	return out, problems
}

// verdict is the content of condition Accepted.
type verdict struct {
	ok      bool
	reason  string
	message string
}

func (v verdict) condition() metav1.Condition {
	c := metav1.Condition{Type: v1alpha1.PeerAccepted, Status: metav1.ConditionFalse, Reason: v.reason, Message: v.message}
	if v.ok {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func invalid(format string, args ...any) verdict {
	return verdict{reason: v1alpha1.ReasonInvalidEndpoint, message: fmt.Sprintf(format, args...)}
}

// peer merges the Endpoints of one cluster.
func (o Options) peer(c submarinerv1.Cluster, index int32, endpoints []submarinerv1.Endpoint) (*v1alpha1.Peer, verdict) {
	peer := &v1alpha1.Peer{
		ObjectMeta: metav1.ObjectMeta{Name: c.Spec.ClusterID},
		Spec:       v1alpha1.PeerSpec{ClusterIndex: index, Subnets: allocated(c), Gateways: []v1alpha1.PeerGateway{}},
	}
	var bad []verdict
	for _, e := range endpoints {
		if e.Spec.ClusterID != c.Spec.ClusterID {
			continue
		}
		if g, v := o.gateway(c, e); v.ok {
			peer.Spec.Gateways = append(peer.Spec.Gateways, g)
		} else {
			bad = append(bad, v)
		}
	}
	slices.SortFunc(peer.Spec.Gateways, func(a, b v1alpha1.PeerGateway) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Address, b.Address))
	})
	// While a gateway changes its address it may have two Endpoints for a moment.
	peer.Spec.Gateways = slices.CompactFunc(peer.Spec.Gateways, func(a, b v1alpha1.PeerGateway) bool { return a.Name == b.Name })
	slices.SortFunc(bad, func(a, b verdict) int {
		return cmp.Or(cmp.Compare(a.reason, b.reason), cmp.Compare(a.message, b.message))
	})
	switch {
	case len(peer.Spec.Gateways) == 0 && len(bad) > 0:
		return peer, bad[0]
	case len(peer.Spec.Gateways) == 0:
		return peer, verdict{reason: v1alpha1.ReasonNoGateway, message: fmt.Sprintf(
			"cluster %s has no ready gateway: label a node of it with %s=true and see that pelago-node is ready there", c.Spec.ClusterID, submarinerv1.LabelGateway)}
	case len(bad) > 0:
		return peer, verdict{ok: true, reason: v1alpha1.ReasonAccepted, message: fmt.Sprintf("%d of %d gateways are used; %s",
			len(peer.Spec.Gateways), len(peer.Spec.Gateways)+len(bad), bad[0].message)}
	}
	return peer, verdict{ok: true, reason: v1alpha1.ReasonAccepted, message: fmt.Sprintf("%d gateways are used", len(peer.Spec.Gateways))}
}

// gateway checks one Endpoint and says how this cluster reaches it.
func (o Options) gateway(c submarinerv1.Cluster, e submarinerv1.Endpoint) (v1alpha1.PeerGateway, verdict) {
	config := e.Spec.BackendConfig
	if e.Spec.Backend != o.CableDriver {
		return v1alpha1.PeerGateway{}, verdict{reason: v1alpha1.ReasonWireMismatch, message: fmt.Sprintf(
			"gateway %s of cluster %s uses cable driver %s, this cluster %s: join both with the same --cable-driver", e.Spec.Hostname, c.Spec.ClusterID, e.Spec.Backend, o.CableDriver)}
	}
	version, err := number(config[submarinerv1.BackendWireVersion])
	if err != nil {
		return v1alpha1.PeerGateway{}, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendWireVersion, err)
	}
	if d := int(version) - o.WireVersion; d < -1 || d > 1 {
		return v1alpha1.PeerGateway{}, verdict{reason: v1alpha1.ReasonWireMismatch, message: fmt.Sprintf(
			"gateway %s of cluster %s speaks version %d of the overlay header over %s, this cluster version %d over %s: neighbouring versions work together",
			e.Spec.Hostname, c.Spec.ClusterID, version, e.Spec.Backend, o.WireVersion, o.CableDriver)}
	}
	port, err := number(config[submarinerv1.BackendUDPPort])
	if err != nil {
		return v1alpha1.PeerGateway{}, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendUDPPort, err)
	}
	node, err := number(config[submarinerv1.BackendNodeIndex])
	if err != nil {
		return v1alpha1.PeerGateway{}, invalid("Endpoint %s: %s: %v", e.Name, submarinerv1.BackendNodeIndex, err)
	}
	if e.Spec.Hostname == "" {
		return v1alpha1.PeerGateway{}, invalid("Endpoint %s names no node in spec.hostname", e.Name)
	}
	address, field := e.Spec.PrivateIP, "private_ip"
	if e.Spec.NATEnabled {
		address, field = e.Spec.PublicIP, "public_ip"
	}
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return v1alpha1.PeerGateway{}, invalid("Endpoint %s: %s %q is no IP address", e.Name, field, address)
	}
	if v := claims(c, e); !v.ok {
		return v1alpha1.PeerGateway{}, v
	}
	return v1alpha1.PeerGateway{Name: e.Spec.Hostname, Address: ip.String(), Port: port, Wire: e.Spec.Backend, NodeIndex: node}, verdict{ok: true}
}

// claims checks that an Endpoint claims only what `pelago join` allocated to its cluster.
func claims(c submarinerv1.Cluster, e submarinerv1.Endpoint) verdict {
	own := parsed(allocated(c))
	for _, text := range e.Spec.Subnets {
		subnet, err := netip.ParsePrefix(text)
		if err != nil {
			return invalid("Endpoint %s: subnet %q is no range in CIDR notation", e.Name, text)
		}
		inside := slices.ContainsFunc(own, func(r netip.Prefix) bool { return r.Bits() <= subnet.Bits() && r.Contains(subnet.Addr()) })
		if !inside {
			return invalid("Endpoint %s claims %s, which is not within the ranges of cluster %s: %s", e.Name, text, c.Spec.ClusterID, strings.Join(allocated(c), ", "))
		}
	}
	return verdict{ok: true}
}

// allocated is what belongs to a cluster and is routed to it: its GlobalCIDRs, else its pod and service ranges.
func allocated(c submarinerv1.Cluster) []string {
	if len(c.Spec.GlobalCIDR) > 0 {
		return c.Spec.GlobalCIDR
	}
	return slices.Concat(c.Spec.ClusterCIDR, c.Spec.ServiceCIDR)
}

// overlap returns v, or the first clash with what is taken.
func overlap(id string, ranges []netip.Prefix, taken []claim, v verdict) verdict {
	for _, r := range ranges {
		for _, t := range taken {
			if i := slices.IndexFunc(t.ranges, r.Overlaps); i >= 0 {
				return verdict{reason: v1alpha1.ReasonOverlappingCIDR, message: fmt.Sprintf(
					"%s of cluster %s overlaps %s of %s: give one of them another range, or use globalnet", r, id, t.ranges[i], t.who)}
			}
		}
	}
	return v
}

// parsed leaves out what is no prefix; claims reports it.
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
