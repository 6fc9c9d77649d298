package netdev

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/test/netns"
)

// chainRules lists a chain of the table filter.
func chainRules(t *testing.T, ns *netns.NS, program, chain string) []string {
	t.Helper()
	var out []string
	for line := range strings.Lines(run(t, ns, program, "-S", chain)) {
		if rule, ok := strings.CutPrefix(strings.TrimSpace(line), "-A "+chain+" "); ok {
			out = append(out, rule)
		}
	}
	return out
}

// Our rules are last, so that policy engines decide first, but before a rule that drops what they
// accept: also when that one is added later, and without moving otherwise. They need no comment.
func TestFirewallBeforeReject(t *testing.T) {
	for _, program := range []string{"iptables", "iptables-legacy"} {
		t.Run(program, func(t *testing.T) { beforeReject(t, program) })
	}
}

func beforeReject(t *testing.T, program string) {
	const ours, rejects = "-j PELAGO-INPUT", "-j REJECT --reject-with icmp-host-prohibited"
	engine := []string{"-s 192.0.2.0/24 -j DROP", "-m conntrack --ctstate ESTABLISHED -j ACCEPT", "-p tcp -m tcp --dport 22 -j ACCEPT"}
	ns := newNode(t)
	must := func() Obstacles {
		t.Helper()
		var o Obstacles
		if err := ns.Do(func() (err error) {
			o, err = Firewall(Filter{Peers: []Arrival{{From: netip.MustParseAddr("172.16.1.9")}}})
			return errors.Join(err, o.Err)
		}); err != nil {
			t.Fatal(err)
		}
		return o
	}
	for _, rule := range engine {
		run(t, ns, program, append([]string{"-A", "INPUT"}, strings.Fields(rule)...)...)
	}
	for _, step := range []struct {
		change string
		want   []string
	}{
		{"true", slices.Concat(engine, []string{ours})},
		{"iptables -A INPUT " + rejects, slices.Concat(engine, []string{ours, rejects})},
		{"iptables -D INPUT " + ours + "; iptables -A INPUT " + ours, slices.Concat(engine, []string{ours, rejects})},
		{"iptables -I INPUT 4 " + rejects, slices.Concat(engine, []string{ours, rejects, rejects})},
		{"iptables -A INPUT " + ours, slices.Concat(engine, []string{ours, rejects, rejects})},
		{"iptables -D INPUT " + rejects + "; iptables -D INPUT " + rejects, slices.Concat(engine, []string{ours})},
		// a rule for other packets
		{"iptables -A INPUT -p tcp -j DROP", slices.Concat(engine, []string{ours, "-p tcp -j DROP"})},
		{"iptables -F INPUT; iptables -A INPUT -p tcp -j DROP", []string{"-p tcp -j DROP", ours}},
		// all packets of the port, also before ours
		{"iptables -I INPUT -p udp -m udp --dport 4800 -j DROP", []string{ours, "-p udp -m udp --dport 4800 -j DROP", "-p tcp -j DROP"}},
	} {
		run(t, ns, "sh", "-c", strings.ReplaceAll(step.change, "iptables", program))
		for range 2 {
			if o := must(); len(o.Blocked) > 0 {
				t.Errorf("after %q: blocked %q", step.change, o.Blocked)
			}
			if diff := cmp.Diff(step.want, chainRules(t, ns, program, "INPUT")); diff != "" {
				t.Errorf("after %q (-want +got):\n%s", step.change, diff)
			}
		}
	}
	for line := range strings.Lines(run(t, ns, program+"-save")) {
		if strings.Contains(line, "pelago") && strings.Contains(line, "--comment") {
			t.Errorf("a rule has a comment, for which the kernel may lack the module: %s", line)
		}
	}
	if err := ns.Do(removeFirewall); err != nil {
		t.Fatal(err)
	}
	if got := run(t, ns, program+"-save"); strings.Contains(got, "PELAGO") {
		t.Errorf("rules are left:\n%s", got)
	}
}

