package main

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/netns"
)

// Device names, the same in every namespace that has such a device.
const (
	devPod  = "eth0"  // PA, PB and the direct pair: the end inside the pod
	devHost = "veth0" // NA, NB: the host's end of the pod's veth
	devUn   = "un"    // NA, NB: un1, un2, … to each gateway; GA, GB: un1 to the node
	devWAN  = "wan"   // GA, GB: wan1, wan2, … to each gateway of the other cluster
)

// Addresses. Both clusters use the same pod and service CIDRs; the globalnet ranges tell them
// apart.
var (
	podAddr    = netip.MustParseAddr("10.7.1.10")     // PA and PB, overlapping
	podGateway = netip.MustParseAddr("10.7.1.1")      // NA and NB on devHost
	podCIDR    = netip.MustParsePrefix("10.7.0.0/16") // of both clusters
	plainA     = netip.MustParseAddr("10.8.1.10")     // PA again, unique: the source without NAT
	// PB again, unique: the destination without NAT
	plainB     = netip.MustParseAddr("10.9.1.10")
	plainCIDRA = netip.MustParsePrefix("10.8.0.0/16")  // routed to cluster A
	plainCIDRB = netip.MustParsePrefix("10.9.0.0/16")  // routed to cluster B
	globalA    = netip.MustParsePrefix("120.1.0.0/16") // GlobalCIDR of A
	globalB    = netip.MustParsePrefix("120.2.0.0/16") // GlobalCIDR of B
	egressLow  = netip.MustParseAddr("120.1.0.1")      // egress IPs of A: first …
	egressHigh = netip.MustParseAddr("120.1.0.8")      // … and last
	// ingress IP in B of the service (or pod) on PB
	ingress = netip.MustParseAddr("120.2.0.5")
	directC = netip.MustParsePrefix("192.168.9.1/24") // the client of the direct pair
	directS = netip.MustParsePrefix("192.168.9.2/24") // its server
)

// The underlay is one veth pair, thus one /24, for each two neighbours. Gateways count from 1.
func underNA(gateway int) netip.Prefix { return underlay(1, gateway, 1) } // NA un<gateway>
func underGA(gateway int) netip.Prefix { return underlay(1, gateway, 2) } // GA un1
func underNB(gateway int) netip.Prefix { return underlay(3, gateway, 1) } // NB un<gateway>
func underGB(gateway int) netip.Prefix { return underlay(3, gateway, 2) } // GB un1
func wanGA(a, b int) netip.Prefix      { return underlay(20+a, b, 1) }    // GA a, wan<b>
func wanGB(a, b int) netip.Prefix      { return underlay(20+a, b, 2) }    // GB b, wan<a>

func underlay(second, third, fourth int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, byte(second), byte(third), byte(fourth)}), 24)
}

func device(name string, n int) string { return name + strconv.Itoa(n) }

// Shape is what a Topology consists of.
type Shape struct {
	KubeProxy bool // NA and NB carry the ruleset of a kube-proxy node
	Gateways  int  // of each cluster; 0 is 1
}

// Topology is two clusters, each with one pod, its node and one gateway or more, and next to them a
// direct pair. All of it is network namespaces joined by veth pairs:
//
//	     cluster A                                              cluster B
//	PA ---------- NA ---------- GA ============ GB ---------- NB ---------- PB        DC ---------- DS
//	eth0     veth0  un1     un1  wan1      wan1  un1     un1  veth0     eth0          eth0     eth0
//
//	PA eth0  10.7.1.10/24, also 10.8.1.10/32; default route via 10.7.1.1; source 10.8.1.10 towards 10.9.0.0/16
//	PB eth0  10.7.1.10/24, also 10.9.1.10/32; default route via 10.7.1.1
//	NA veth0 10.7.1.1/24   un1 172.1.1.1/24; 10.8.1.10 via the pod
//	GA un1   172.1.1.2/24  wan1 172.21.1.1/24
//	GB wan1  172.21.1.2/24 un1 172.3.1.2/24
//	NB un1   172.3.1.1/24  veth0 10.7.1.1/24; 10.9.1.10 via the pod
//	DC eth0  192.168.9.1/24    DS eth0 192.168.9.2/24
//
// With more gateways, each node has a veth pair to each of its cluster's gateways, and each gateway
// one to each of the other cluster's. Pods have MTU 1450, everything else 1500. Nodes and gateways
// forward; IPv6, rp_filter and redirects are off. NA and NB carry the ruleset of a kube-proxy node
// (see kubeProxy), so that whatever passes their stack passes conntrack and a FORWARD chain;
// gateways carry nothing. No overlay device, no route to the other cluster and no translation
// exist: the Variant brings them. UDP 4800 and 4500 are free on all nodes. A topology serves one
// variant, so that nothing of another one affects it (a legacy nat table, for example, stays in its
// namespace).
type Topology struct {
	PA, NA, NB, PB *netns.NS
	GA, GB         []*netns.NS // gateway 1 is the first
	DC, DS         *netns.NS

	all []*netns.NS // in the order of their creation
}

