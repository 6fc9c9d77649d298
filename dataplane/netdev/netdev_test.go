package netdev

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pelago-net/pelago/dataplane"
	"github.com/pelago-net/pelago/test/netns"
)

var made int // namespaces have unique names

// newNode is a namespace with an uplink of 1,500 bytes and a default route, as a node has them, and
// a firewall of its own.
func newNode(t *testing.T) *netns.NS {
	t.Helper()
	made++
	node, router := netns.ForTest(t, fmt.Sprintf("node%d", made)), netns.ForTest(t, fmt.Sprintf("router%d", made))
	err := netns.Veth(
		netns.End{NS: node, Name: "un0", Addrs: []netip.Prefix{netip.MustParsePrefix("172.16.1.2/24")}},
		netns.End{NS: router, Name: "eth0", Addrs: []netip.Prefix{netip.MustParsePrefix("172.16.1.254/24")}})
	if err == nil {
		err = node.AddRoute(netip.MustParsePrefix("0.0.0.0/0"), netip.MustParseAddr("172.16.1.254"), "un0")
	}
	if err != nil {
		t.Fatal(err)
	}
	run(t, node, "iptables", "-A", "FORWARD", "-i", "somebody", "-j", "DROP", "-m", "comment", "--comment", "somebody's")
	run(t, node, "iptables", "-t", "nat", "-A", "POSTROUTING", "-o", "un0", "-j", "MASQUERADE")
	run(t, node, "iptables", "-t", "raw", "-N", "SOMEBODYS")
	run(t, node, "nft", "add table ip somebody")
	// iptables makes a chain of the kernel's when it first needs it and leaves it there empty.
	run(t, node, "iptables", "-A", "INPUT", "-j", "ACCEPT")
	run(t, node, "iptables", "-D", "INPUT", "-j", "ACCEPT")
	return node
}

