package main

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

// Device names, the same in every namespace that has such a device.
const (
	devPod  = "eth0"  // PA, PB and the direct pair: the end inside the pod
	devHost = "veth0" // NA, NB: the host's end of the pod's veth
	devUn   = "un0"   // NA, GA, GB, NB: the underlay inside a cluster
	devWAN  = "wan0"  // GA, GB: the underlay between the clusters
)

// Addresses. Both clusters use the same pod and service CIDRs; the globalnet ranges tell them apart.
var (
	podAddr    = netip.MustParseAddr("10.7.1.10")        // PA and PB, overlapping
	podGateway = netip.MustParseAddr("10.7.1.1")         // NA and NB on devHost
	podCIDR    = netip.MustParsePrefix("10.7.0.0/16")    // of both clusters
	plainA     = netip.MustParseAddr("10.8.1.10")        // PA again, unique: the source without NAT
	plainB     = netip.MustParseAddr("10.9.1.10")        // PB again, unique: the destination without NAT
	plainCIDRA = netip.MustParsePrefix("10.8.0.0/16")    // routed to cluster A
	plainCIDRB = netip.MustParsePrefix("10.9.0.0/16")    // routed to cluster B
	globalA    = netip.MustParsePrefix("120.1.0.0/24")   // GlobalCIDR of A
	globalB    = netip.MustParsePrefix("120.2.0.0/24")   // GlobalCIDR of B
	egressLow  = netip.MustParseAddr("120.1.0.1")        // egress IPs of A: first …
	egressHigh = netip.MustParseAddr("120.1.0.8")        // … and last
	ingress    = netip.MustParseAddr("120.2.0.5")        // ingress IP in B of the service (or pod) on PB
	underNA    = netip.MustParsePrefix("172.16.1.1/24")  // NA un0
	underGA    = netip.MustParsePrefix("172.16.1.2/24")  // GA un0
	wanGA      = netip.MustParsePrefix("172.16.2.1/24")  // GA wan0
	wanGB      = netip.MustParsePrefix("172.16.2.2/24")  // GB wan0
	underGB    = netip.MustParsePrefix("172.16.3.2/24")  // GB un0
	underNB    = netip.MustParsePrefix("172.16.3.1/24")  // NB un0
	directC    = netip.MustParsePrefix("192.168.9.1/24") // the client of the direct pair
	directS    = netip.MustParsePrefix("192.168.9.2/24") // its server
)

// Topology is two clusters, each with one pod, its node and a gateway, and beside them a direct pair. All of it is
// network namespaces joined by veth pairs:
//
//	     cluster A                                              cluster B
//	PA ---------- NA ---------- GA ============ GB ---------- NB ---------- PB        DC ---------- DS
//	eth0     veth0  un0     un0  wan0      wan0  un0     un0  veth0     eth0          eth0     eth0
//
//	PA eth0  10.7.1.10/24, also 10.8.1.10/32; default route via 10.7.1.1; source 10.8.1.10 towards 10.9.0.0/16
//	PB eth0  10.7.1.10/24, also 10.9.1.10/32; default route via 10.7.1.1
//	NA veth0 10.7.1.1/24   un0 172.16.1.1/24; 10.8.1.10 via the pod
//	GA un0   172.16.1.2/24 wan0 172.16.2.1/24
//	GB wan0  172.16.2.2/24 un0 172.16.3.2/24
//	NB un0   172.16.3.1/24 veth0 10.7.1.1/24; 10.9.1.10 via the pod
//	DC eth0  192.168.9.1/24    DS eth0 192.168.9.2/24
//
// Pods have MTU 1450, everything else 1500. Nodes and gateways forward; IPv6, rp_filter and redirects are off. NA and NB
// carry the ruleset of a kube-proxy node (see kubeProxy), so that whatever passes their stack passes conntrack and a
// FORWARD chain; GA and GB carry nothing. No overlay device, no route to the other cluster and no translation exist: the
// Variant brings them. UDP 4800 and 4500 are free on all nodes. A topology serves one repetition of one variant, so that
// nothing is left of another one (a legacy nat table, for example, stays in its namespace for ever).
type Topology struct {
	PA, NA, GA, GB, NB, PB *netns.NS
	DC, DS                 *netns.NS

	all []*netns.NS // in the order of their making
}

