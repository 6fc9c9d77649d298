package clusters

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/test/netns"
)

// With Options.VPN, every node has the TUN device vpn0, as of Tailscale or WireGuard, and the
// router is the VPN. Node VPN of each cluster has nothing else: its address is 100.64.C.n.

var vpnRange = netip.MustParsePrefix("100.64.0.0/16")

func vpnAddress(cluster, node uint16) netip.Addr {
	return netip.AddrFrom4([4]byte{100, 64, byte(cluster), byte(node)})
}

// vpnTable has the routes of the router to the other nodes' addresses by the VPN.
const vpnTable = "55"

func (s *Set) addVPN(t testing.TB) {
	t.Helper()
	if _, err := s.Router.Run("ip", "rule", "add", "from", vpnRange.String(), "lookup", vpnTable); err != nil {
		t.Fatal(err)
	}
}

func (s *Set) joinVPN(t testing.TB, n *Node) {
	t.Helper()
	port := fmt.Sprintf("vpn%dn%d", n.Cluster.Index, n.Index)
	own := netns.End{NS: n.NS, Name: "vpn0"}
	route := []string{"route", "add", n.Address.String(), "dev", port, "table", vpnTable}
	if s.vpn == n.Index {
		own.Addrs = []netip.Prefix{netip.PrefixFrom(n.Address, 32)}
		route = []string{"route", "add", n.Address.String(), "dev", port}
	}
	end, err := netns.TUN(own, netns.End{NS: s.Router, Name: port})
	must(t, err)
	t.Cleanup(func() { must(t, end()) })
	if _, err := s.Router.Run("ip", route...); err != nil {
		t.Fatal(err)
	}
	to := vpnRange
	if s.vpn == n.Index {
		to = netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	must(t, n.AddRoute(to, netip.Addr{}, "vpn0"))
	n.uplinks = append(n.uplinks, "vpn0")
}
