package broker

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/deploy/spec"
)

// Request is what a cluster requests when it joins.
type Request struct {
	ClusterID string
	// ClusterUID is the UID of the cluster's namespace kube-system.
	ClusterUID string
	// WorkloadsOnly: the cluster takes no part in the network; the fields below are not set.
	WorkloadsOnly bool
	// GlobalCIDR is the requested range; not valid = any.
	GlobalCIDR netip.Prefix
	// Size is the requested number of addresses if GlobalCIDR is not given; 0 = the clusterset's
	// default.
	Size uint64
	// ClusterSetIPCIDR is the requested range of ClusterSetIPs; not valid = any.
	ClusterSetIPCIDR netip.Prefix
	// NoGlobalnet: the cluster is not to have a GlobalCIDR.
	NoGlobalnet bool
	// Pods and Services are the cluster's own ranges, with which its GlobalCIDR must not overlap.
	Pods, Services []netip.Prefix
	// External are ranges of hosts outside the cluster, with which nothing may overlap either.
	External []netip.Prefix
	// Nodes are the addresses of the cluster's nodes: what is routed to other clusters must not
	// take them away.
	Nodes []netip.Addr
	// Needed are the addresses of the cluster's API server and name servers, for which the same
	// holds.
	Needed []netip.Addr
	// Fabric is the clusterset's, with which nothing of the cluster may overlap.
	Fabric netip.Prefix
	// Hub are the addresses of the hub's API server, which no routed range may contain.
	Hub []netip.Addr
	// Allowed are where routed ranges of a new cluster may lie; empty: anywhere.
	Allowed []netip.Prefix
	// CableDriver is the one that the cluster is to have; empty: that of most clusters of the
	// clusterset, and of the first one FirstCableDriver or, if that is empty as well,
	// spec.DefaultCableDriver.
	CableDriver, FirstCableDriver string
}

// local are all ranges of the cluster itself. Each has the name of its field.
func (r Request) local() (out []namedRange) {
	for _, of := range []struct {
		field  string
		ranges []netip.Prefix
	}{{"clusterCIDR", r.Pods}, {"serviceCIDR", r.Services}, {"externalCIDR", r.External}} {
		for _, p := range of.ranges {
			out = append(out, namedRange{of.field, p})
		}
	}
	return out
}

// own are those, and the addresses of the nodes and the needed ones, which are no field.
func (r Request) own() []namedRange {
	return append(r.local(), unnamed(single(append(slices.Clone(r.Nodes), r.Needed...)))...)
}

// namedRange is a range with the name of the field that it is from.
type namedRange struct {
	field string
	netip.Prefix
}

// unnamed are ranges that are from no field.
func unnamed(ranges []netip.Prefix) (out []namedRange) {
	for _, p := range ranges {
		out = append(out, namedRange{"", p})
	}
	return out
}

// refuse makes an error about the field of the range.
func (r namedRange) refuse(format string, args ...any) error {
	if r.field == "" {
		return fmt.Errorf(format, args...)
	}
	return spec.Refuse(r.field, format, args...)
}

