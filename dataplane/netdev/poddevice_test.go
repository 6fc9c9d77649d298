package netdev

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/test/netns"
)

// Whatever the CNI, packets of a pod are accepted from the device at which they arrive.
func TestPodDevices(t *testing.T) {
	node := newNode(t)
	other := netns.ForTest(t, "other") // another node with a pod of the same address
	pod := func(node *netns.NS, name, address, host string) {
		t.Helper()
		ns := netns.ForTest(t, name)
		if err := netns.Veth(netns.End{NS: ns, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix(address)}}, netns.End{NS: node, Name: host}); err != nil {
			t.Fatal(err)
		}
	}
	// A bridge, and a route for each pod.
	run(t, node, "ip", "link", "add", "cni0", "type", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.1.1/24", "dev", "cni0")
	run(t, node, "ip", "link", "set", "cni0", "up")
	pod(node, "bridged", "10.7.1.10/24", "veth1")
	run(t, node, "ip", "link", "set", "veth1", "master", "cni0")
	pod(node, "routed", "10.7.2.10/24", "veth2")
	run(t, node, "ip", "route", "add", "10.7.2.10", "dev", "veth2")
	// As Cilium: all pods are routed to one end of a veth pair, and each has a veth device of its
	// own.
	run(t, node, "ip", "link", "add", "cilium_host", "type", "veth", "peer", "name", "cilium_net")
	run(t, node, "ip", "link", "set", "cilium_host", "up")
	run(t, node, "ip", "link", "set", "cilium_net", "up")
	run(t, node, "ip", "route", "add", "10.7.3.0/24", "dev", "cilium_host")
	pod(other, "stranger", "10.7.3.10/32", "lxc9")
	pod(node, "first", "10.7.3.10/32", "lxc1")
	pod(node, "second", "10.7.3.11/32", "lxc2")
	// A device that is shared, and pods that share it (macvlan).
	run(t, node, "ip", "link", "add", "mv0", "link", "un0", "type", "macvlan", "mode", "bridge")
	run(t, node, "ip", "link", "set", "mv0", "up")
	run(t, node, "ip", "route", "add", "10.7.4.0/24", "dev", "mv0")
	// A bridge with the node's uplink and pods, and routes by it and by the other uplink that are
	// no pod's.
	run(t, node, "ip", "link", "add", "br0", "type", "bridge")
	run(t, node, "ip", "addr", "add", "10.7.5.1/24", "dev", "br0")
	run(t, node, "ip", "link", "set", "br0", "up")
	pod(node, "beside", "10.7.5.10/24", "veth5")
	run(t, node, "ip", "link", "set", "veth5", "master", "br0")
	run(t, node, "ip", "route", "add", "10.98.0.0/24", "via", "10.7.5.254", "dev", "br0")
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
	find := func(dir string, addresses ...string) map[string]string {
		t.Helper()
		var pods []netip.Addr
		for _, a := range addresses {
			pods = append(pods, netip.MustParseAddr(a))
		}
		var found map[netip.Addr]uint32
		if err := node.Do(func() (err error) { found, err = d.Find(pods, uplinks, dir); return err }); err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for a, ifindex := range found {
			for _, name := range []string{"cni0", "veth1", "veth2", "cilium_host", "lxc1", "lxc2", "lxc3", "lxc4", "mv0", "br0", "un0"} {
				if i, err := node.Index(name); err == nil && uint32(i) == ifindex {
					names[a.String()] = name
				}
			}
		}
		return names
	}
	all := []string{"10.7.1.10", "10.7.2.10", "10.7.3.10", "10.7.3.11", "10.7.4.10", "10.7.5.10", "10.98.0.1", "10.99.0.1"}
	want := map[string]string{"10.7.1.10": "cni0", "10.7.2.10": "veth2", "10.7.3.10": "lxc1", "10.7.3.11": "lxc2", "10.7.4.10": "mv0", "10.7.5.10": "br0"}
	check := func(what string, want, got map[string]string) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	check("the only pod of a shared device", map[string]string{"10.7.3.10": "lxc1"}, find(NamespacesDir, "10.7.3.10"))
	check("all", want, find(NamespacesDir, all...))
	check("again", want, find(NamespacesDir, all...))
	pod(node, "third", "10.7.3.12/32", "lxc3")
	check("a new pod", map[string]string{"10.7.3.10": "lxc1", "10.7.3.12": "lxc3"}, find(NamespacesDir, "10.7.3.10", "10.7.3.12"))
	// As with a CNI that delivers to pods without a route.
	pod(node, "unrouted", "10.7.6.10/32", "lxc4")
	check("no route to the pod", map[string]string{"10.7.6.10": "lxc4"}, find(NamespacesDir, "10.7.6.10"))
	run(t, node, "ip", "link", "del", "lxc4")
	check("the device is gone", nil, find(NamespacesDir, "10.7.6.10"))
	d = PodDevices{}
	check("no directory", map[string]string{"10.7.3.10": "cilium_host", "10.7.3.11": "cilium_host"}, find("/nonexistent", "10.7.3.10", "10.7.3.11"))
	check("no namespace in it", map[string]string{"10.7.3.10": "cilium_host", "10.7.3.11": "cilium_host"}, find(filepath.Dir(junk), "10.7.3.10", "10.7.3.11"))
}