func run(t *testing.T, ns *netns.NS, name string, args ...string) string {
	t.Helper()
	out, err := ns.Run(name, args...)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// everything is all that Ensure and Firewall may have changed, as tools show it.
func everything(t *testing.T, ns *netns.NS) string {
	t.Helper()
	var b strings.Builder
	for _, command := range []string{
		"ip -4 rule", "ip -4 route show table all", "ip -br link", "ip -d link show type vxlan", "nft list ruleset",
	} {
		b.WriteString("# " + command + "\n" + run(t, ns, "sh", "-c", command))
	}
	return strings.ReplaceAll(b.String(), " linkdown", "")
}

func ensure(t *testing.T, ns *netns.NS, c Config) (index int) {
	t.Helper()
	err := ns.Do(func() (err error) {
		if index, err = EnsureOverlay(c.MTU); err != nil {
			return err
		}
		c.Edge = index
		if _, err := Ensure(c); err != nil {
			return err
		}
		return firewallAdded(Filter{CablePort: c.CablePort})
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// firewallAdded is Firewall where nothing is in its way.
func firewallAdded(f Filter) error {
	obstacles, err := Firewall(f)
	if len(obstacles.Blocked) > 0 {
		err = errors.Join(err, fmt.Errorf("blocked: %q", obstacles.Blocked))
	}
	return errors.Join(obstacles.Err, err)
}

func config(change ...func(*Config)) Config {
	c := Config{
		Source: netip.MustParseAddr("172.16.1.2"), MTU: 1450, CablePort: 4500,
		Prefixes: []netip.Prefix{netip.MustParsePrefix("120.2.0.0/24"), netip.MustParsePrefix("120.3.0.0/16")},
	}
	for _, f := range change {
		f(&c)
	}
	return c
}

// A second call changes nothing, Remove leaves nothing and may be called where there is nothing.
func TestEnsureAndRemove(t *testing.T) {
	ns := newNode(t)
	if err := ns.Do(Remove); err != nil {
		t.Fatalf("where there is nothing: %v", err)
	}
	before := everything(t, ns)
	index := ensure(t, ns, config())
	first := everything(t, ns)
	if again := ensure(t, ns, config()); again != index {
		t.Errorf("pelago0 has index %d; it had %d", again, index)
	}
	if diff := cmp.Diff(first, everything(t, ns)); diff != "" {
		t.Errorf("a second call changed:\n%s", diff)
	}
	for _, want := range []string{
		"105:	from all lookup 4800",
		"120.2.0.0/24 dev pelago0 table 4800 proto kernel scope link src 172.16.1.2", "unreachable 120.2.0.0/24 table 4800 proto kernel metric 4800",
		"unreachable 120.2.0.0/24 proto kernel metric 4800",
		"pelago-cable", "NOARP", "mtu 1450", "external", "dstport 4800", "dstport 4500",
	} {
		if !strings.Contains(first, want) {
			t.Errorf("%q is missing in:\n%s", want, first)
		}
	}
	if err := ns.Do(Remove); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, everything(t, ns)); diff != "" {
		t.Errorf("Remove left or took (-before +after):\n%s", diff)
	}
}

// From a configuration to another and back: what is there is what a first call would have made.
func TestEnsureChanges(t *testing.T) {
	configs := map[string]Config{
		"two prefixes": config(),
		"other prefixes": config(func(c *Config) {
			c.Prefixes = []netip.Prefix{netip.MustParsePrefix("120.3.0.0/16"), netip.MustParsePrefix("120.4.0.0/24")}
		}),
		"no prefix":           config(func(c *Config) { c.Prefixes = nil }),
		"a smaller MTU":       config(func(c *Config) { c.MTU = 1300 }),
		"no gateway":          config(func(c *Config) { c.CablePort = 0 }),
		"another cable port":  config(func(c *Config) { c.CablePort = 4501 }),
		"another source":      config(func(c *Config) { c.Source = netip.MustParseAddr("172.16.1.3") }),
		"host bits in prefix": config(func(c *Config) { c.Prefixes = []netip.Prefix{netip.MustParsePrefix("120.2.0.7/24")} }),
	}
	reference := map[string]string{}
	for name, c := range configs {
		ns := newNode(t)
		run(t, ns, "ip", "addr", "add", "172.16.1.3/24", "dev", "un0")
		ensure(t, ns, c)
		reference[name] = normal(everything(t, ns))
	}
	ns := newNode(t)
	run(t, ns, "ip", "addr", "add", "172.16.1.3/24", "dev", "un0")
	for other := range configs {
		for _, name := range []string{other, "two prefixes"} {
			ensure(t, ns, configs[name])
			if diff := cmp.Diff(reference[name], normal(everything(t, ns))); diff != "" {
				t.Errorf("%s and back, at %s (-want +got):\n%s", other, name, diff)
			}
		}
	}
}

// normal leaves out what depends on history or chance: interface indexes, addresses of veths, the
// order of rules and routes, qdisc state.
func normal(s string) string {
	lines := strings.Split(s, "\n")
	var out []string
	for _, l := range lines {
		f := strings.Fields(l)
		if len(f) > 1 && strings.HasSuffix(f[0], ":") && strings.HasSuffix(f[1], ":") {
			l = strings.Join(f[1:], " ") // the index
		}
		if strings.Contains(l, "un0@") || strings.HasPrefix(l, "#") || strings.Contains(l, "counter") && strings.Contains(l, "packets") {
			l = strings.Join(strings.FieldsFunc(l, func(r rune) bool { return r == '@' })[:1], "")
		}
		out = append(out, l)
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// What a person or a network manager took away or changed comes back.
func TestEnsureRepairs(t *testing.T) {
	ns := newNode(t)
	ensure(t, ns, config())
	want := normal(everything(t, ns))
	for _, damage := range []string{
		"ip link del pelago0",
		"ip link del pelago-cable",
		"ip link set pelago0 down",
		"ip link set pelago0 arp on",
		"ip link set pelago0 mtu 1280",
		"ip link del pelago0; ip link add pelago0 type bridge",
		"ip link del pelago0; ip link add pelago0 type vxlan id 5 dstport 4800 dev un0",
		"ip route flush table 4800",
		"ip route del 120.2.0.0/24 table 4800 dev pelago0",
		"ip route del unreachable 120.2.0.0/24 table 4800 metric 4800",
		"ip route del unreachable 120.2.0.0/24 table main metric 4800",
		// of an earlier version
		"ip route replace 120.2.0.0/24 dev pelago0 table 4800 proto 80; ip route replace unreachable 120.2.0.0/24 table 4800 proto 80 metric 4096",
		"ip rule del lookup 4800",
		"ip rule del lookup 4800; ip rule add lookup 4800 pref 105", // an earlier version
		"ip rule del lookup 4800; ip rule add lookup 4800 pref 900",
		"ip rule del lookup 4800; ip rule add fwmark 7 lookup 4800 pref 105",
		"ip rule add iif un0 lookup 4800 pref 105",
		"ip rule add to 120.9.0.0/24 lookup 4800 pref 100",
		"ip rule add to 120.2.0.0/24 lookup 4800 pref 105",
		"ip route add 120.9.0.0/24 dev un0 table 4800 proto 80",
		"iptables -D PELAGO-FORWARD -i pelago0 -j ACCEPT",
		"iptables -A PELAGO-FORWARD -o pelago9 -j ACCEPT",
		"iptables -D INPUT -j PELAGO-INPUT",
		"iptables -A INPUT -j PELAGO-INPUT",
		"iptables -F PELAGO-INPUT; iptables -D INPUT -j PELAGO-INPUT; iptables -X PELAGO-INPUT",
		// of an earlier version
		"iptables -A FORWARD -o pelago0 -m comment --comment pelago -j ACCEPT",
		"nft flush chain ip pelago prerouting",
		"nft add rule ip pelago output udp dport 4800 accept",
		"nft add chain ip pelago somebody",
		"nft flush chain ip pelago output; nft add rule ip pelago output udp sport 4800 udp dport 4801 notrack",
		"nft delete chain ip pelago prerouting; nft 'add chain ip pelago prerouting { type filter hook prerouting priority -5; }'",
		"nft flush chain ip pelago postrouting",
		"nft delete table ip pelago",
	} {
		run(t, ns, "sh", "-c", damage)
		ensure(t, ns, config())
		if diff := cmp.Diff(want, normal(everything(t, ns))); diff != "" {
			t.Errorf("after %q (-want +got):\n%s", damage, diff)
		}
	}
}

// An earlier version had a rule for each prefix. With today's single rule, packets for other
// destinations are routed as before.
func TestOneRule(t *testing.T) {
	ns := newNode(t)
	for _, p := range []string{"120.2.0.0/24", "120.3.0.0/16", "120.9.0.0/24"} {
		run(t, ns, "ip", "rule", "add", "to", p, "lookup", "4800", "pref", "100")
	}
	ensure(t, ns, config())
	want := "0:	from all lookup local\n105:	from all lookup 4800\n32766:	from all lookup main\n32767:	from all lookup default\n"
	if diff := cmp.Diff(want, strings.ReplaceAll(run(t, ns, "ip", "rule"), " \n", "\n")); diff != "" {
		t.Errorf("rules (-want +got):\n%s", diff)
	}
	for to, dev := range map[string]string{
		"120.2.0.9": "dev pelago0", "120.3.4.5": "dev pelago0", "120.9.0.1": "dev un0", "192.0.2.1": "dev un0", "172.16.1.9": "dev un0",
	} {
		if got := run(t, ns, "ip", "route", "get", to); !strings.Contains(got, dev) {
			t.Errorf("to %s: %s, want %s", to, got, dev)
		}
	}
	run(t, ns, "ip", "link", "del", Overlay)
	if out, err := ns.Run("ip", "route", "get", "120.2.0.9"); err == nil {
		t.Errorf("without pelago0, packets for a remote prefix go on: %s", out)
	}
}

// A program that listens on the cable's port is reported as the reason; once it has ended, Ensure
// succeeds.
func TestPortInUse(t *testing.T) {
	ns := newNode(t)
	var c *net.UDPConn
	if err := ns.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{Port: 4500})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	err := ns.Do(func() error { _, err := Ensure(config()); return err })
	if !errors.Is(err, ErrPortInUse) || !strings.Contains(err.Error(), "IKE daemons use 4500") {
		t.Errorf("with a listener on 4500: %v", err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	ensure(t, ns, config())
}

// Only our rules go: outer packets are not tracked, other people's tunnels and rules are left
// alone.
func TestFirewallRules(t *testing.T) {
	ns := newNode(t)
	ensure(t, ns, config())
	got := run(t, ns, "nft", "-a", "list", "table", "ip", nftTable)
	for _, want := range []string{
		"udp dport 4500 fib daddr type local notrack", "udp sport 4500 udp dport 4500 notrack", "udp dport 4800 fib daddr type local notrack",
		"priority raw", `oifname "pelago0" snat to ip saddr`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing in:\n%s", want, got)
		}
	}
	ensure(t, ns, config())
	if diff := cmp.Diff(got, run(t, ns, "nft", "-a", "list", "table", "ip", nftTable)); diff != "" {
		t.Errorf("a second call made the table anew:\n%s", diff)
	}
	if err := ns.Do(removeFirewall); err != nil {
		t.Fatal(err)
	}
	if got := run(t, ns, "nft", "list", "ruleset"); strings.Contains(got, "pelago") {
		t.Errorf("rules are left:\n%s", got)
	}
	if got := run(t, ns, "iptables-save"); !strings.Contains(got, "-i somebody") || !strings.Contains(got, "MASQUERADE") {
		t.Errorf("somebody else's rule is gone:\n%s", got)
	}
}

// The ports of a wire with three tunnels are let in; those of two that are gone are not any more.
func TestFirewallPorts(t *testing.T) {
	ns := newNode(t)
	let := func() (ports []string) {
		for line := range strings.Lines(run(t, ns, "iptables-save")) {
			if _, port, ok := strings.Cut(line, "--dport "); ok && strings.HasPrefix(line, "-A PELAGO-INPUT") && strings.Contains(line, "-j ACCEPT") {
				ports = append(ports, strings.Fields(port)[0])
			}
		}
		slices.Sort(ports)
		return ports
	}
	for _, c := range []struct {
		open []uint16
		want []string
	}{
		{[]uint16{4504, 4500, 4501, 4502}, []string{"4500", "4501", "4502", "4504", "4800"}},
		{[]uint16{4504, 4500}, []string{"4500", "4504", "4800"}},
		{nil, []string{"4800"}},
	} {
		if err := ns.Do(func() error { return firewallAdded(Filter{Open: c.open}) }); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, let()); diff != "" {
			t.Errorf("with the open ports %v -want +got\n%s", c.open, diff)
		}
	}
}

// Hosts outside the cluster and ClusterIPs: a second call leaves the rules, one without them
// removes them.
func TestFirewallMasquerades(t *testing.T) {
	ns := newNode(t)
	list := func(f Filter) string {
		t.Helper()
		if err := ns.Do(func() error { return firewallAdded(f) }); err != nil {
			t.Fatal(err)
		}
		return run(t, ns, "nft", "-a", "list", "table", "ip", nftTable)
	}
	without := list(Filter{})
	f := Filter{
		External:   []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32"), netip.MustParsePrefix("198.51.100.0/24")},
		ClusterIPs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")},
	}
	with := list(f)
	for _, want := range []string{
		`iifname "pelago0" ip daddr 192.0.2.7 masquerade`, `iifname "pelago0" ip daddr 198.51.100.0/24 masquerade`,
		`iifname "pelago0" ct status dnat masquerade`, `oifname "pelago0" ip saddr 10.96.0.0/12 drop`, "hook forward priority filter",
	} {
		if !strings.Contains(with, want) {
			t.Errorf("%q is missing in:\n%s", want, with)
		}
	}
	if diff := cmp.Diff(with, list(f)); diff != "" {
		t.Errorf("a second call made the table anew:\n%s", diff)
	}
	handles := regexp.MustCompile(` # handle \d+`)
	if diff := cmp.Diff(handles.ReplaceAllString(without, ""), handles.ReplaceAllString(list(Filter{}), "")); diff != "" {
		t.Errorf("rules are left (-want +got):\n%s", diff)
	}
}

func TestLookups(t *testing.T) {
	ns := newNode(t)
	ensure(t, ns, config())
	up, err := ns.Index("un0")
	if err != nil {
		t.Fatal(err)
	}
	cableIndex, err := ns.Index(Cable)
	if err != nil {
		t.Fatal(err)
	}
	type answers struct {
		OnLink, Far dataplane.Hop
		Uplink      Uplink
		Addresses   []netip.Addr
		Devices     []uint32
		Receivers   []int
	}
	var got answers
	err = ns.Do(func() (err error) {
		if got.OnLink, err = Resolve(netip.MustParseAddr("172.16.1.9")); err != nil {
			return err
		}
		if got.Far, err = Resolve(netip.MustParseAddr("192.0.2.9")); err != nil {
			return err
		}
		if got.Uplink, _, err = ReadUplink(uint32(up)); err != nil {
			return err
		}
		if got.Receivers, err = Receivers(); err != nil {
			return err
		}
		got.Addresses, got.Devices, err = new(Addresses).Read(netip.MustParseAddr("172.16.1.2"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	want := answers{
		OnLink:    dataplane.Hop{Address: netip.MustParseAddr("172.16.1.9"), Next: netip.MustParseAddr("172.16.1.9"), Ifindex: uint32(up)},
		Far:       dataplane.Hop{Address: netip.MustParseAddr("192.0.2.9"), Next: netip.MustParseAddr("172.16.1.254"), Ifindex: uint32(up)},
		Uplink:    Uplink{Name: "un0", MTU: 1500},
		Addresses: []netip.Addr{netip.MustParseAddr("172.16.1.2")},
		Devices:   []uint32{uint32(up)},
		Receivers: []int{cableIndex},
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