// Allocate returns the cluster's share and the book with it entered. A cluster that is in the book
// already gets what it has, and the book comes back unchanged. The index is the lowest free one,
// the range the first that fits.
func (b Book) Allocate(r Request) (Entry, Book, error) {
	if r.WorkloadsOnly {
		return b.allocateIndex(r)
	}
	if err := OutsideFabric(r.Fabric, r.own(), "this cluster"); err != nil {
		return Entry{}, Book{}, err
	}
	if err := OutsideClusterSetIPs(b.ClusterSetIPs, r.own(), "this cluster"); err != nil {
		return Entry{}, Book{}, err
	}
	if i := slices.IndexFunc(r.Hub, b.ClusterSetIPs.Contains); i >= 0 {
		return Entry{}, Book{}, fmt.Errorf("the clusterset's range %s of ClusterSetIPs contains the hub's address %s: "+
			"deploy the broker with another --clusterset-ip-cidr-range, before clusters join", b.ClusterSetIPs, r.Hub[i])
	}
	if !b.Globalnet {
		if err := errors.Join(checkRouted(r.local(), r.Hub), checkOwnNodes(r.local(), r.Nodes)); err != nil {
			return Entry{}, Book{}, err
		}
	}
	if i := slices.IndexFunc(r.External, b.Range.Overlaps); b.Globalnet && i >= 0 {
		return Entry{}, Book{}, spec.Refuse("externalCIDR", "spec.externalCIDR %s overlaps the globalnet range %s, which is routed to clusters: give ranges of hosts outside of it", r.External[i], b.Range)
	}
	if b.Globalnet && r.NoGlobalnet {
		return Entry{}, Book{}, spec.Refuse("globalnet", "this clusterset has globalnet (%s), and every cluster takes part in it: addresses of one without may be those of others. "+
			"Join without spec.globalnet=false, or make a clusterset by `pelago deploy-broker` without --globalnet", b.Range)
	}
	have, err := b.find(r)
	if err != nil {
		return Entry{}, Book{}, err
	}
	if have != nil {
		return b.again(*have, r)
	}
	if !b.Globalnet {
		if err := checkAllowed(r.local(), r.Allowed); err != nil {
			return Entry{}, Book{}, err
		}
	}
	index, err := b.freeIndex()
	if err != nil {
		return Entry{}, Book{}, err
	}
	e := Entry{ClusterID: r.ClusterID, ClusterUID: r.ClusterUID, ClusterIndex: index, GlobalCIDR: []netip.Prefix{}, CableDriver: b.cableDriver(r)}
	if b.Globalnet {
		cidr, err := b.cidr(r)
		if err != nil {
			return Entry{}, Book{}, err
		}
		e.GlobalCIDR = append(e.GlobalCIDR, cidr)
	} else if r.GlobalCIDR.IsValid() || r.Size != 0 {
		field := "globalCIDR"
		if !r.GlobalCIDR.IsValid() {
			field = "globalnetClusterSize"
		}
		return Entry{}, Book{}, spec.Refuse(field, "this clusterset has no globalnet: join without spec.globalCIDR and spec.globalnetClusterSize, or deploy the broker with --globalnet")
	}
	if b.ClusterSetIPs.IsValid() {
		cidr, err := b.clusterSetIPCIDR(r)
		if err != nil {
			return Entry{}, Book{}, err
		}
		e.ClusterSetIPCIDR = []netip.Prefix{cidr}
	} else if r.ClusterSetIPCIDR.IsValid() {
		return Entry{}, Book{}, spec.Refuse("clustersetIPCIDR", "this clusterset has no range of ClusterSetIPs: join without spec.clustersetIPCIDR, "+
			"or run `pelago deploy-broker` at the hub again, which adds one")
	}
	b.Clusters = append(slices.Clone(b.Clusters), e)
	return e, b, nil
}

// again is the share of a cluster that has one already. Its cable driver changes if it requests
// another.
func (b Book) again(have Entry, r Request) (Entry, Book, error) {
	if len(have.GlobalCIDR) > 0 && r.Size != 0 && !r.GlobalCIDR.IsValid() {
		size, err := roundSize(r.Size)
		if err != nil {
			return Entry{}, Book{}, spec.Within("globalnetClusterSize", err)
		}
		if has := uint64(1) << (32 - have.GlobalCIDR[0].Bits()); size != has {
			return Entry{}, Book{}, spec.Refuse("globalnetClusterSize", "cluster %q is registered with the GlobalCIDR %s of %d addresses, which does not change: leave "+
				"spec.globalnetClusterSize out, or remove the cluster first with `pelago unjoin`", have.ClusterID, have.GlobalCIDR[0], has)
		}
	}
	want := have
	if want.CableDriver = cmp.Or(r.CableDriver, have.CableDriver); want.CableDriver == "" {
		want.CableDriver = b.cableDriver(r)
	}
	if want.CableDriver == have.CableDriver {
		return have, b, nil
	}
	b.Clusters = slices.Clone(b.Clusters)
	for i := range b.Clusters {
		if b.Clusters[i].ClusterID == have.ClusterID {
			b.Clusters[i] = want
		}
	}
	return want, b, nil
}

