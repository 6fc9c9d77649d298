package netdev

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/netns"
)

// Where packets of a pod arrive, by what the node knows of it.
func TestPodPlace(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	pair := &podEnd{kind: "veth", index: 3, mac: mac, host: 20, netns: 1}
	own := dataplane.Endpoint{Ifindex: 20, MAC: mac}
	free, port := &hostLink{index: 20, name: "lxc1", kind: "veth", away: true}, &hostLink{index: 20, master: 30, name: "lxc1", kind: "veth", away: true}
	bridge, gateway := &hostLink{index: 30, name: "cni0", kind: "bridge"}, &hostLink{index: 40, name: "antrea-gw0", kind: "openvswitch"}
	switchOf := &hostLink{index: 30, name: "ovs-system", kind: "openvswitch"}
	shared := &hostLink{index: 50, name: "cilium_host", kind: "veth"}
	uplink := &hostLink{index: 60, name: "eth0"}
	for _, tt := range []struct {
		name    string
		place   podPlace
		want    PodDevice
		problem string
	}{
		{"its own pair", podPlace{own: pair, end: free, route: free, onLink: true}, PodDevice{Source: 20, Endpoint: own}, ""},
		{"its own pair, the routes lead to a shared device", podPlace{own: pair, end: free, route: shared, shared: true}, PodDevice{Source: 20, Endpoint: own}, ""},
		{"its own pair, no route", podPlace{own: pair, end: free}, PodDevice{Source: 20, Endpoint: own}, ""},
		{"its own pair, routed by an uplink", podPlace{own: pair, end: free, route: uplink, uplink: true}, PodDevice{Source: 20, Endpoint: own}, ""},
		{"a port of a bridge", podPlace{own: pair, end: port, master: bridge, route: bridge, onLink: true, shared: true}, PodDevice{Source: 30, Endpoint: own}, ""},
		{"a port of a bridge that is an uplink", podPlace{own: pair, end: port, master: bridge, route: bridge, onLink: true, uplink: true}, PodDevice{Source: 30, Endpoint: own}, ""},
		{"a port of a bridge, no route yet", podPlace{own: pair, end: port, master: bridge}, PodDevice{Source: 30, Endpoint: own}, ""},
		{"a port of a bridge, the routes lead to another device", podPlace{own: pair, end: port, master: bridge, route: gateway, shared: true},
			PodDevice{Source: 40, Endpoint: own, Strict: "its device is a port of a switch, whose rules must see all packets"}, ""},
		{"a port of Open vSwitch", podPlace{own: pair, end: port, master: switchOf, route: gateway, shared: true}, PodDevice{Source: 40, Endpoint: own, Strict: "its device is a port of a switch, whose rules must see all packets"}, ""},
		{"a port of Open vSwitch, no route", podPlace{own: pair, end: port, master: switchOf}, PodDevice{}, "lxc1, its device on the node, is a port of a switch"},
		{"a port of Open vSwitch, routed by an uplink", podPlace{own: pair, end: port, master: switchOf, route: uplink, uplink: true}, PodDevice{}, "port of a switch"},
		{"netkit", podPlace{own: &podEnd{kind: "netkit", host: 20}, end: free, route: shared, shared: true}, PodDevice{}, "netkit"},
		{"macvlan beside a device of the node", podPlace{own: &podEnd{kind: "macvlan"}, route: &hostLink{index: 70, kind: "macvlan"}, shared: true},
			PodDevice{Source: 70}, "macvlan, which has no end on the node"},
		{"macvlan beside none", podPlace{own: &podEnd{kind: "macvlan"}, route: uplink, uplink: true}, PodDevice{}, "macvlan"},
		{"ipvlan", podPlace{own: &podEnd{kind: "ipvlan"}}, PodDevice{}, "ipvlan"},
		{"no namespace, its own device", podPlace{route: free, onLink: true}, PodDevice{Source: 20}, ""},
		{"no namespace, a bridge", podPlace{route: bridge, onLink: true, shared: true}, PodDevice{Source: 30}, ""},
		{"no namespace, another device of a switch", podPlace{route: gateway, shared: true}, PodDevice{Source: 40}, ""},
		{"no namespace, a pair with both ends on the node", podPlace{route: shared}, PodDevice{}, "cilium_host, which is not the pod's"},
		{"no namespace, a pair that several pods share", podPlace{route: free, shared: true}, PodDevice{}, "lxc1, as those of other pods"},
		{"no namespace, netkit", podPlace{route: &hostLink{index: 20, name: "lxc1", kind: "netkit", away: true}}, PodDevice{}, "netkit"},
		{"no namespace, an uplink", podPlace{route: uplink, uplink: true}, PodDevice{}, "eth0, an uplink"},
		{"no namespace, another network behind a bridge that is an uplink", podPlace{route: bridge, uplink: true}, PodDevice{}, "cni0, an uplink"},
		{"no namespace, no route", podPlace{}, PodDevice{}, "the node has no route to it"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.place.decide()
			if (got.Problem != "") != (tt.problem != "") || !strings.Contains(got.Problem, tt.problem) {
				t.Errorf("problem %q; want %q", got.Problem, tt.problem)
			}
			got.Problem = ""
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

// Whatever the CNI, packets of a pod are accepted from the device at which they arrive, and its
// endpoint is its own veth pair, without the pod having sent a packet.
func TestPodDevices(t *testing.T) {
	node := newNode(t)
	other := netns.ForTest(t, "other") // another node with a pod of the same address
	macs := map[string][6]byte{}
	pod := func(node *netns.NS, name, address, host string) *netns.NS {
		t.Helper()
		ns := netns.ForTest(t, name)
		if err := netns.Veth(netns.End{NS: ns, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(address)}}, netns.End{NS: node, Name: host}); err != nil {
			t.Fatal(err)
		}
		mac, err := ns.MAC("eth0")
		if err != nil {
			t.Fatal(err)
		}
		macs[host] = [6]byte(mac)
		return ns
	}
	// A bridge, and a route for each pod.
	run(t, node, "ip", "link", "add", "cni0", "type", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.1.1/24", "dev", "cni0")
	run(t, node, "ip", "link", "set", "cni0", "up")
	bridged := pod(node, "bridged", "10.7.1.10/24", "veth1")
	run(t, node, "ip", "link", "set", "veth1", "master", "cni0")
	routed := pod(node, "routed", "10.7.2.10/24", "veth2")
	run(t, node, "ip", "addr", "add", "10.7.2.1/32", "dev", "veth2")
	run(t, node, "ip", "route", "add", "10.7.2.10", "dev", "veth2")
	// As Cilium: all pods are routed to one end of a veth pair without ARP, for which the kernel
	// enters neighbours with that device's own MAC, and each has a veth device of its own.
	run(t, node, "ip", "link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
	run(t, node, "ip", "link", "set", "cilium_host", "arp", "off", "up")
	run(t, node, "ip", "link", "set", "cilium_net", "arp", "off", "up")
	run(t, node, "ip", "route", "add", "10.7.3.0/24", "dev", "cilium_host")
	pod(other, "stranger", "10.7.3.10/32", "lxc9")
	pod(node, "first", "10.7.3.10/32", "lxc1")
	pod(node, "second", "10.7.3.11/32", "lxc2")
	// A device that is shared, and pods that share it (macvlan).
	run(t, node, "ip", "link", "add", "mv0", "link", "un0", "type", "macvlan", "mode", "bridge")
	run(t, node, "ip", "link", "set", "mv0", "up")
	run(t, node, "ip", "route", "add", "10.7.4.0/24", "dev", "mv0")
	macvlan := netns.ForTest(t, "macvlan")
	run(t, node, "ip", "link", "add", "mv1", "link", "un0", "netns", macvlan.Name, "type", "macvlan", "mode", "bridge")
	run(t, macvlan, "ip", "addr", "add", "10.7.4.10/24", "dev", "mv1")
	run(t, macvlan, "ip", "addr", "add", "10.99.0.2/24", "dev", "mv1") // routed by the uplink
	run(t, macvlan, "ip", "link", "set", "mv1", "up")
	// A bridge with the node's uplink and pods, and routes by it and by the other uplink that are
	// no pod's.
	run(t, node, "ip", "link", "add", "br0", "type", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.5.1/24", "dev", "br0")
	run(t, node, "ip", "link", "set", "br0", "up")
	pod(node, "beside", "10.7.5.10/24", "veth5")
	run(t, node, "ip", "link", "set", "veth5", "master", "br0")
	run(t, node, "ip", "route", "add", "10.98.0.0/24", "via", "10.7.5.254", "dev", "br0")
	// As CNIs on Open vSwitch: pods are ports of a switch, and the node's stack is behind another
	// port of it.
	run(t, node, "ip", "link", "add", "br-int", "type", "bridge")
	run(t, node, "ip", "link", "set", "br-int", "up")
	run(t, node, "ip", "link", "add", "gw0", "type", "veth", "peer", "name", "gw0-port")
	run(t, node, "ip", "addr", "add", "10.7.8.1/24", "dev", "gw0")
	run(t, node, "ip", "link", "set", "gw0", "up")
	run(t, node, "ip", "link", "set", "gw0-port", "master", "br-int", "up")
	for n, address := range []string{"10.7.8.10/24", "10.7.8.11/24"} {
		host := []string{"ovs1", "ovs2"}[n]
		pod(node, "p"+host, address, host)
		run(t, node, "ip", "link", "set", host, "master", "br-int")
	}
	names := []string{"cni0", "veth1", "veth2", "veth5", "cilium_host", "lxc1", "lxc2", "lxc3", "lxc4", "mv0", "br0", "un0", "br-int", "gw0", "ovs1", "ovs2"}
	uplinks := map[uint32]bool{}
	for _, name := range []string{"un0", "br0"} {
		i, err := node.Index(name)
		if err != nil {
			t.Fatal(err)
		}
		uplinks[uint32(i)] = true
	}
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	var d PodDevices
	// find returns "source endpoint" by address, or the problem.
	find := func(dir string, addresses ...string) map[string]string {
		t.Helper()
		var pods []netip.Addr
		for _, a := range addresses {
			pods = append(pods, netip.MustParseAddr(a))
		}
		var found map[netip.Addr]PodDevice
		if err := node.Do(func() (err error) { found, err = d.Find(pods, uplinks, dir); return err }); err != nil {
			t.Fatal(err)
		}
		byIndex := map[uint32]string{0: "-"}
		for _, name := range names {
			if i, err := node.Index(name); err == nil {
				byIndex[uint32(i)] = name
			}
		}
		out := map[string]string{}
		for a, v := range found {
			end := byIndex[v.Endpoint.Ifindex]
			out[a.String()] = byIndex[v.Source] + " " + end
			if v.Strict != "" {
				out[a.String()] += " strict"
			}
			if v.Endpoint.MAC != macs[end] {
				t.Errorf("%s has MAC %x at %s; want the pod's, %x", a, v.Endpoint.MAC, end, macs[end])
			}
			if (v.Endpoint.Ifindex == 0) != (v.Problem != "") {
				t.Errorf("%s: endpoint %s, problem %q", a, end, v.Problem)
			}
		}
		return out
	}
	all := []string{"10.7.1.10", "10.7.2.10", "10.7.3.10", "10.7.3.11", "10.7.4.10", "10.7.5.10", "10.7.8.10", "10.7.8.11", "10.98.0.1", "10.99.0.1", "10.99.0.2"}
	want := map[string]string{
		"10.7.1.10": "cni0 veth1", "10.7.2.10": "veth2 veth2", "10.7.3.10": "lxc1 lxc1", "10.7.3.11": "lxc2 lxc2", "10.7.4.10": "mv0 -",
		"10.7.5.10": "br0 veth5", "10.7.8.10": "gw0 ovs1 strict", "10.7.8.11": "gw0 ovs2 strict", "10.98.0.1": "- -", "10.99.0.1": "- -", "10.99.0.2": "- -",
	}
	check := func(what string, want, got map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	for _, limit := range []struct{ device, pod, want, qdisc string }{
		{"veth2", "10.7.2.10", "veth2 veth2 strict", "root tbf rate 1mbit burst 10kb latency 50ms"}, {"lxc1", "10.7.3.10", "lxc1 lxc1 strict", "ingress"},
		{"lxc2", "10.7.3.11", "lxc2 lxc2", "clsact"},
	} {
		if _, err := node.Run("tc", strings.Fields("qdisc add dev "+limit.device+" "+limit.qdisc)...); err != nil {
			t.Fatal(err)
		}
		check(limit.qdisc, map[string]string{limit.pod: limit.want}, find(NamespacesDir, limit.pod))
		if _, err := node.Run("tc", strings.Fields("qdisc del dev "+limit.device+" "+limit.qdisc)...); err != nil {
			t.Fatal(err)
		}
	}
	check("the only pod of a shared device", map[string]string{"10.7.3.10": "lxc1 lxc1"}, find(NamespacesDir, "10.7.3.10"))
	check("the only pod behind a switch", map[string]string{"10.7.8.10": "gw0 ovs1 strict"}, find(NamespacesDir, "10.7.8.10"))
	check("all", want, find(NamespacesDir, all...))
	check("again", want, find(NamespacesDir, all...))
	pod(node, "third", "10.7.3.12/32", "lxc3")
	check("a new pod", map[string]string{"10.7.3.10": "lxc1 lxc1", "10.7.3.12": "lxc3 lxc3"}, find(NamespacesDir, "10.7.3.10", "10.7.3.12"))
	// As with a CNI that delivers to pods without a route.
	unrouted := pod(node, "unrouted", "10.7.6.10/32", "lxc4")
	check("no route to the pod", map[string]string{"10.7.6.10": "lxc4 lxc4"}, find(NamespacesDir, "10.7.6.10"))
	run(t, node, "ip", "link", "del", "lxc4")
	check("the device is gone", map[string]string{"10.7.6.10": "- -"}, find(NamespacesDir, "10.7.6.10"))
	if err := netns.Veth(netns.End{NS: unrouted, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("10.7.6.10/32")}}, netns.End{NS: node, Name: "lxc4"}); err != nil {
		t.Fatal(err)
	}
	mac, err := unrouted.MAC("eth0")
	if err != nil {
		t.Fatal(err)
	}
	macs["lxc4"] = [6]byte(mac)
	check("the device is made again", map[string]string{"10.7.6.10": "lxc4 lxc4"}, find(NamespacesDir, "10.7.6.10"))

	// Without namespaces, the node knows what its routes lead to, and the MAC addresses of pods that
	// have sent a packet; never those of a shared device.
	d = PodDevices{}
	for _, dir := range []string{"/nonexistent", filepath.Dir(junk)} {
		check("no namespaces", map[string]string{"10.7.1.10": "cni0 -", "10.7.2.10": "veth2 -", "10.7.3.10": "- -", "10.7.3.11": "- -", "10.7.8.10": "- -"},
			find(dir, "10.7.1.10", "10.7.2.10", "10.7.3.10", "10.7.3.11", "10.7.8.10"))
	}
	run(t, bridged, "busybox", "ping", "-c", "1", "-W", "5", "10.7.1.1")
	run(t, routed, "ip", "route", "replace", "default", "dev", "eth0")
	run(t, routed, "busybox", "ping", "-c", "1", "-W", "5", "10.7.2.1")
	run(t, node, "busybox", "sh", "-c", "ping -c 1 -W 1 10.7.3.10 || true") // a NOARP neighbour
	check("no namespaces, pods have sent", map[string]string{"10.7.1.10": "cni0 veth1", "10.7.2.10": "veth2 veth2", "10.7.3.10": "- -", "10.7.8.10": "- -"},
		find("/nonexistent", "10.7.1.10", "10.7.2.10", "10.7.3.10", "10.7.8.10"))
}
