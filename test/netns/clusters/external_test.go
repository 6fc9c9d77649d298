package clusters

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/pelago-net/pelago/test/netns"
)

// besideAddress is a host on the underlay of cluster 2 that is none of its nodes.
var besideAddress = netip.MustParseAddr("172.16.2.200")

// externalHost makes it. It has no route but that of its network.
func (w *town) externalHost(t *testing.T) *netns.NS {
	t.Helper()
	h := netns.ForTest(t, "c2beside")
	must(t, netns.Veth(netns.End{NS: h, Name: "eth0", Addrs: []netip.Prefix{netip.PrefixFrom(besideAddress, 24)}}, netns.End{NS: w.Router, Name: "c2beside"}))
	br, err := w.Router.Handle().LinkByName("br2")
	must(t, err)
	link, err := w.Router.Handle().LinkByName("c2beside")
	must(t, err)
	must(t, w.Router.Handle().LinkSetMaster(link, br))
	return h
}

// A process on a host outside both clusters is the backend of a service of cluster 2: it sees the
// gateway that has the connection, and replies come back to it though the host knows no route to
// cluster 1. With a route by a gateway the host reaches cluster 1; without globalnet it is reached
// under its own address.
func (w *town) externalHosts(t *testing.T) {
	h, two := w.externalHost(t), w.Clusters[2]
	serveTCP(t, h, 80, sayWho("beside"))
	serveTCP(t, h, 81, exchange(bulkSize))
	echoUDP(t, h, 53)
	vip := two.Expose(80, []uint8{tcp})
	two.also(vip, 81, tcp)
	two.also(vip, 53, udp)
	for key, s := range two.Services {
		if key.Address == vip {
			s.External = []netip.AddrPort{netip.AddrPortFrom(besideAddress, key.Port)}
		}
	}
	two.External = netip.MustParsePrefix("172.16.2.192/26")
	remove := func(rest netip.Prefix) {
		two.External = rest
		for key := range two.Services {
			if key.Address == vip {
				delete(two.Services, key)
			}
		}
		w.Apply(t)
	}
	defer remove(netip.Prefix{})
	w.Apply(t)

	targets := []netip.Addr{vip}
	if two.Plain {
		targets = append(targets, besideAddress)
	}
	for _, to := range targets {
		seen := map[netip.Addr]bool{}
		for n := range 60 {
			who, source, err := ask(w.client[1+n%3], netip.AddrPortFrom(to, 80))
			if err != nil || who != "beside" {
				t.Fatalf("connection %d to %s: %s, %v", n, to, who, err)
			}
			seen[source.Addr()] = true
		}
		if len(seen) != 2 || !seen[two.Nodes[0].Address] || !seen[two.Nodes[1].Address] {
			t.Errorf("to %s: the host sees %v, want both gateways", to, seen)
		}
		if err := bulk(w.client[3], netip.AddrPortFrom(to, 81), bulkSize); err != nil {
			t.Errorf("bulk to %s: %v", to, err)
		}
		for n := 1; n <= 3; n++ {
			c, err := dial(w.client[n], "udp", netip.AddrPortFrom(to, 53))
			must(t, err)
			if err := ping(c, 1000); err != nil {
				t.Errorf("UDP from node %d to %s: %v", n, to, err)
			}
			must(t, c.Close())
		}
	}

	gateway := two.Nodes[1]
	for _, p := range w.Clusters[1].routed() {
		must(t, h.AddRoute(p, gateway.Address, "eth0"))
	}
	for range 3 {
		who, source, err := ask(h, netip.AddrPortFrom(w.back, 80))
		if err != nil || who != "client3" || source.Addr() != gateway.shown() {
			t.Errorf("from the host: %s sees %s, %v; want client3 to see %s", who, source, err, gateway.shown())
		}
	}
	if err := bulk(h, netip.AddrPortFrom(w.back, 81), bulkSize); err != nil {
		t.Errorf("bulk from the host: %v", err)
	}
	remove(netip.MustParsePrefix("172.16.2.248/29"))
	before := gateway.Counters(t)["edge-out drop-unknown-source"]
	if who, _, err := ask(h, netip.AddrPortFrom(w.back, 80)); err == nil {
		t.Errorf("a host of no declared range reaches %s", who)
	}
	if gateway.Counters(t)["edge-out drop-unknown-source"] == before {
		t.Error("nothing was counted as drop-unknown-source")
	}
}

// A ClusterIP that is not exported, translated by the gateways as kube-proxy does, to a pod that is
// on neither.
func (w *town) clusterIPs(t *testing.T) {
	two := w.Clusters[2]
	to := netip.AddrPortFrom(two.clusterIP(200), 80)
	for _, n := range two.Nodes[:2] {
		rule := []string{"-d", to.Addr().String(), "-p", "tcp", "--dport", "80", "-j", "DNAT", "--to-destination", fmt.Sprintf("%s:80", w.server[3].Address)}
		n.MustRun(t, "iptables", append([]string{"-t", "nat", "-A", "PREROUTING"}, rule...)...)
		must(t, n.AddRoute(netip.PrefixFrom(two.Nodes[2].podAddress(0), 24), two.Nodes[2].Address, "un0"))
		defer n.MustRun(t, "iptables", append([]string{"-t", "nat", "-D", "PREROUTING"}, rule...)...)
	}
	if who, _, err := ask(w.client[1], to); err == nil {
		t.Errorf("%s answers, though ClusterIPs are not routed", who)
	}
	two.RouteServices = true
	defer func() {
		two.RouteServices = false
		w.Apply(t)
	}()
	w.Apply(t)
	seen := map[netip.Addr]bool{}
	for n := range 60 {
		who, source, err := ask(w.client[1+n%3], to)
		if err != nil || who != "server3" {
			t.Fatalf("connection %d: %s, %v", n, who, err)
		}
		seen[source.Addr()] = true
	}
	if len(seen) != 2 || !seen[two.Nodes[0].Address] || !seen[two.Nodes[1].Address] {
		t.Errorf("the pod sees %v, want both gateways", seen)
	}
}
