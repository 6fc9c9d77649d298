package clusters

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/test/netns"
)

// CNI is how a CNI attaches pods to their node.
type CNI string

// Kinds of CNI.
const (
	// Bridge: the pods of a node are ports of bridge cni0, which has the node's address towards
	// them.
	Bridge CNI = ""
	// SharedVeth, as Cilium: all pods are routed to a veth device without ARP whose other end is on
	// the node as well, and each sends by its own. What Cilium's programs deliver, rules do here.
	SharedVeth CNI = "shared veth"
	// Switch, as CNIs on Open vSwitch: pods are ports of a switch, and the node's stack is behind
	// another port, to which all pods are routed. The switch is a bridge here.
	Switch CNI = "switch"
)

// deliveryTable has the routes by which SharedVeth delivers.
const deliveryTable = "77"

// addNetwork makes what the pods are attached to; pods is the node's address in their network.
func (n *Node) addNetwork(t testing.TB, pods netip.Prefix) {
	t.Helper()
	bridge := "cni0"
	switch n.cni {
	case SharedVeth:
		must(t, n.Sysctl("net/ipv4/conf/all/rp_filter", "0"))
		n.MustRun(t, "ip", "link", "add", "shared0", "type", "veth", "peer", "name", "shared1")
		n.MustRun(t, "ip", "link", "set", "shared0", "arp", "off", "up")
		n.MustRun(t, "ip", "link", "set", "shared1", "arp", "off", "up")
		must(t, n.AddAddr("shared0", netip.PrefixFrom(pods.Addr(), 32)))
		n.MustRun(t, "ip", "route", "add", pods.Masked().String(), "dev", "shared0")
		n.MustRun(t, "ip", "rule", "add", "pref", "50", "iif", "pelago0", "lookup", deliveryTable)
		return
	case Switch:
		bridge = "switch0"
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridge
	must(t, n.Handle().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	n.MustRun(t, "ip", "link", "set", bridge, "up")
	if n.cni == Switch {
		// The node's iptables do not see the packets of Open vSwitch.
		must(t, n.Sysctl("net/bridge/bridge-nf-call-iptables", "0"))
		n.MustRun(t, "ip", "link", "add", "gw0", "type", "veth", "peer", "name", "gw0-port")
		n.MustRun(t, "ip", "link", "set", "gw0-port", "master", bridge, "up")
		n.MustRun(t, "ip", "link", "set", "gw0", "up")
		bridge = "gw0"
	}
	must(t, n.AddAddr(bridge, pods))
}

// attach connects the pod with its node.
func (p *Pod) attach(t testing.TB) {
	t.Helper()
	n, bits := p.Node, 24
	if n.cni == SharedVeth {
		bits = 32
	}
	must(t, netns.Veth(netns.End{NS: p.NS, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(p.Address, bits)}}, netns.End{NS: n.NS, Name: p.host()}))
	switch n.cni {
	case Bridge:
		n.MustRun(t, "ip", "link", "set", p.host(), "master", "cni0")
		link, err := n.Handle().LinkByName(p.host())
		must(t, err)
		must(t, n.Handle().LinkSetHairpin(link, true))
	case Switch:
		n.MustRun(t, "ip", "link", "set", p.host(), "master", "switch0")
	case SharedVeth:
		n.MustRun(t, "ip", "rule", "add", "pref", "51", "iif", p.host(), "lookup", deliveryTable)
		n.MustRun(t, "ip", "route", "add", fmt.Sprintf("%s/32", p.Address), "dev", p.host(), "table", deliveryTable)
	}
	must(t, p.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), n.podAddress(1), "eth0"))
}