// What Pelago may not change is reported with its table, chain and remedy.
func TestFirewallObstacles(t *testing.T) {
	const firewalld = `
table inet firewalld {
	chain filter_IN_public {
		tcp dport 22 accept
		meta l4proto { icmp, ipv6-icmp } accept
		reject with icmpx admin-prohibited
	}
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		iifname "un0" goto filter_IN_public
		goto filter_IN_public
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state { established, related } accept
		ct status dnat accept
		iifname "lo" accept
		ct state invalid drop
		ip saddr { 10.7.0.0/16, 10.77.0.0/16 } accept
		reject with icmpx admin-prohibited
	}
}`
	for name, tt := range map[string]struct {
		rules string // of nft
		want  []string
	}{
		"none": {"", nil},
		"firewalld": {firewalld, []string{
			"chain filter_IN_public of table inet firewalld (nft) rejects UDP 4800, so that large TCP transfers to pods of this node stall: firewall-cmd --permanent --add-port=4800/udp && firewall-cmd --reload",
			"chain filter_FORWARD of table inet firewalld (nft) rejects connections from other clusters to pods of this node: firewall-cmd --permanent --zone=trusted --add-interface=pelago0 && firewall-cmd --reload",
		}},
		"a default of drop": {`
table inet filter {
	chain input { type filter hook input priority 0; policy drop; ct state vmap { established : accept, related : accept, invalid : drop }; iif lo accept; tcp dport { 22, 6443, 10250 } accept; }
	chain forward { type filter hook forward priority 0; policy drop; ct state established accept; }
}`, []string{
			"the policy of chain input in table inet filter (nft) drops UDP 4800, so that large TCP transfers to pods of this node stall: nft insert rule inet filter input udp dport 4800 accept, also in the file that loads it",
			"the policy of chain forward in table inet filter (nft) drops connections from other clusters to pods of this node: nft insert rule inet filter forward iifname pelago0 accept, also in the file that loads it",
			"the policy of chain forward in table inet filter (nft) drops connections from pods of this node to other clusters: nft insert rule inet filter forward oifname pelago0 accept, also in the file that loads it",
		}},
		"the peer is allowed": {`
table inet filter {
	set nodes { type ipv4_addr; flags interval; elements = { 172.16.1.0/24, 192.0.2.1 } }
	chain input { type filter hook input priority 0; policy drop; iifname "un0" ip saddr @nodes accept; }
}`, nil},
		"another peer is allowed": {`
table ip edge {
	set nodes { type ipv4_addr; flags interval; elements = { 172.16.1.0/29, 192.0.2.1 } }
	chain own { iifname "un0" ip saddr @nodes accept; drop; }
	chain input { type filter hook input priority -10; meta l4proto vmap { tcp : accept, udp : jump own }; }
}`, []string{
			"chain own of table ip edge (nft) drops UDP 4800, so that large TCP transfers to pods of this node stall: nft insert rule ip edge input udp dport 4800 accept, also in the file that loads it",
		}},
		"nobody knows": {`
table ip edge {
	chain input { type filter hook input priority -10; policy drop; meta mark 7 accept; }
	chain forward { type filter hook forward priority -10; limit rate 10/second accept; drop; }
}`, nil},
	} {
		t.Run(name, func(t *testing.T) {
			ns := newNode(t)
			if out, err := ns.RunInput(tt.rules, "nft", "-f", "-"); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			index, err := ns.Index("un0")
			if err != nil {
				t.Fatal(err)
			}
			f := Filter{CablePort: 4500, Peers: []Arrival{{netip.MustParseAddr("172.16.1.9"), index}}, Remote: []netip.Addr{netip.MustParseAddr("120.2.0.1")}}
			before := ""
			for range 2 {
				before = run(t, ns, "nft", "list", "ruleset")
				var got Obstacles
				err = ns.Do(func() (err error) {
					if _, err := EnsureOverlay(1450); err != nil {
						return err
					}
					got, err = Firewall(f)
					return errors.Join(err, got.Err)
				})
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got.Blocked); diff != "" {
					t.Errorf("-want +got:\n%s", diff)
				}
			}
			if diff := cmp.Diff(before, run(t, ns, "nft", "list", "ruleset")); diff != "" {
				t.Errorf("a second call changed:\n%s", diff)
			}
		})
	}
}
