package peering

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pelago-net/pelago/api/pelago/v1alpha1"
	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// claim is ranges that are in use and by whom.
type claim struct {
	who    string
	ranges []netip.Prefix
}

// taken is what the clusters that were judged so far, this one among them, have.
type taken struct {
	claims  []claim
	indexes map[int32]string // cluster index → cluster
	// gateways leads from what a wire tells gateways apart by, an outer address or a key, to whose it is.
	gateways map[string]string
	nodes    map[string]string // address of a node of this cluster → node
}

// taken begins with what this cluster has.
func (o Options) taken(k known) *taken {
	t := &taken{
		claims: []claim{
			{fmt.Sprintf("the pods of this cluster %s", o.ClusterID), o.PodCIDRs},
			{fmt.Sprintf("the services of this cluster %s", o.ClusterID), o.ServiceCIDRs},
			{fmt.Sprintf("the GlobalCIDR of this cluster %s", o.ClusterID), o.GlobalCIDRs},
		},
		indexes: map[int32]string{int32(o.ClusterIndex): o.ClusterID}, gateways: map[string]string{}, nodes: map[string]string{},
	}
	for i := range k.nodes {
		n := &k.nodes[i]
		for _, a := range nodeAddresses(n) {
			who := fmt.Sprintf("node %s of this cluster %s", n.Name, o.ClusterID)
			t.nodes[a.String()] = who
			t.claims = append(t.claims, claim{who, []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}})
		}
	}
	for i := range k.endpoints {
		if e := &k.endpoints[i]; e.Spec.ClusterID == o.ClusterID {
			for _, key := range strings.Split(e.Spec.BackendConfig[submarinerv1.BackendPublicKey], ",") {
				t.gateways[key] = "this cluster " + o.ClusterID
			}
		}
	}
	delete(t.gateways, "")
	return t
}

// nodeAddresses are a node's addresses inside its cluster.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out = append(out, ip)
		}
	}
	return out
}

// add enters a cluster that is accepted.
func (t *taken) add(id string, spec v1alpha1.PeerSpec) {
	t.claims = append(t.claims, claim{"cluster " + id, parsed(spec.Subnets)})
	t.indexes[spec.ClusterIndex] = id
	for _, g := range spec.Gateways {
		for _, key := range distinguishing(g) {
			t.gateways[key] = fmt.Sprintf("gateway %s of cluster %s", g.Name, id)
		}
	}
}

// distinguishing is what the wire knows a gateway by: the vxlan wire its outer address, wireguard its keys. Behind one NAT
// several gateways may have one address.
func distinguishing(g v1alpha1.PeerGateway) []string {
	switch g.Wire {
	case config.CableVXLAN:
		return []string{g.Address}
	case config.CableWireGuard:
		return strings.Split(g.Identity[submarinerv1.BackendPublicKey], ",")
	}
	return nil
}

// elsewhere leaves out a gateway's private address where a node of this cluster has it: both clusters' networks use one range,
// so it cannot be reached there. One of which nothing else is known may still call, over a wire that proves who it is.
func (t *taken) elsewhere(g *v1alpha1.PeerGateway) {
	if _, ours := t.nodes[g.PrivateAddress]; !ours || g.Wire == config.CableVXLAN || g.NATTPort == 0 {
		return
	}
	if g.Address == g.PrivateAddress {
		g.Address = g.PublicAddress
	}
	g.PrivateAddress = ""
}

// distinct refuses a gateway that another's packets would go to. mine has those of its own cluster that were found good,
// and gets this one: of two with one address or key the first has it.
func (t *taken) distinct(id string, g v1alpha1.PeerGateway, mine map[string]string) verdict {
	me := fmt.Sprintf("gateway %s of cluster %s", g.Name, id)
	if who, ok := t.nodes[g.Address]; ok {
		return invalid("%s has the address %s of %s: give it a public address by the annotation %s", me, g.Address, who, submarinerv1.AnnotationPublicIP)
	}
	keys := distinguishing(g)
	for i, key := range keys {
		who := t.gateways[key]
		if who == "" {
			who = mine[key]
		}
		if who == "" && slices.Contains(keys[:i], key) {
			who = me
		}
		if who != "" {
			return invalid("%s has %s, which %s has already: each needs its own", me, key, who)
		}
	}
	for _, key := range keys {
		mine[key] = me
	}
	return verdict{ok: true}
}

// overlap is the first clash of a cluster's ranges with what is taken.
func (t *taken) overlap(id string, ranges []netip.Prefix) verdict {
	for _, r := range ranges {
		for _, c := range t.claims {
			if i := slices.IndexFunc(c.ranges, r.Overlaps); i >= 0 {
				return verdict{reason: v1alpha1.ReasonOverlappingCIDR, message: fmt.Sprintf(
					"%s of cluster %s overlaps %s of %s: give one of them another range, or use globalnet", r, id, c.ranges[i], c.who)}
			}
		}
	}
	return verdict{ok: true}
}

// allocated is what belongs to a cluster: its GlobalCIDRs, else its pod and service ranges.
func allocated(c submarinerv1.Cluster) []string {
	if len(c.Spec.GlobalCIDR) > 0 {
		return slices.Clone(c.Spec.GlobalCIDR)
	}
	return slices.Concat(c.Spec.ClusterCIDR, c.Spec.ServiceCIDR)
}

// routed is what of it is routed there, IPv4, and without globalnet the cluster's share of the fabric: the sources of its
// nodes.
func (o Options) routed(c submarinerv1.Cluster, index int32) []string {
	out := slices.DeleteFunc(allocated(c), func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err != nil || !p.Addr().Is4()
	})
	if fabric, ok := o.fabricShare(c, index); ok {
		out = append(out, fabric)
	}
	return out
}

// fabricShare is the part of the fabric that is routed to a cluster: without globalnet its /18.
func (o Options) fabricShare(c submarinerv1.Cluster, index int32) (string, bool) {
	if len(c.Spec.GlobalCIDR) > 0 {
		return "", false
	}
	p, err := config.FabricPrefix(o.Fabric, uint16(index))
	return p.String(), err == nil
}
