package broker

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/pelago-net/pelago/control/config"
)

// Request is what a cluster asks for when it joins.
type Request struct {
	ClusterID string
	// ClusterUID is the UID of the cluster's namespace kube-system.
	ClusterUID string
	// GlobalCIDR is the range asked for; not valid = any.
	GlobalCIDR netip.Prefix
	// Size is the number of addresses asked for if GlobalCIDR is not given; 0 = the clusterset's default.
	Size uint64
	// NoGlobalnet: the cluster is not to have a GlobalCIDR.
	NoGlobalnet bool
	// Local are the cluster's own ranges (pods, services), with which its GlobalCIDR must not overlap.
	Local []netip.Prefix
	// Nodes are the addresses of the cluster's nodes: what is routed to other clusters must not take them away.
	Nodes []netip.Addr
	// Fabric is the clusterset's, with which nothing of the cluster may overlap.
	Fabric netip.Prefix
	// Hub are the addresses of the hub's API server, which no routed range may contain.
	Hub []netip.Addr
}

// Allocate returns the cluster's share and the book with it entered. A cluster that is in the book already gets what it
// has, and the book comes back unchanged. The index is the lowest free one, the range the first that fits.
func (b Book) Allocate(r Request) (Entry, Book, error) {
	if err := OutsideFabric(r.Fabric, slices.Concat(r.Local, single(r.Nodes)), "this cluster"); err != nil {
		return Entry{}, Book{}, err
	}
	if !b.Globalnet {
		if err := checkRouted(r.Local, r.Hub); err != nil {
			return Entry{}, Book{}, err
		}
	}
	if b.Globalnet && r.NoGlobalnet {
		return Entry{}, Book{}, fmt.Errorf("this clusterset has globalnet (%s), and every cluster takes part in it: addresses of one without may be those of others. "+
			"Join without --globalnet=false, or make a clusterset by `pelago deploy-broker` without --globalnet", b.Range)
	}
	have, err := b.find(r)
	if err != nil {
		return Entry{}, Book{}, err
	}
	if have != nil {
		return *have, b, nil
	}
	index, err := b.freeIndex()
	if err != nil {
		return Entry{}, Book{}, err
	}
	e := Entry{ClusterID: r.ClusterID, ClusterUID: r.ClusterUID, ClusterIndex: index, GlobalCIDR: []netip.Prefix{}}
	if b.Globalnet {
		cidr, err := b.cidr(r)
		if err != nil {
			return Entry{}, Book{}, err
		}
		e.GlobalCIDR = append(e.GlobalCIDR, cidr)
	} else if r.GlobalCIDR.IsValid() || r.Size != 0 {
		return Entry{}, Book{}, fmt.Errorf("this clusterset has no globalnet: join without --globalnet-cidr and --globalnet-cluster-size, or deploy the broker with --globalnet")
	}
	b.Clusters = append(slices.Clone(b.Clusters), e)
	return e, b, nil
}

// checkRouted refuses ranges that the other clusters would not route to this one.
func checkRouted(ranges []netip.Prefix, hub []netip.Addr) error {
	const remedy = "give this cluster other ranges, or deploy the broker with --globalnet"
	for _, r := range ranges {
		if err := config.CheckRange(r); err != nil {
			return fmt.Errorf("%w: %s", err, remedy)
		}
		if i := slices.IndexFunc(hub, r.Contains); i >= 0 {
			return fmt.Errorf("range %s contains the hub's address %s: %s", r, hub[i], remedy)
		}
	}
	return nil
}

// OutsideFabric refuses ranges that overlap the clusterset's fabric: packets for the ones would go to the other.
func OutsideFabric(fabric netip.Prefix, ranges []netip.Prefix, whose string) error {
	for _, r := range ranges {
		if r.Overlaps(fabric) {
			return fmt.Errorf("range %s of %s overlaps the clusterset's fabric range %s: deploy the broker with another --fabric-cidr, a /8 that nobody uses, "+
				"before clusters join", r, whose, fabric)
		}
	}
	return nil
}

