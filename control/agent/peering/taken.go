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

// claim is a user of ranges.
type claim struct {
	who    string
	ranges []netip.Prefix
}

// taken is what this cluster and the remote clusters checked so far have.
type taken struct {
	claims  []claim
	indexes map[int32]string // cluster index → cluster
	// gateways maps each identity by which a wire knows a gateway (an outer address or a key) to
	// that gateway.
	gateways map[string]string
	// held maps such an identity to the id of the cluster whose accepted Peer has it and that still
	// publishes it.
	held  map[string]string
	nodes map[string]string // address of a node of this cluster → node
	// allowed are the ranges in which clusters may have theirs; none: any. routed are those that nodes
	// route already, by cluster.
	allowed []netip.Prefix
	routed  map[string][]netip.Prefix
}

// taken returns what this cluster has, and which identities accepted Peers hold.
func (o Options) taken(k known) *taken {
	t := &taken{
		claims: []claim{
			{fmt.Sprintf("the pods of this cluster %s", o.ClusterID), o.PodCIDRs},
			{fmt.Sprintf("the services of this cluster %s", o.ClusterID), o.ServiceCIDRs},
			{fmt.Sprintf("the GlobalCIDR of this cluster %s", o.ClusterID), o.GlobalCIDRs},
			{fmt.Sprintf("the hosts beside this cluster %s", o.ClusterID), o.ExternalCIDRs},
		},
		indexes: map[int32]string{int32(o.ClusterIndex): o.ClusterID}, gateways: map[string]string{}, nodes: map[string]string{},
		held: map[string]string{}, routed: map[string][]netip.Prefix{},
	}
	for i := range k.clusters {
		if c := &k.clusters[i]; c.Spec.ClusterID == o.ClusterID {
			t.allowed = parsed(strings.Split(c.Annotations[v1alpha1.AnnotationClusterRanges], ","))
		}
	}
	if len(o.GlobalCIDRs) > 0 {
		t.allowed = nil
		if o.GlobalRange.IsValid() {
			t.allowed = []netip.Prefix{o.GlobalRange}
		}
	}
	for _, p := range k.peers {
		if routable(p.Status) {
			t.routed[p.Name] = parsed(p.Spec.Subnets)
		}
	}
	for _, a := range k.hub {
		t.claims = append(t.claims, claim{"the hub's API server", []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}})
	}
	for _, n := range k.needed {
		t.claims = append(t.claims, claim{fmt.Sprintf("%s of this cluster %s", n.who, o.ClusterID), []netip.Prefix{netip.PrefixFrom(n.address, n.address.BitLen())}})
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
			for _, key := range publicKeys(e.Spec.BackendConfig) {
				t.gateways[key] = "this cluster " + o.ClusterID
			}
		}
	}
	o.hold(t, k)
	return t
}

// hold fills held: an identity stays with the cluster of the Peer that has it, for as long as one
// of its Endpoints publishes it. No order among the hub's objects shows which cluster published a
// key first: a member chooses when to rewrite its Endpoint, and creationTimestamp does not change
// with its content. The Peer in this cluster's API server is written by this cluster alone and
// survives restarts. Members that have no Peer yet rely on the hub, which refuses a key that
// another cluster publishes (policy pelago-endpoint-keys).
func (o Options) hold(t *taken, k known) {
	publishes := map[string]map[string]bool{}
	for i := range k.endpoints {
		s := &k.endpoints[i].Spec
		if publishes[s.ClusterID] == nil {
			publishes[s.ClusterID] = map[string]bool{}
		}
		for _, key := range append(publicKeys(s.BackendConfig), canonical(s.PrivateIP), canonical(s.PublicIP)) {
			publishes[s.ClusterID][key] = true
		}
	}
	for i := range k.peers {
		if p := &k.peers[i]; accepted(p.Status) {
			for _, g := range p.Spec.Gateways {
				for _, key := range distinguishing(g) {
					if publishes[p.Name][key] {
						t.held[key] = p.Name
					}
				}
			}
		}
	}
}

// canonical is an address as gateway writes it into a Peer.
func canonical(address string) string {
	if ip, err := netip.ParseAddr(address); err == nil {
		return ip.Unmap().String()
	}
	return address
}

// publicKeys are the WireGuard keys of a gateway, that of the standby tunnel last: WireGuard
// identifies a peer by any of them.
func publicKeys(settings map[string]string) []string {
	return append(keysOf(settings[submarinerv1.BackendPublicKey]), keysOf(settings[submarinerv1.BackendStandbyKey])...)
}

// nodeAddresses are a node's own addresses.
func nodeAddresses(n *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && (a.Type == corev1.NodeInternalIP || a.Type == corev1.NodeExternalIP) {
			out = append(out, ip)
		}
	}
	return out
}