// cableDriver is the one that a cluster gets: clusters that gave no driver all get the
// same.
func (b Book) cableDriver(r Request) string {
	count, most := map[string]int{}, ""
	first := r.FirstCableDriver
	for _, e := range b.Clusters {
		switch {
		case e.ClusterID == r.ClusterID || e.WorkloadsOnly:
		case e.CableDriver == "":
			// of a release that did not record it, which had the default unless it was given
			// another
			first = ""
		default:
			count[e.CableDriver]++
		}
	}
	for _, e := range b.Clusters { // of two with as many clusters the one that joined first
		if count[e.CableDriver] > count[most] {
			most = e.CableDriver
		}
	}
	return cmp.Or(r.CableDriver, most, first, spec.DefaultCableDriver)
}

// allocateIndex is Allocate for a cluster without ranges.
func (b Book) allocateIndex(r Request) (Entry, Book, error) {
	have, err := b.find(r)
	if err != nil || have != nil {
		return ptr.Deref(have, Entry{}), b, err
	}
	index, err := b.freeIndex()
	if err != nil {
		return Entry{}, Book{}, err
	}
	e := Entry{ClusterID: r.ClusterID, ClusterUID: r.ClusterUID, ClusterIndex: index, GlobalCIDR: []netip.Prefix{}, WorkloadsOnly: true}
	b.Clusters = append(slices.Clone(b.Clusters), e)
	return e, b, nil
}

// clusterSetIPCIDR checks the requested range of ClusterSetIPs, or allocates one.
func (b Book) clusterSetIPCIDR(r Request) (netip.Prefix, error) {
	if r.ClusterSetIPCIDR.IsValid() {
		return r.ClusterSetIPCIDR, spec.Within("clustersetIPCIDR",
			b.part("ClusterSetIP range", r.ClusterSetIPCIDR, b.ClusterSetIPs, func(e Entry) []netip.Prefix { return e.ClusterSetIPCIDR }))
	}
	var taken []netip.Prefix
	for _, e := range b.Clusters {
		taken = append(taken, e.ClusterSetIPCIDR...)
	}
	p, ok := firstFit(b.ClusterSetIPs, clusterSetIPBits, taken)
	if !ok {
		return netip.Prefix{}, spec.Refuse("clustersetIPCIDR", "the range %s of ClusterSetIPs has no room for a /%d: give a smaller one with spec.clustersetIPCIDR, "+
			"or remove clusters that are gone with `pelago unjoin`", b.ClusterSetIPs, clusterSetIPBits)
	}
	return p, nil
}

// checkRouted refuses ranges that the other clusters would not route to this one.
func checkRouted(ranges []namedRange, hub []netip.Addr) error {
	const remedy = "give this cluster other ranges, or deploy the broker with --globalnet"
	for _, r := range ranges {
		if err := config.CheckRange(r.Prefix); err != nil {
			return r.refuse("%v: %s", err, remedy)
		}
		if i := slices.IndexFunc(hub, r.Contains); i >= 0 {
			return r.refuse("range %s contains the hub's address %s: %s", r, hub[i], remedy)
		}
	}
	return nil
}

// checkAllowed refuses IPv4 ranges outside of those that the hub allows, as the policy
// pelago-clusters-private does.
func checkAllowed(ranges []namedRange, allowed []netip.Prefix) error {
	for _, r := range ranges {
		inside := func(a netip.Prefix) bool { return a.Bits() <= r.Bits() && a.Contains(r.Addr()) }
		if len(allowed) > 0 && r.Addr().Is4() && !slices.ContainsFunc(allowed, inside) {
			return r.refuse("range %s lies outside of those in which the hub lets clusters have pods, services and hosts, %s: an administrator of the hub "+
				"adds it with `pelago deploy-broker --cluster-ranges %s`, or use globalnet", r, strings.Join(texts(allowed), ", "), r)
		}
	}
	return nil
}

