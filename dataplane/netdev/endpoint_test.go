package netdev

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/netns"
)

// Pods of CNIs that give each a veth pair, behind a bridge or with a route of its own, have an
// endpoint once they have sent something; pods on a macvlan device have none.
func TestEndpoints(t *testing.T) {
	node := newNode(t)
	pod := func(name, address, host string) *netns.NS {
		ns := netns.ForTest(t, name)
		err := netns.Veth(netns.End{NS: ns, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(address)}}, netns.End{NS: node, Name: host})
		if err != nil {
			t.Fatal(err)
		}
		return ns
	}
	index := func(name string) int {
		i, err := node.Index(name)
		if err != nil {
			t.Fatal(err)
		}
		return i
	}
	run(t, node, "ip", "link", "add", "cni0", "type", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.1.1/24", "dev", "cni0")
	run(t, node, "ip", "link", "set", "cni0", "up")
	bridged := pod("bridged", "10.7.1.10/24", "veth1")
	pod("silent", "10.7.1.11/24", "veth2")
	for _, host := range []string{"veth1", "veth2"} {
		run(t, node, "ip", "link", "set", host, "master", "cni0")
	}
	routed := pod("routed", "10.7.2.10/24", "veth3")
	run(t, node, "ip", "addr", "add", "10.7.2.1/32", "dev", "veth3")
	run(t, node, "ip", "route", "add", "10.7.2.10", "dev", "veth3")
	macvlan := netns.ForTest(t, "macvlan")
	run(t, node, "ip", "link", "add", "mv0", "link", "un0", "type", "macvlan", "mode", "bridge")
	run(t, node, "ip", "link", "add", "mv1", "link", "un0", "netns", macvlan.Name, "type", "macvlan", "mode", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.3.1/24", "dev", "mv0")
	run(t, node, "ip", "link", "set", "mv0", "up")
	run(t, macvlan, "ip", "addr", "add", "10.7.3.10/24", "dev", "mv1")
	run(t, macvlan, "ip", "link", "set", "mv1", "up")
	for ns, gateway := range map[*netns.NS]string{bridged: "10.7.1.1", routed: "10.7.2.1", macvlan: "10.7.3.1"} {
		run(t, ns, "busybox", "ping", "-c", "1", "-W", "5", gateway)
	}
	addresses := []netip.Addr{}
	for _, a := range []string{"10.7.1.10", "10.7.1.11", "10.7.2.10", "10.7.3.10", "10.9.9.9"} {
		addresses = append(addresses, netip.MustParseAddr(a))
	}
	want := map[netip.Addr]dataplane.Endpoint{}
	for address, host := range map[string]string{"10.7.1.10": "veth1", "10.7.2.10": "veth3"} {
		ns := map[string]*netns.NS{"veth1": bridged, "veth3": routed}[host]
		mac, err := ns.MAC("eth0")
		if err != nil {
			t.Fatal(err)
		}
		want[netip.MustParseAddr(address)] = dataplane.Endpoint{Ifindex: uint32(index(host)), MAC: [6]byte(mac)}
	}
	var got map[netip.Addr]dataplane.Endpoint
	err := node.Do(func() (err error) {
		got, err = Endpoints(addresses)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}
