package netdev

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/pelago-net/pelago/dataplane"
)

// Next hops are looked up once, and again after a change that concerns them, and no other one.
func TestHops(t *testing.T) {
	ns := newNode(t)
	addr := netip.MustParseAddr
	near, far, away := addr("172.16.1.9"), addr("192.0.2.7"), addr("198.51.100.1")
	run(t, ns, "sh", "-c", "ip route add 192.0.2.0/24 via 172.16.1.3; ip route del default; true")
	un0, err := ns.Index("un0")
	if err != nil {
		t.Fatal(err)
	}
	var h Hops
	resolve := func(addresses ...netip.Addr) (out map[netip.Addr]dataplane.Hop) {
		t.Helper()
		if err := ns.Do(func() error { out, _ = h.Resolve(addresses); return nil }); err != nil {
			t.Fatal(err)
		}
		return out
	}
	check := func(what string, want map[netip.Addr]dataplane.Hop, got map[netip.Addr]dataplane.Hop) {
		t.Helper()
		if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s: -want +got\n%s", what, diff)
		}
	}
	hop := func(a, next netip.Addr) dataplane.Hop {
		return dataplane.Hop{Address: a, Next: next, Ifindex: uint32(un0)}
	}
	first := map[netip.Addr]dataplane.Hop{near: hop(near, near), far: hop(far, addr("172.16.1.3"))}
	check("an address without a route is left out", first, resolve(near, far, away))
	run(t, ns, "sh", "-c", "ip route replace 192.0.2.0/24 via 172.16.1.4; ip route add 198.51.100.0/24 via 172.16.1.5")
	moved := map[netip.Addr]dataplane.Hop{near: hop(near, near), far: hop(far, addr("172.16.1.4")), away: hop(away, addr("172.16.1.5"))}
	remembered := map[netip.Addr]dataplane.Hop{near: first[near], far: first[far], away: moved[away]}
	check("remembered; without a route it was looked up again", remembered, resolve(near, far, away))
	h.RouteChanged(netlink.Route{Dst: ipNet(netip.MustParsePrefix("203.0.113.0/24"))})
	h.DeviceChanged(un0 + 1)
	check("changes of others", remembered, resolve(near, far, away))
	h.RouteChanged(netlink.Route{Dst: ipNet(netip.MustParsePrefix("192.0.2.0/24"))})
	check("its route has changed", moved, resolve(near, far, away))
	run(t, ns, "ip", "route", "replace", "192.0.2.0/24", "via", "172.16.1.3")
	for what, forget := range map[string]func(){
		"its device": func() { h.DeviceChanged(un0) }, "the default route": func() { h.RouteChanged(netlink.Route{}) }, "everything": h.Forget,
	} {
		h.known = map[netip.Addr]way{near: {hop: moved[near]}, far: {hop: moved[far]}}
		forget()
		check(what+" has changed", map[netip.Addr]dataplane.Hop{near: hop(near, near), far: hop(far, addr("172.16.1.3"))}, resolve(near, far))
	}
	if len(h.known) != 2 {
		t.Errorf("%d addresses are remembered, want those asked for last", len(h.known))
	}
}

// A change while an address is looked up: what was found is used once, and not remembered.
func TestHopsChangeMeanwhile(t *testing.T) {
	var h Hops
	a, b := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	h.known = map[netip.Addr]way{}
	h.asked, h.stale = map[netip.Addr]bool{a: true, b: true}, map[netip.Addr]bool{}
	h.RouteChanged(netlink.Route{Dst: ipNet(netip.MustParsePrefix("127.0.0.1/32"))})
	if !h.stale[a] || h.stale[b] {
		t.Errorf("stale: %v, want %s alone", h.stale, a)
	}
	h.Forget()
	if !h.stale[b] {
		t.Error("after Forget, an address is not stale")
	}
}

// All devices of a multipath route are known, and a change of any of them is noticed.
func TestHopsOfMultipathRoutes(t *testing.T) {
	ns := newNode(t)
	addr := netip.MustParseAddr
	run(t, ns, "sh", "-c", "ip link add un1 type veth peer name un1-end && ip link set un1-end up && ip link set un1 up && ip addr add 172.17.1.2/24 dev un1 && "+
		"ip route add 192.0.2.0/24 nexthop via 172.16.1.3 dev un0 nexthop via 172.17.1.3 dev un1")
	index := map[string]uint32{}
	for _, name := range []string{"un0", "un1"} {
		i, err := ns.Index(name)
		if err != nil {
			t.Fatal(err)
		}
		index[name] = uint32(i)
	}
	next := map[uint32]netip.Addr{index["un0"]: addr("172.16.1.3"), index["un1"]: addr("172.17.1.3")}
	var h Hops
	for i := range 20 {
		far := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		var hops map[netip.Addr]dataplane.Hop
		var others map[netip.Addr][]uint32
		if err := ns.Do(func() error { hops, others = h.Resolve([]netip.Addr{far, addr("172.16.1.9")}); return nil }); err != nil {
			t.Fatal(err)
		}
		hop := hops[far]
		if len(others) != 1 || len(others[far]) != 1 || hop.Ifindex+others[far][0] != index["un0"]+index["un1"] || hop.Ifindex == others[far][0] || hop.Next != next[hop.Ifindex] {
			t.Errorf("%s: by %+v and %v, want one by %v each", far, hop, others, index)
		}
		if h.DeviceChanged(int(others[far][0])); len(h.known) == 2 {
			t.Errorf("%s is remembered after a change of its other device", far)
		}
	}
}