// single makes a range of each address.
func single(addresses []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range addresses {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// Release returns the book without the cluster.
func (b Book) Release(clusterID string) Book {
	b.Clusters = slices.DeleteFunc(slices.Clone(b.Clusters), func(e Entry) bool { return e.ClusterID == clusterID })
	return b
}

// find returns the cluster's entry, nil if it has none, and an error if the request contradicts the book.
func (b Book) find(r Request) (*Entry, error) {
	for _, e := range b.Clusters {
		switch {
		case e.ClusterID == r.ClusterID && e.ClusterUID != r.ClusterUID:
			return nil, fmt.Errorf("cluster id %q belongs to another cluster (its namespace kube-system has UID %s, this one's has %s): "+
				"choose another id, or remove the other with `pelago unjoin --clusterid %s`", r.ClusterID, e.ClusterUID, r.ClusterUID, r.ClusterID)
		case e.ClusterID != r.ClusterID && e.ClusterUID == r.ClusterUID:
			return nil, fmt.Errorf("this cluster is registered as %q: use that id, or remove it first with `pelago unjoin --clusterid %s`", e.ClusterID, e.ClusterID)
		case e.ClusterID != r.ClusterID:
			continue
		}
		if r.GlobalCIDR.IsValid() && !slices.Contains(e.GlobalCIDR, r.GlobalCIDR) {
			return nil, fmt.Errorf("cluster %q already has GlobalCIDR %v and keeps it: leave %s out, or remove the cluster first with `pelago unjoin --clusterid %s`",
				r.ClusterID, e.GlobalCIDR, r.GlobalCIDR, r.ClusterID)
		}
		for _, g := range e.GlobalCIDR {
			if err := disjoint(g, slices.Concat(r.Local, single(r.Nodes))); err != nil {
				return nil, err
			}
		}
		return &e, nil
	}
	return nil, nil
}

func (b Book) freeIndex() (int, error) {
	used := make(map[int]bool, len(b.Clusters))
	for _, e := range b.Clusters {
		used[e.ClusterIndex] = true
	}
	for index := 1; index <= MaxClusterIndex; index++ {
		if !used[index] {
			return index, nil
		}
	}
	return 0, fmt.Errorf("all %d cluster indexes are taken: remove clusters that are gone with `pelago unjoin`", MaxClusterIndex)
}

// cidr checks the range that was asked for, or finds one.
func (b Book) cidr(r Request) (netip.Prefix, error) {
	if r.GlobalCIDR.IsValid() {
		return r.GlobalCIDR, b.check(r)
	}
	size := b.ClusterSize
	if r.Size != 0 {
		var err error
		if size, err = roundSize(r.Size); err != nil {
			return netip.Prefix{}, err
		}
	}
	taken := slices.Concat(r.Local, single(r.Nodes), single(r.Hub))
	for _, e := range b.Clusters {
		taken = append(taken, e.GlobalCIDR...)
	}
	p, ok := firstFit(b.Range, 32-bits.TrailingZeros64(size), taken)
	if !ok {
		return netip.Prefix{}, fmt.Errorf("the globalnet range %s has no room for %d addresses: ask for fewer with --globalnet-cluster-size, "+
			"or remove clusters that are gone with `pelago unjoin`", b.Range, size)
	}
	return p, nil
}

// check refuses a range that was asked for if it cannot be given.
func (b Book) check(r Request) error {
	g := r.GlobalCIDR
	switch {
	case !g.Addr().Is4():
		return fmt.Errorf("GlobalCIDR %s is no IPv4 range", g)
	case g != g.Masked():
		return fmt.Errorf("GlobalCIDR %s has host bits: write %s", g, g.Masked())
	case g.Bits() < b.Range.Bits() || !b.Range.Contains(g.Addr()):
		return fmt.Errorf("GlobalCIDR %s does not lie inside the clusterset's range %s: choose one that does", g, b.Range)
	case addresses(g) < MinClusterSize:
		return fmt.Errorf("GlobalCIDR %s has %d addresses: at least %d are needed", g, addresses(g), MinClusterSize)
	}
	for _, e := range b.Clusters {
		for _, other := range e.GlobalCIDR {
			if g.Overlaps(other) {
				return fmt.Errorf("GlobalCIDR %s overlaps %s of cluster %q: choose another, or none to be given a free one", g, other, e.ClusterID)
			}
		}
	}
	if i := slices.IndexFunc(r.Hub, g.Contains); i >= 0 {
		return fmt.Errorf("GlobalCIDR %s contains the hub's address %s: choose another with --globalnet-cidr", g, r.Hub[i])
	}
	return disjoint(g, slices.Concat(r.Local, single(r.Nodes)))
}

// disjoint refuses a GlobalCIDR that overlaps the cluster's own ranges: its pods could not be told from remote ones.
func disjoint(global netip.Prefix, local []netip.Prefix) error {
	for _, l := range local {
		if global.Overlaps(l) {
			return fmt.Errorf("GlobalCIDR %s overlaps this cluster's own range %s: choose another with --globalnet-cidr", global, l)
		}
	}
	return nil
}

// firstFit returns the lowest range of the given prefix length inside within that overlaps none of taken.
func firstFit(within netip.Prefix, length int, taken []netip.Prefix) (netip.Prefix, bool) {
	if length < within.Bits() {
		return netip.Prefix{}, false
	}
	step := uint64(1) << (32 - length)
	first := uint64(toUint(within.Addr()))
	end := first + addresses(within)
	for at := first; at < end; {
		candidate := netip.PrefixFrom(toAddr(uint32(at)), length)
		i := slices.IndexFunc(taken, candidate.Overlaps)
		if i < 0 {
			return candidate, true
		}
		at += step
		// A larger range is skipped whole; it ends on a multiple of step.
		if t := taken[i].Masked(); t.Bits() < length {
			at = uint64(toUint(t.Addr())) + addresses(t)
		}
	}
	return netip.Prefix{}, false
}

func toUint(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

func toAddr(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}