// NewTopology makes the topology in namespaces named plg-<prefix>pa and so on. kubeProxy says whether the pods' nodes
// carry kube-proxy's ruleset. A half-made topology is taken down before an error returns.
func NewTopology(prefix string, kubeProxy bool) (*Topology, error) {
	t := &Topology{}
	if err := t.make(prefix, kubeProxy); err != nil {
		return nil, errors.Join(fmt.Errorf("make the topology: %w", err), t.Close())
	}
	return t, nil
}

// Close removes all namespaces of the topology.
func (t *Topology) Close() error {
	var errs []error
	for _, n := range t.all {
		errs = append(errs, n.Close())
	}
	t.all = nil
	return errors.Join(errs...)
}

// FlushConntrack forgets, on every node and gateway, the connections of the measurement before.
func (t *Topology) FlushConntrack() error {
	var errs []error
	for _, n := range []*netns.NS{t.NA, t.GA, t.GB, t.NB} {
		if err := n.Handle().ConntrackTableFlush(netlink.ConntrackTable); err != nil {
			errs = append(errs, fmt.Errorf("flush conntrack of %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (t *Topology) make(prefix string, kubeProxy bool) error {
	for _, x := range []struct {
		name string
		ns   **netns.NS
	}{
		{"pa", &t.PA}, {"na", &t.NA}, {"ga", &t.GA}, {"gb", &t.GB}, {"nb", &t.NB}, {"pb", &t.PB}, {"dc", &t.DC}, {"ds", &t.DS},
	} {
		n, err := netns.Create(prefix + x.name)
		if err != nil {
			return err
		}
		*x.ns, t.all = n, append(t.all, n)
		for _, s := range [][2]string{
			{"net/ipv6/conf/all/disable_ipv6", "1"},
			{"net/ipv4/conf/all/rp_filter", "0"}, {"net/ipv4/conf/default/rp_filter", "0"},
			{"net/ipv4/conf/all/send_redirects", "0"}, {"net/ipv4/conf/default/send_redirects", "0"},
		} {
			if err := n.Sysctl(s[0], s[1]); err != nil {
				return err
			}
		}
	}
	for _, n := range []*netns.NS{t.NA, t.GA, t.GB, t.NB} {
		if err := n.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if err := t.wire(); err != nil {
		return err
	}
	if err := t.route(); err != nil {
		return err
	}
	if !kubeProxy {
		return nil
	}
	return errors.Join(kubeProxyRules(t.NA), kubeProxyRules(t.NB))
}

func (t *Topology) wire() error {
	pod := netip.PrefixFrom(podAddr, 24)
	gateway := netip.PrefixFrom(podGateway, 24)
	end := func(n *netns.NS, dev string, mtu int, addrs ...netip.Prefix) netns.End {
		return netns.End{NS: n, Name: dev, MTU: mtu, Addrs: addrs}
	}
	const podMTU = 1450 // leaves room for VXLAN
	for _, pair := range [][2]netns.End{
		{end(t.PA, devPod, podMTU, pod, single(plainA)), end(t.NA, devHost, podMTU, gateway)},
		{end(t.NA, devUn, 0, underNA), end(t.GA, devUn, 0, underGA)},
		{end(t.GA, devWAN, 0, wanGA), end(t.GB, devWAN, 0, wanGB)},
		{end(t.GB, devUn, 0, underGB), end(t.NB, devUn, 0, underNB)},
		{end(t.PB, devPod, podMTU, pod, single(plainB)), end(t.NB, devHost, podMTU, gateway)},
		{end(t.DC, devPod, 0, directC), end(t.DS, devPod, 0, directS)},
	} {
		if err := netns.Veth(pair[0], pair[1]); err != nil {
			return err
		}
	}
	return nil
}

func (t *Topology) route() error {
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	source := &netlink.Route{Dst: ipNet(plainCIDRB), Gw: podGateway.AsSlice(), Src: plainA.AsSlice()}
	if err := t.PA.Handle().RouteReplace(source); err != nil {
		return fmt.Errorf("route %s from %s in %s: %w", plainCIDRB, plainA, t.PA.Name, err)
	}
	return errors.Join(
		t.PA.AddRoute(everywhere, podGateway, devPod),
		t.PB.AddRoute(everywhere, podGateway, devPod),
		t.NA.AddRoute(single(plainA), podAddr, devHost),
		t.NB.AddRoute(single(plainB), podAddr, devHost))
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }
