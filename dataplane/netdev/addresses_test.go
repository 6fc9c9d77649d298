package netdev

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/pelago-net/pelago/test/netns"
)

// ipvs makes a device as kube-proxy's in IPVS mode, with so many ClusterIPs.
func ipvs(t *testing.T, ns *netns.NS, services int) {
	t.Helper()
	var batch strings.Builder
	batch.WriteString("link add kube-ipvs0 type bridge\n") // a dummy; not every kernel has these
	for i := range services {
		fmt.Fprintf(&batch, "addr add 10.96.%d.%d/32 dev kube-ipvs0\n", i/250, 1+i%250)
	}
	if out, err := ns.RunInput(batch.String(), "ip", "-batch", "-"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// Addresses of dummy devices are ignored, unless one is the InternalIP of the node, or it uses
// one as source.
func TestAddresses(t *testing.T) {
	addr := netip.MustParseAddr
	for name, tt := range map[string]struct {
		prepare string
		own     string
		want    []string
		devices []string
	}{
		"a second card":                     {"ip link add un1 type bridge && ip addr add 10.9.0.1/24 dev un1", "172.16.1.2", []string{"10.9.0.1", "172.16.1.2"}, []string{"un0"}},
		"the address on two cards":          {"ip link add un1 type bridge && ip addr add 172.16.1.2/32 dev un1", "172.16.1.2", []string{"172.16.1.2", "172.16.1.2"}, []string{"un0", "un1"}},
		"the address on a dummy":            {"ip addr flush dev kube-ipvs0 && ip addr add 10.9.0.1/32 dev kube-ipvs0 && ip addr add 10.9.0.2/32 dev kube-ipvs0", "10.9.0.1", []string{"10.9.0.1", "10.9.0.2", "172.16.1.2"}, nil},
		"the address on lo":                 {"ip addr add 10.9.0.1/32 dev lo", "10.9.0.1", []string{"10.9.0.1", "172.16.1.2"}, nil},
		"a source of a route":               {"ip addr add 10.9.0.1/32 dev kube-ipvs0 && ip route add 203.0.113.0/24 via 172.16.1.3 src 10.9.0.1", "172.16.1.2", []string{"10.9.0.1", "172.16.1.2"}, []string{"un0"}},
		"a network on a dummy":              {"ip addr add 10.9.0.1/24 dev kube-ipvs0 && ip link set kube-ipvs0 up", "172.16.1.2", []string{"10.9.0.1", "172.16.1.2"}, []string{"un0"}},
		"the node's address is not a local": {"true", "198.51.100.1", []string{"172.16.1.2"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNode(t)
			ipvs(t, ns, 10)
			run(t, ns, "sh", "-c", "ip link set lo up; "+tt.prepare)
			var got []netip.Addr
			var devices []uint32
			if err := ns.Do(func() (err error) { got, devices, err = new(Addresses).Read(addr(tt.own)); return err }); err != nil {
				t.Fatal(err)
			}
			slices.SortFunc(got, netip.Addr.Compare)
			var want []netip.Addr
			for _, text := range tt.want {
				want = append(want, addr(text))
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			var wantDevices []uint32
			for _, name := range tt.devices {
				index, err := ns.Index(name)
				if err != nil {
					t.Fatal(err)
				}
				wantDevices = append(wantDevices, uint32(index))
			}
			if diff := cmp.Diff(wantDevices, devices); diff != "" {
				t.Errorf("devices -want +got\n%s", diff)
			}
		})
	}
}

func TestKindOf(t *testing.T) {
	named := func(name string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name} }
	for link, dummy := range map[netlink.Link]bool{
		&netlink.Dummy{LinkAttrs: named("nodelocaldns")}: true, &netlink.Dummy{LinkAttrs: named("kube-ipvs0")}: true,
		&netlink.Veth{LinkAttrs: named("kube-ipvs0")}: true, &netlink.Veth{LinkAttrs: named("eth0")}: false,
	} {
		if got := kindOf(link); got.dummy != dummy {
			t.Errorf("%s %s: %+v, want dummy %t", link.Type(), link.Attrs().Name, got, dummy)
		}
	}
}

// Only changes that may affect the addresses invalidate the cache.
func TestAddressesChange(t *testing.T) {
	ns := newNode(t)
	ipvs(t, ns, 3)
	own := netip.MustParseAddr("172.16.1.2")
	ipvs0, err := ns.Index("kube-ipvs0")
	if err != nil {
		t.Fatal(err)
	}
	un0, err := ns.Index("un0")
	if err != nil {
		t.Fatal(err)
	}
	var a Addresses
	event := func(ifindex int, ip string) netlink.AddrUpdate {
		return netlink.AddrUpdate{LinkIndex: ifindex, LinkAddress: net.IPNet{IP: net.ParseIP(ip), Mask: net.CIDRMask(32, 32)}}
	}
	local := func(ifindex int) netlink.Route {
		return netlink.Route{Table: unix.RT_TABLE_LOCAL, LinkIndex: ifindex, Src: own.AsSlice()}
	}
	for _, tt := range []struct {
		what    string
		change  func() bool
		matters bool
		forgets bool
	}{
		{"a ClusterIP", func() bool { return a.AddressChanged(event(ipvs0, "10.96.7.7")) }, false, false},
		{"the route of one", func() bool { return a.RouteChanged(local(ipvs0)) }, false, false},
		{"an address of a card", func() bool { return a.AddressChanged(event(un0, "10.9.0.1")) }, true, true},
		{"its route", func() bool { return a.RouteChanged(local(un0)) }, true, false},
		{"the node's address on a dummy", func() bool { return a.AddressChanged(event(ipvs0, own.String())) }, true, true},
		{"a route", func() bool { return a.RouteChanged(netlink.Route{Table: unix.RT_TABLE_MAIN}) }, true, false},
		{"a route with a source", func() bool { return a.RouteChanged(netlink.Route{Table: unix.RT_TABLE_MAIN, Src: own.AsSlice()}) }, true, true},
		{"a device", func() bool { a.DeviceChanged(ipvs0); return true }, true, true},
		{"anything", func() bool { a.Forget(); return true }, true, true},
	} {
		err := ns.Do(func() error {
			if _, _, err := a.Read(own); err != nil || a.known == nil {
				return fmt.Errorf("read: %w, remembered: %t", err, a.known != nil)
			}
			if got := tt.change(); got != tt.matters {
				t.Errorf("%s: matters %t, want %t", tt.what, got, tt.matters)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if got := a.known == nil; got != tt.forgets {
			t.Errorf("%s: forgotten %t, want %t", tt.what, got, tt.forgets)
		}
	}
}
