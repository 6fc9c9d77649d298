package clusters

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestPlainTown is the town without globalnet: pods keep their addresses, services have their
// ClusterIPs.
func TestPlainTown(t *testing.T) {
	t.Parallel()
	w := newTown(t, Options{Plain: true})
	t.Run("sources are kept", w.sourcesKept)
	t.Run("a service is balanced by both gateways", w.balanced)
	t.Run("what is not offered", w.notOffered)
	t.Run("nodes", w.fabric)
	t.Run("host network", w.hostNetwork)
	t.Run("every combination of gateway and pod", w.combinations)
	t.Run("unresolved neighbours", w.neighbours)
	t.Run("pods by their own addresses", w.headless)
	t.Run("large datagrams", w.largeDatagrams)
	t.Run("segmented datagrams", w.segmentedDatagrams)
	t.Run("path MTU", w.pathMTU)
	t.Run("segment sizes", w.segmentSizes)
	t.Run("ICMP errors", w.icmpErrors)
	t.Run("conntrack translates nothing", w.conntrack)
	t.Run("default deny", w.defaultDeny)
	t.Run("forged overlay packets", w.forged)
	t.Run("injection with the secrets known", w.injected)
	t.Run("marks of other programs", w.foreignMarks)
	t.Run("gateways share the load", w.gatewaysShare)
	t.Run("a gateway is drained", w.drain)
	t.Run("a gateway is taken away", w.takeAway)
	t.Run("backends come and go", w.backendsChange)
	t.Run("datagrams leave a backend and a dead node", w.datagramsMove)
	t.Run("a service of the other direction", w.otherDirection)
	t.Run("hosts outside the cluster", w.externalHosts)
	t.Run("ClusterIPs that are not exported", w.clusterIPs)
	t.Run("without pelago0 nothing leaks", w.noLeak)
	t.Run("tables stay sound", w.tablesSound)
}

// Every pod sees every pod of the other cluster under the address and port that it sends from,
// whoever begins, directly and as a service.
func (w *town) sourcesKept(t *testing.T) {
	local := uint16(20000)
	check := func(from *Pod, to netip.Addr, names string) {
		t.Helper()
		local++
		own := netip.AddrPortFrom(from.Address, local)
		c, err := dial(from, "tcp", netip.AddrPortFrom(to, 80), own)
		if err != nil {
			t.Errorf("from %s to %s: %v", own, to, err)
			return
		}
		defer c.Close()
		var who, source string
		if _, err := fmt.Fscanf(c, "%s %s\n", &who, &source); err != nil || source != own.String() || !strings.Contains(names, who) {
			t.Errorf("from %s to %s: %q sees %s, %v; want %s to see it", own, to, who, source, err, names)
		}
	}
	for n := 1; n <= 3; n++ {
		for m := 1; m <= 3; m++ {
			check(w.client[n], w.server[m].Address, fmt.Sprintf("server%d", m))
		}
		check(w.client[n], w.all, "server1 server2 server3")
		check(w.server[n], w.client[3].Address, "client3")
		check(w.server[n], w.back, "client3")
	}
}

// A ClusterIP of the other cluster leads to all of its nodes, by way of either gateway, and not
// through kube-proxy: only we translate it.
func (w *town) balanced(t *testing.T) {
	gateways := w.Clusters[2].Nodes[:2]
	var before []uint64
	for _, g := range gateways {
		before = append(before, g.Counters(t)["uplink-in switched"])
	}
	w.spread(t, func(string, netip.AddrPort) {})
	for i, g := range gateways {
		if got := g.Counters(t)["uplink-in switched"] - before[i]; got < 240 {
			t.Errorf("gateway %s passed on %d packets of 240 connections", g.Name, got)
		}
	}
}

// An address of the other cluster that no pod has, and a ClusterIP that is not exported, end at its
// gateway, counted; a port that an exported service does not have as well.
func (w *town) notOffered(t *testing.T) {
	for _, tt := range []struct {
		name string
		to   netip.AddrPort
		want string
	}{
		{"a ClusterIP that is not exported", netip.AddrPortFrom(w.Clusters[2].clusterIP(200), 80), "uplink-in drop-not-own"},
		{"an address of no pod", netip.AddrPortFrom(w.Clusters[2].Nodes[0].podAddress(200), 80), "uplink-in drop-not-own"},
		{"a node that is none", netip.MustParseAddrPort("241.0.128.77:80"), "uplink-in drop-not-own"},
		{"a port that the service does not have", netip.AddrPortFrom(w.all, 82), "uplink-in drop-no-service"},
	} {
		sum := func() (n uint64) {
			for _, g := range w.Clusters[2].Nodes[:2] {
				n += g.Counters(t)[tt.want]
			}
			return n
		}
		before := sum()
		c, err := dial(w.client[1], "udp", tt.to)
		must(t, err)
		if err := pingWithin(c, 1, 100*time.Millisecond); err == nil {
			t.Errorf("%s answers", tt.name)
		}
		must(t, c.Close())
		if sum() == before {
			t.Errorf("%s: nothing was counted as %s", tt.name, tt.want)
		}
	}
}

// Nodes reach each other's processes and are reached by pods under their fabric addresses, whatever
// address of the node a process is bound to.
func (w *town) fabric(t *testing.T) {
	near, far := w.Clusters[1].Nodes[2], w.Clusters[2].Nodes[2]
	for name, from := range map[string]place{"node": near, "pod": w.client[1]} {
		who, source, err := ask(from, netip.AddrPortFrom(far.Fabric(), 8080))
		want := near.Fabric()
		if name == "pod" {
			want = w.client[1].Address
		}
		if err != nil || who != "node3" || source.Addr() != want {
			t.Errorf("from a %s: %s sees %s, %v; want node3 to see %s", name, who, source, err, want)
		}
	}
	c, err := dial(near, "tcp", netip.AddrPortFrom(w.server[1].Address, 80), netip.AddrPortFrom(near.podAddress(1), 21000))
	must(t, err)
	defer c.Close()
	var who, source string
	if _, err := fmt.Fscanf(c, "%s %s\n", &who, &source); err != nil || source != netip.AddrPortFrom(near.Fabric(), 21000).String() {
		t.Errorf("from the bridge's address: %q sees %s, %v; want %s:21000", who, source, err, near.Fabric())
	}
	out, err := near.Run("busybox", "ping", "-c", "2", "-i", "0.05", "-W", "2", far.Fabric().String())
	if err != nil {
		t.Errorf("ping from node to node: %v\n%s", err, out)
	}
}
