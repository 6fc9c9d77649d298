package netdev

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What Submariner's pods leave on a node, in the form in which `ip`, iptables and nft make it,
// goes; what is next to it stays.
func TestRemoveSubmariner(t *testing.T) {
	ns := newNode(t)
	for _, other := range []string{
		"ip link add cni0 type bridge && ip link set cni0 up",
		"ip route add 198.51.100.0/24 dev cni0 table 149", "ip rule add pref 200 lookup 149",
		"ip xfrm policy add src 10.9.0.0/16 dst 10.1.0.0/16 dir fwd tmpl src 192.0.2.9 dst 192.0.2.1 proto esp reqid 5 mode tunnel",
		"ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir in if_id 7 tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 6 mode tunnel",
		// the kernel's own chain stays, empty
		"iptables -t mangle -A POSTROUTING -j ACCEPT && iptables -t mangle -D POSTROUTING -j ACCEPT",
	} {
		run(t, ns, "sh", "-c", other)
	}
	remote := []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("242.1.0.0/16")}
	all := func() string {
		return everything(t, ns) + run(t, ns, "sh", "-c", "ip xfrm policy; ip route show table 150 2>/dev/null || true")
	}
	remove := func() {
		t.Helper()
		if err := ns.Do(func() error { return RemoveSubmariner(remote) }); err != nil {
			t.Fatal(err)
		}
	}
	remove() // where there is nothing
	before := all()
	for _, theirs := range []string{
		"ip link add vx-submariner type vxlan id 100 dstport 4800 dev un0 && ip link set vx-submariner up",
		"ip route add 10.2.0.0/16 dev vx-submariner proto static",
		"ip link add vxlan-tunnel type vxlan id 1000 dstport 4500 dev un0",
		"ip route add 10.2.0.0/16 dev un0 table 150", "ip rule add lookup 150", "ip route add 242.1.0.0/16 dev cni0 table 149",
		"ip xfrm policy add src 10.2.0.0/16 dst 10.1.0.0/16 dir fwd tmpl src 192.0.2.2 dst 192.0.2.1 proto esp reqid 16389 mode tunnel",
		"iptables -t nat -N SUBMARINER-POSTROUTING && iptables -t nat -I POSTROUTING -j SUBMARINER-POSTROUTING",
		"iptables -t nat -N SM-GN-EGRESS-CLUSTER && iptables -t nat -A SUBMARINER-POSTROUTING -j SM-GN-EGRESS-CLUSTER",
		"iptables -t nat -A SUBMARINER-POSTROUTING -s 10.1.0.0/16 -d 10.2.0.0/16 -j ACCEPT",
		"iptables -N SUBMARINER-INPUT && iptables -A INPUT -p udp -m udp -j SUBMARINER-INPUT",
		"iptables -t mangle -N SUBMARINER-POSTROUTING && iptables -t mangle -I POSTROUTING -j SUBMARINER-POSTROUTING",
		"nft add table ip submariner && nft add chain ip submariner SUBMARINER-INPUT",
	} {
		run(t, ns, "sh", "-c", theirs)
	}
	remove()
	if diff := cmp.Diff(normal(before), normal(all())); diff != "" {
		t.Errorf("left or taken too much (-before +after):\n%s", diff)
	}
}
