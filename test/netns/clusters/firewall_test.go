package clusters

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// zones is a table as firewalld has it: the base chains end in a rejection of what no zone accepts.
const zones = `
table inet firewalld {
	chain filter_IN_public {
		tcp dport 22 accept
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		iifname "lo" accept
		meta l4proto icmp accept
		goto filter_IN_public
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ip saddr { 10.7.0.0/16 } accept
		reject with icmpx admin-prohibited
	}
}`

// TestFirewalls has firewalls on the node of a client and of a server. Small packets of established
// connections pass whatever INPUT drops; those that GRO has merged do not, nor do new connections
// that FORWARD drops.
func TestFirewalls(t *testing.T) {
	t.Parallel()
	s := New(t, Options{Nodes: 2, Gateways: 1})
	one, two := s.Clusters[1], s.Clusters[2]
	node, other := one.Nodes[1], two.Nodes[1]
	client, server := node.AddPod(t), other.AddPod(t)
	vip := two.Expose(80, []uint8{unix.IPPROTO_TCP}, server)
	two.also(vip, 81, unix.IPPROTO_TCP, server)
	two.also(vip, 53, unix.IPPROTO_UDP, server)
	s.Apply(t)
	serveTCP(t, server, 80, sayWho("server"))
	serveTCP(t, server, 81, exchange(bulkSize))
	echoUDP(t, server, 53)
	stop, prober := probers(t, s.Nodes()...)
	defer stop()

	small := func() error {
		if _, _, err := ask(client, netip.AddrPortFrom(vip, 80)); err != nil {
			return err
		}
		c, err := dial(client, "udp", netip.AddrPortFrom(vip, 53))
		must(t, err)
		defer c.Close()
		return ping(c, 100)
	}
	large := func() error { return bulkWithin(client, netip.AddrPortFrom(vip, 81), bulkSize, 5*time.Second) }
	gsoLost := func(n *Node, want bool) {
		t.Helper()
		gateway := n.Cluster.Nodes[0].Address
		for end := time.Now().Add(90 * time.Second); prober[n].Sizes()[gateway].GSOLost != want || prober[n].Sizes()[gateway].Full == 0; {
			if time.Now().After(end) {
				t.Fatalf("%s: path to %s: %+v; want GSO packets lost: %t", n.Name, gateway, prober[n].Sizes()[gateway], want)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	blocked := func(n *Node, want ...string) {
		t.Helper()
		n.Apply(t)
		if got := n.Obstacles.Blocked; !slices.EqualFunc(got, want, strings.Contains) {
			t.Errorf("%s: blocked %q; want %q", n.Name, got, want)
		}
	}
	passes := func(what string) {
		t.Helper()
		if err := errors.Join(small(), large()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, n := range []*Node{node, other} {
		// As between network cards: segments on the wire, which the receiver merges.
		n.MustRun(t, "ethtool", "-K", "un0", "gro", "on")
		_, err := s.Router.Run("ethtool", "-K", fmt.Sprintf("c%dn%d", n.Cluster.Index, n.Index), "tso", "off", "gso", "off")
		must(t, err)
	}
	passes("without firewalls")

	t.Run("chains end with REJECT", func(t *testing.T) {
		for _, n := range []*Node{node, other} {
			for _, chain := range []string{"INPUT", "FORWARD"} {
				n.MustRun(t, "iptables", "-I", chain, "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT")
				n.MustRun(t, "iptables", "-A", chain, "-j", "REJECT", "--reject-with", "icmp-host-prohibited")
			}
			// the node's own pods may send, as the CNI has arranged
			n.MustRun(t, "iptables", "-I", "FORWARD", "-i", "cni0", "-j", "ACCEPT")
			blocked(n)
		}
		passes("with a REJECT that was added last")
		for _, n := range []*Node{node, other} {
			for _, chain := range []string{"INPUT", "FORWARD"} {
				n.MustRun(t, "iptables", "-D", chain, "-j", "PELAGO-"+chain)
				n.MustRun(t, "iptables", "-A", chain, "-j", "PELAGO-"+chain)
			}
		}
		if err := small(); err == nil {
			t.Error("behind the REJECT, our rules accept packets: the test proves nothing")
		}
		for _, n := range []*Node{node, other} {
			blocked(n)
		}
		passes("with a REJECT before our rules, repaired")
		for _, n := range []*Node{node, other} {
			for _, chain := range []string{"INPUT", "FORWARD"} {
				n.MustRun(t, "iptables", "-D", chain, "-j", "REJECT", "--reject-with", "icmp-host-prohibited")
			}
		}
	})
	t.Run("firewalld", func(t *testing.T) {
		gsoLost(node, false)
		for _, n := range []*Node{node, other} {
			if out, err := n.RunInput(zones, "nft", "-f", "-"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			blocked(n, "chain filter_IN_public of table inet firewalld (nft) rejects UDP 4800", "chain filter_FORWARD of table inet firewalld (nft) rejects connections from other clusters")
		}
		if err := small(); err == nil {
			t.Error("a connection passes FORWARD, which rejects it")
		}
		// what the command does that is named for pelago0
		for _, n := range []*Node{node, other} {
			n.MustRun(t, "nft", "insert rule inet firewalld filter_FORWARD iifname pelago0 accept")
			blocked(n, "chain filter_IN_public of table inet firewalld (nft) rejects UDP 4800")
		}
		if err := small(); err != nil {
			t.Errorf("small packets: %v", err)
		}
		if err := large(); err == nil {
			t.Error("a large transfer passes INPUT, which rejects it")
		}
		gsoLost(node, true)
		gsoLost(other, true)
		// the one for the port
		for _, n := range []*Node{node, other} {
			n.MustRun(t, "nft", "insert rule inet firewalld filter_IN_public udp dport 4800 accept")
			blocked(n)
		}
		passes("with the remedy")
		gsoLost(node, false)
		gsoLost(other, false)
		for _, n := range []*Node{node, other} {
			n.MustRun(t, "nft", "delete table inet firewalld")
		}
	})
}