// checkOwnNodes refuses ranges that contain a node of the cluster itself: other clusters would send
// all packets for that node, even those of the wire, to the overlay. With globalnet, pods may be in
// the network of the nodes.
func checkOwnNodes(ranges []namedRange, nodes []netip.Addr) error {
	for _, r := range ranges {
		i := slices.IndexFunc(nodes, r.Contains)
		switch {
		case i < 0:
		case r.field == "externalCIDR":
			return r.refuse("spec.externalCIDR %s contains the address %s of a node, and without globalnet the range is routed to this cluster: "+
				"give ranges of hosts without the nodes", r, nodes[i])
		default:
			return r.refuse("spec.%s %s contains the address %s of a node, and without globalnet the range is routed to this cluster, with the packets of the cables: "+
				"give ranges without the nodes, or, if pods are in the network of the nodes, use a clusterset with globalnet (`pelago deploy-broker --globalnet`, "+
				"before clusters join)", r.field, r, nodes[i])
		}
	}
	return nil
}

// OutsideFabric refuses ranges that overlap the clusterset's fabric: packets for one of them would
// be sent to the other.
func OutsideFabric(fabric netip.Prefix, ranges []namedRange, whose string) error {
	for _, r := range ranges {
		if r.Overlaps(fabric) {
			return r.refuse("range %s of %s overlaps the clusterset's fabric range %s: deploy the broker with another --fabric-cidr, an unused /8, "+
				"before clusters join", r, whose, fabric)
		}
	}
	return nil
}

