// Package ranges compares the address ranges that a cluster is registered with with those that its
// pods and services get addresses of: ServiceCIDR objects, IPPools of Calico, podCIDRs of
// CiliumNodes. What is outside is reported on the cluster's own Cluster object, with the command
// that registers it; other clusters do not reach such addresses, and drop what they send. It
// changes no range: those are the hub's to grant.
package ranges

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Range is what an object gives addresses of.
type Range struct {
	Object   string // kind and name
	Prefix   netip.Prefix
	Services bool // of services, else of pods
}

// Registered are the ranges that the hub has granted.
type Registered struct {
	ClusterID      string
	Pods, Services []netip.Prefix
}

// maxNamed bounds the objects that a message names.
const maxNamed = 5

// Outgrown describes the ranges that lie outside of the registered ones, with the command that
// registers them; empty if there are none. A family of which none is registered is left out.
func Outgrown(have Registered, ranges []Range) string {
	var names []string
	pods, services := slices.Clone(have.Pods), slices.Clone(have.Services)
	for _, r := range ranges {
		registered, want := have.Pods, &pods
		if r.Services {
			registered, want = have.Services, &services
		}
		family := func(p netip.Prefix) bool { return p.Addr().Is4() == r.Prefix.Addr().Is4() }
		if !slices.ContainsFunc(registered, family) || contained(registered, r.Prefix) {
			continue
		}
		names = append(names, fmt.Sprintf("%s has %s", r.Object, r.Prefix))
		*want = append(*want, r.Prefix)
	}
	if len(names) == 0 {
		return ""
	}
	if more := len(names) - maxNamed; more > 0 {
		names = append(names[:maxNamed], fmt.Sprintf("%d more", more))
	}
	command := "pelago join broker-info.subm --clusterid " + have.ClusterID
	if len(pods) > len(have.Pods) {
		command += " --clustercidr " + joined(pods)
	}
	if len(services) > len(have.Services) {
		command += " --servicecidr " + joined(services)
	}
	return fmt.Sprintf("%s: outside of the registered ranges of pods %s and services %s, so other clusters do not reach such addresses and drop what they send; "+
		"register them: %s", strings.Join(names, ", "), joined(have.Pods), joined(have.Services), command)
}

func contained(in []netip.Prefix, p netip.Prefix) bool {
	return slices.ContainsFunc(in, func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
}

// joined is the list without ranges that others of it contain.
func joined(ranges []netip.Prefix) string {
	var out []string
	for i, p := range ranges {
		others := slices.Delete(slices.Clone(ranges), i, i+1)
		first := slices.Index(ranges, p) == i
		if first && !contained(slices.DeleteFunc(others, func(o netip.Prefix) bool { return o == p }), p) {
			out = append(out, p.String())
		}
	}
	return strings.Join(out, ",")
}
