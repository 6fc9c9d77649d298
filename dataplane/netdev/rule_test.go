package netdev

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Without the rule, in whatever table a packet for a remote prefix is looked up, it does not leave:
// neither by main, nor by the table of a CNI's rule for one pod.
func TestNothingLeavesWithoutTheRule(t *testing.T) {
	ns := newNode(t)
	run(t, ns, "sh", "-c", "ip rule add from 10.7.1.5 lookup 101 pref 1536; ip route add default dev un0 table 101; ip link add pod type veth peer name podn; ip link set pod up; ip link set podn up; ip addr add 10.7.1.1/24 dev pod; sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.pod.rp_filter=0")
	ensure(t, ns, config())
	for _, from := range []string{"", "from 10.7.1.9 iif pod", "from 10.7.1.5 iif pod"} {
		lookup := "ip route get 120.2.0.9 " + from
		if got := run(t, ns, "sh", "-c", lookup); !strings.Contains(got, "dev pelago0") {
			t.Errorf("%s: %s", lookup, got)
		}
		run(t, ns, "ip", "rule", "del", "lookup", "4800")
		if got, err := ns.Run("sh", "-c", lookup); err == nil {
			t.Errorf("without the rule, %s: %s", lookup, got)
		}
		ensure(t, ns, config())
	}
	// The rule of the CNI goes, and with it the route in its table.
	run(t, ns, "ip", "rule", "del", "lookup", "101")
	ensure(t, ns, config())
	if got, want := strings.TrimSpace(run(t, ns, "ip", "route", "show", "table", "101")), "default dev un0 scope link"; got != want {
		t.Errorf("table 101: %q, want %q", got, want)
	}
}

// Rules of others before ours are named if their tables route a remote prefix, and no other ones.
func TestPreceding(t *testing.T) {
	remote := []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24")}
	for _, tt := range []struct {
		name, rules, want string // want: what the rule is called; "": it is not named
	}{
		{"none", "true", ""},
		{"a security group's interface (amazon-vpc-cni-k8s)", "ip rule add iif un0 lookup 101 pref 10; ip route add default dev un0 table 101", `"10: from all iif un0 lookup 101"`},
		{"a prefix around a remote one", "ip rule add from 10.7.0.0/16 lookup 101 pref 50; ip route add 120.0.0.0/8 dev un0 table 101", `"50: from 10.7.0.0/16 lookup 101"`},
		{"to other addresses", "ip rule add to 192.0.2.0/24 lookup 101 pref 10; ip route add default dev un0 table 101", ""},
		{"a table without such a route", "ip rule add from 10.7.0.0/16 lookup 101 pref 10; ip route add 192.0.2.0/24 dev un0 table 101", ""},
		{"marked packets (Cilium's proxy)", "ip rule add fwmark 0x200/0xf00 lookup 2004 pref 9; ip route add default dev un0 table 2004", ""},
		{"local addresses (Cilium)", "ip rule add lookup local pref 100; ip rule del pref 0; true", ""},
		{"main without its default route (wg-quick)", "ip rule add lookup main suppress_prefixlength 0 pref 20; ip route replace default dev un0", ""},
		{"after ours", "ip rule add lookup 101 pref 110; ip route add default dev un0 table 101", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ns := newNode(t)
			ensure(t, ns, config())
			run(t, ns, "sh", "-c", tt.rules)
			var got []string
			err := ns.Do(func() (err error) { got, err = Preceding(remote); return err })
			if err != nil {
				t.Fatal(err)
			}
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("%q, want one that names %s", got, tt.want)
			}
		})
	}
}

// What others remove is reported at once, with whose it was.
func TestSubscriptions(t *testing.T) {
	ns := newNode(t)
	rules, filters, done := make(chan RuleUpdate, 64), make(chan FilterUpdate, 64), make(chan struct{})
	err := ns.Do(func() error {
		if err := RuleSubscribe(rules, done); err != nil {
			return err
		}
		return FilterSubscribe(filters, done)
	})
	if err != nil {
		t.Fatal(err)
	}
	ensure(t, ns, config())
	run(t, ns, "sh", "-c", "ip rule add lookup 101 pref 10; ip rule del lookup 4800; tc qdisc add dev un0 clsact; tc filter add dev un0 ingress bpf bytecode '1,6 0 0 0' flowid 1:1; tc qdisc del dev un0 clsact; ip rule del pref 10")
	var got []string
	for u := range rules {
		got = append(got, map[uint16]string{32: "new", 33: "deleted"}[u.Type]+map[bool]string{true: " ours", false: ""}[u.Ours])
		if len(got) == 4 {
			break
		}
	}
	if diff := cmp.Diff([]string{"new ours", "new", "deleted ours", "deleted"}, got); diff != "" {
		t.Errorf("rules -want +got\n%s", diff)
	}
	var kinds []uint16
	for u := range filters {
		if kinds = append(kinds, u.Type); u.Type == 37 {
			break
		}
	}
	if !slices.Contains(kinds, 44) || !slices.Contains(kinds, 37) {
		t.Errorf("filters: %v, want RTM_NEWTFILTER (44) and RTM_DELQDISC (37)", kinds)
	}
	close(done)
	for range rules { // until it is closed
	}
	for range filters {
	}
}