// add records an accepted cluster. The addresses of its gateways are not claims: a member can
// change them at any time, and could get another cluster refused by using an address from that
// cluster's ranges. Ranges that contain a gateway's address are refused at the hub, before they are
// registered.
func (t *taken) add(id string, spec v1alpha1.PeerSpec) {
	t.claims = append(t.claims, claim{"cluster " + id, parsed(spec.Subnets)})
	t.indexes[spec.ClusterIndex] = id
	for _, g := range spec.Gateways {
		for _, key := range distinguishing(g) {
			t.gateways[key] = fmt.Sprintf("gateway %s of cluster %s", g.Name, id)
		}
	}
}

// distinguishing is what the wire identifies a gateway by: vxlan its outer address, wireguard its
// keys. Several gateways behind one NAT may share an address.
func distinguishing(g v1alpha1.PeerGateway) []string {
	switch g.Wire {
	case config.CableVXLAN:
		return []string{g.Address}
	case config.CableWireGuard:
		return publicKeys(g.Identity)
	}
	return nil
}

// elsewhere removes a gateway's private address if a node of this cluster has the same: both
// networks use one range, so the gateway cannot be reached there. Without a public address it may
// still connect, over a wire that authenticates it.
func (t *taken) elsewhere(g *v1alpha1.PeerGateway) {
	if _, ours := t.nodes[g.PrivateAddress]; !ours || g.Wire == config.CableVXLAN || g.NATTPort == 0 {
		return
	}
	if g.Address == g.PrivateAddress {
		g.Address = g.PublicAddress
	}
	g.PrivateAddress = ""
}

// distinct refuses a gateway whose address, key or fabric address belongs to another one. mine
// holds the keys and addresses of the same cluster's gateways that have passed so far; those of
// this gateway are added if it passes.
func (t *taken) distinct(id string, g v1alpha1.PeerGateway, mine map[string]string) acceptance {
	me := fmt.Sprintf("gateway %s of cluster %s", g.Name, id)
	if who, ok := t.nodes[g.Address]; ok {
		return invalid("%s has the address %s of %s: give it a public address by the annotation %s", me, g.Address, who, submarinerv1.AnnotationPublicIP)
	}
	if who := mine[g.FabricAddress]; who != "" {
		return invalid("%s has the fabric address %s (node index), which %s has already: each needs its own", me, g.FabricAddress, who)
	}
	keys := distinguishing(g)
	for i, key := range keys {
		who := t.gateways[key]
		if holder := t.held[key]; who == "" && holder != "" && holder != id {
			who = "cluster " + holder
		}
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
	for _, key := range append(keys, g.FabricAddress) {
		mine[key] = me
	}
	return acceptance{ok: true}
}

// permitted reports whether a cluster may have a range. The hub refuses others as well, unless its
// policies are gone. What is routed stays: it was permitted once. IPv6 is not routed.
func (t *taken) permitted(id string, r netip.Prefix) bool {
	return len(t.allowed) == 0 || !r.Addr().Is4() || inside(r, t.allowed) || inside(r, t.routed[id])
}

// inside reports whether a range lies in one of others.
func inside(r netip.Prefix, of []netip.Prefix) bool {
	return slices.ContainsFunc(of, func(p netip.Prefix) bool { return p.Bits() <= r.Bits() && p.Contains(r.Addr()) })
}

// overlap reports the first range of a cluster that overlaps what is taken.
func (t *taken) overlap(id string, ranges []netip.Prefix) acceptance {
	for _, r := range ranges {
		for _, c := range t.claims {
			if i := slices.IndexFunc(c.ranges, r.Overlaps); i >= 0 {
				return acceptance{reason: v1alpha1.ReasonOverlappingCIDR, message: fmt.Sprintf(
					"%s of cluster %s overlaps %s of %s: give one of them another range, or use globalnet", r, id, c.ranges[i], c.who)}
			}
		}
	}
	return acceptance{ok: true}
}

// allocated is a cluster's GlobalCIDRs, else its pod and service ranges.
func allocated(c submarinerv1.Cluster) []string {
	if len(c.Spec.GlobalCIDR) > 0 {
		return slices.Clone(c.Spec.GlobalCIDR)
	}
	return slices.Concat(c.Spec.ClusterCIDR, c.Spec.ServiceCIDR)
}

// routed is the IPv4 part of allocated, and without globalnet the cluster's share of the fabric,
// from which its nodes send.
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

// fabricShare is the /18 of the fabric that is routed to a cluster; with globalnet none exists.
func (o Options) fabricShare(c submarinerv1.Cluster, index int32) (string, bool) {
	if len(c.Spec.GlobalCIDR) > 0 {
		return "", false
	}
	p, err := config.FabricPrefix(o.Fabric, uint16(index))
	return p.String(), err == nil
}