// OutsideClusterSetIPs refuses ranges that overlap the clusterset's range of ClusterSetIPs, if it
// has one: packets for the ones would go to a service.
func OutsideClusterSetIPs(vips netip.Prefix, ranges []namedRange, whose string) error {
	i := slices.IndexFunc(ranges, func(r namedRange) bool { return vips.Overlaps(r.Prefix) })
	if vips.IsValid() && i >= 0 {
		return ranges[i].refuse("range %s of %s overlaps the clusterset's range %s of ClusterSetIPs: deploy the broker with another "+
			"--clusterset-ip-cidr-range, before clusters join", ranges[i], whose, vips)
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

// find returns the cluster's entry, nil if it has none, and an error if the request contradicts the
// book.
func (b Book) find(r Request) (*Entry, error) {
	for _, e := range b.Clusters {
		switch {
		case e.ClusterID == r.ClusterID && e.ClusterUID != r.ClusterUID:
			return nil, spec.Refuse("clusterID", "cluster id %q belongs to another cluster (its namespace kube-system has UID %s, this one's has %s): "+
				"choose another id, or remove the other with `pelago unjoin --clusterid %s`", r.ClusterID, e.ClusterUID, r.ClusterUID, r.ClusterID)
		case e.ClusterID != r.ClusterID && e.ClusterUID == r.ClusterUID:
			return nil, spec.Refuse("clusterID", "this cluster is registered as %q: use that id, or remove it first with `pelago unjoin --clusterid %s`", e.ClusterID, e.ClusterID)
		case e.ClusterID != r.ClusterID:
			continue
		}
		if e.WorkloadsOnly != r.WorkloadsOnly {
			joined := map[bool]string{true: "with", false: "without"}[e.WorkloadsOnly]
			return nil, spec.Refuse("workloadsOnly", "cluster %q is registered %s spec.workloadsOnly: join it so, or remove it first with `pelago unjoin --clusterid %s`",
				r.ClusterID, joined, r.ClusterID)
		}
		if r.GlobalCIDR.IsValid() && !slices.Contains(e.GlobalCIDR, r.GlobalCIDR) {
			return nil, spec.Refuse("globalCIDR", "cluster %q already has GlobalCIDR %v and keeps it: leave %s out, or remove the cluster first with `pelago unjoin --clusterid %s`",
				r.ClusterID, e.GlobalCIDR, r.GlobalCIDR, r.ClusterID)
		}
		if r.ClusterSetIPCIDR.IsValid() && !slices.Contains(e.ClusterSetIPCIDR, r.ClusterSetIPCIDR) {
			return nil, spec.Refuse("clustersetIPCIDR", "cluster %q already has the ClusterSetIP range %v and keeps it: leave %s out, or remove the cluster first with `pelago unjoin --clusterid %s`",
				r.ClusterID, e.ClusterSetIPCIDR, r.ClusterSetIPCIDR, r.ClusterID)
		}
		for _, g := range e.GlobalCIDR {
			if err := disjoint(g, r.own()); err != nil {
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

// cidr checks the requested range, or allocates one.
func (b Book) cidr(r Request) (netip.Prefix, error) {
	if r.GlobalCIDR.IsValid() {
		return r.GlobalCIDR, spec.Within("globalCIDR", b.check(r))
	}
	size := b.ClusterSize
	if r.Size != 0 {
		var err error
		if size, err = roundSize(r.Size); err != nil {
			return netip.Prefix{}, spec.Within("globalnetClusterSize", err)
		}
	}
	taken := single(r.Hub)
	for _, own := range r.own() {
		taken = append(taken, own.Prefix)
	}
	for _, e := range b.Clusters {
		taken = append(taken, e.GlobalCIDR...)
	}
	p, ok := firstFit(b.Range, 32-bits.TrailingZeros64(size), taken)
	if !ok {
		return netip.Prefix{}, spec.Refuse("globalnetClusterSize", "the globalnet range %s has no room for %d addresses: ask for fewer with spec.globalnetClusterSize, "+
			"or remove clusters that are gone with `pelago unjoin`", b.Range, size)
	}
	return p, nil
}

// check validates a requested GlobalCIDR.
func (b Book) check(r Request) error {
	g := r.GlobalCIDR
	if err := b.part("GlobalCIDR", g, b.Range, func(e Entry) []netip.Prefix { return e.GlobalCIDR }); err != nil {
		return err
	}
	if i := slices.IndexFunc(r.Hub, g.Contains); i >= 0 {
		return fmt.Errorf("GlobalCIDR %s contains the hub's address %s: choose another with spec.globalCIDR", g, r.Hub[i])
	}
	return disjoint(g, r.own())
}

// part validates a requested part of one of the clusterset's ranges; of returns what a cluster has
// of that range.
func (b Book) part(what string, p, within netip.Prefix, of func(Entry) []netip.Prefix) error {
	switch {
	case !p.Addr().Is4():
		return fmt.Errorf("%s %s is no IPv4 range", what, p)
	case p != p.Masked():
		return fmt.Errorf("%s %s has host bits: write %s", what, p, p.Masked())
	case p.Bits() < within.Bits() || !within.Contains(p.Addr()):
		return fmt.Errorf("%s %s does not lie inside the clusterset's range %s: choose one that does", what, p, within)
	case addresses(p) < MinClusterSize:
		return fmt.Errorf("%s %s has %d addresses: at least %d are needed", what, p, addresses(p), MinClusterSize)
	}
	for _, e := range b.Clusters {
		for _, other := range of(e) {
			if p.Overlaps(other) {
				return fmt.Errorf("%s %s overlaps %s of cluster %q: choose another, or none to be given a free one", what, p, other, e.ClusterID)
			}
		}
	}
	return nil
}

// disjoint refuses a GlobalCIDR that overlaps the cluster's own ranges: local and remote pods would
// be indistinguishable.
func disjoint(global netip.Prefix, local []namedRange) error {
	for _, l := range local {
		if global.Overlaps(l.Prefix) {
			return spec.Refuse("globalCIDR", "GlobalCIDR %s overlaps this cluster's own range %s: choose another with spec.globalCIDR", global, l)
		}
	}
	return nil
}

// firstFit returns the lowest range of the given prefix length inside within that overlaps none of
// taken.
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

// contention is the backoff with which a writer of the book retries on conflicts: with 255 clusters
// that join at once all of them succeed.
var contention = wait.Backoff{Duration: 10 * time.Millisecond, Factor: 1.5, Jitter: 1, Steps: 60, Cap: time.Second}