// NewTopology makes the topology in namespaces named plg-<prefix>pa and so on. A partial topology
// is removed before an error returns.
func NewTopology(prefix string, shape Shape) (*Topology, error) {
	t := &Topology{}
	if err := t.make(prefix, shape); err != nil {
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

// FlushConntrack removes the TCP connections of the last measurement from the tables of every node
// and gateway. Datagrams keep their flows from one slice to the next.
func (t *Topology) FlushConntrack() error {
	var errs []error
	for _, n := range t.hosts() {
		tcp := &netlink.ConntrackFilter{}
		err := tcp.AddProtocol(unix.IPPROTO_TCP)
		if err == nil {
			_, err = n.Handle().ConntrackDeleteFilters(netlink.ConntrackTable, unix.AF_INET, tcp)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("flush conntrack of %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// hosts are the nodes and gateways.
func (t *Topology) hosts() []*netns.NS { return slices.Concat([]*netns.NS{t.NA, t.NB}, t.GA, t.GB) }

func (t *Topology) make(prefix string, shape Shape) error {
	gateways := max(1, shape.Gateways)
	t.GA, t.GB = make([]*netns.NS, gateways), make([]*netns.NS, gateways)
	namespaces := map[string]**netns.NS{"pa": &t.PA, "na": &t.NA, "nb": &t.NB, "pb": &t.PB, "dc": &t.DC, "ds": &t.DS}
	for i := range gateways {
		namespaces[device("ga", i+1)], namespaces[device("gb", i+1)] = &t.GA[i], &t.GB[i]
	}
	for _, name := range slices.Sorted(maps.Keys(namespaces)) {
		n, err := netns.Create(prefix + name)
		if err != nil {
			return err
		}
		*namespaces[name], t.all = n, append(t.all, n)
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
	for _, n := range t.hosts() {
		if err := n.Sysctl("net/ipv4/ip_forward", "1"); err != nil {
			return err
		}
	}
	if err := errors.Join(t.wire(), t.route()); err != nil {
		return err
	}
	if !shape.KubeProxy {
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
	pairs := [][2]netns.End{
		{end(t.PA, devPod, podMTU, pod, single(plainA)), end(t.NA, devHost, podMTU, gateway)},
		{end(t.PB, devPod, podMTU, pod, single(plainB)), end(t.NB, devHost, podMTU, gateway)},
		{end(t.DC, devPod, 0, directC), end(t.DS, devPod, 0, directS)},
	}
	for a := 1; a <= len(t.GA); a++ {
		pairs = append(pairs,
			[2]netns.End{end(t.NA, device(devUn, a), 0, underNA(a)), end(t.GA[a-1], device(devUn, 1), 0, underGA(a))},
			[2]netns.End{end(t.NB, device(devUn, a), 0, underNB(a)), end(t.GB[a-1], device(devUn, 1), 0, underGB(a))})
		for b := 1; b <= len(t.GB); b++ {
			pairs = append(pairs, [2]netns.End{end(t.GA[a-1], device(devWAN, b), 0, wanGA(a, b)), end(t.GB[b-1], device(devWAN, a), 0, wanGB(a, b))})
		}
	}
	for _, pair := range pairs {
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
