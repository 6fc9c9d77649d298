package lab

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

var compareAddresses = cmp.Options{cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })}

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// planFor completes options as Up does and lays them out.
func planFor(o Options) (Plan, error) {
	o = o.withDefaults()
	if !o.Underlay.IsValid() {
		o.Underlay = prefix("172.31.0.0/16")
	}
	if err := o.validate(); err != nil {
		return Plan{}, err
	}
	return newPlan(o)
}

func TestPlan(t *testing.T) {
	got, err := planFor(Options{Clusters: 1, Nodes: 2, Gateways: 1, PodCIDRs: []netip.Prefix{prefix("10.7.0.0/16")}, ServiceCIDRs: []netip.Prefix{prefix("10.77.0.0/16")}})
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr
	want := Plan{
		Name: "pelago", Underlay: prefix("172.31.0.0/16"),
		Host: HostLink{Device: "lab-pelago", Subnet: prefix("172.31.0.0/24"), Host: a("172.31.0.2"), Router: a("172.31.0.1")},
		Clusters: []Cluster{{
			Name: "g1", Subnet: prefix("172.31.1.0/24"), Router: a("172.31.1.1"), ControlPlane: a("172.31.1.2"),
			PodCIDR: prefix("10.7.0.0/16"), ServiceCIDR: prefix("10.77.0.0/16"), Kubernetes: a("10.77.0.1"), DNS: a("10.77.0.10"),
			Nodes: []Node{
				{Name: "g1-n1", Cluster: "g1", Index: 1, Address: a("172.31.1.11"), PodCIDR: prefix("10.7.1.0/24"), Gateway: true},
				{Name: "g1-n2", Cluster: "g1", Index: 2, Address: a("172.31.1.12"), PodCIDR: prefix("10.7.2.0/24")},
			},
		}, {
			Name: "hub", Hub: true, Subnet: prefix("172.31.255.0/24"), Router: a("172.31.255.1"), ControlPlane: a("172.31.255.2"),
			ServiceCIDR: prefix("10.96.0.0/12"), Kubernetes: a("10.96.0.1"), DNS: a("10.96.0.10"),
		}},
	}
	if diff := cmp.Diff(want, got, compareAddresses); diff != "" {
		t.Errorf("plan (-want +got):\n%s", diff)
	}
	namespaces := []string{"pelago-router", "pelago-g1-switch", "pelago-g1", "pelago-g1-n1", "pelago-g1-n2", "pelago-hub-switch", "pelago-hub"}
	if diff := cmp.Diff(namespaces, got.namespaces()); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
}

func TestPlanCIDRs(t *testing.T) {
	one := func(s ...string) (all []netip.Prefix) {
		for _, p := range s {
			all = append(all, prefix(p))
		}
		return all
	}
	tests := []struct {
		name     string
		options  Options
		pods     string
		services string
		err      string
	}{
		{"nothing given: consecutive like the walk-throughs", Options{}, "10.8.0.0/16 10.9.0.0/16", "10.88.0.0/16 10.99.0.0/16", ""},
		{"overlapping", Options{Addressing: Overlapping}, "10.7.0.0/16 10.7.0.0/16", "10.77.0.0/16 10.77.0.0/16", ""},
		{"one pod CIDR overlaps, services too", Options{PodCIDRs: one("10.7.0.0/16")}, "10.7.0.0/16 10.7.0.0/16", "10.77.0.0/16 10.77.0.0/16", ""},
		{"one of each", Options{PodCIDRs: one("10.7.0.0/16"), ServiceCIDRs: one("10.70.0.0/20")}, "10.7.0.0/16 10.7.0.0/16", "10.70.0.0/20 10.70.0.0/20", ""},
		{"one of each, not overlapping", Options{PodCIDRs: one("10.8.0.0/16"), ServiceCIDRs: one("10.88.0.0/16"), Addressing: Consecutive}, "10.8.0.0/16 10.9.0.0/16", "10.88.0.0/16 10.89.0.0/16", ""},
		{"one per cluster", Options{PodCIDRs: one("10.1.0.0/16", "10.3.0.0/16"), ServiceCIDRs: one("10.2.0.0/16", "10.4.0.0/16")}, "10.1.0.0/16 10.3.0.0/16", "10.2.0.0/16 10.4.0.0/16", ""},
		{"wrong number", Options{PodCIDRs: one("10.1.0.0/16", "10.3.0.0/16"), Clusters: 3}, "", "", "pod-cidr: give none, one or one per cluster (3), not 2"},
		{"pods overlap services", Options{PodCIDRs: one("10.7.0.0/16"), ServiceCIDRs: one("10.7.128.0/20")}, "", "", "g1: pod CIDR 10.7.0.0/16 overlaps service CIDR 10.7.128.0/20"},
		{"pods overlap the underlay", Options{PodCIDRs: one("172.16.0.0/12")}, "", "", "pod CIDR 172.16.0.0/12 overlaps underlay 172.31.0.0/16"},
		{"too small for the nodes", Options{PodCIDRs: one("10.7.0.0/24")}, "", "", "has no room for 2 nodes"},
		{"services too small", Options{ServiceCIDRs: one("10.77.0.0/28")}, "", "", "service-cidr: 10.77.0.0/28 is smaller than /26"},
		{"host bits", Options{PodCIDRs: one("10.7.1.0/16")}, "", "", "pod-cidr: 10.7.1.0/16 is not an IPv4 prefix without host bits"},
		{"IPv6", Options{PodCIDRs: one("fd00::/48")}, "", "", "is not an IPv4 prefix"},
		{"no more consecutive ones", Options{Clusters: 30, Nodes: 1}, "", "", "service-cidr: no room for"},
		{"underlay too long", Options{Underlay: prefix("172.31.0.0/24")}, "", "", "underlay: 172.31.0.0/24 is not an IPv4 prefix of /16 to /20"},
		{"underlay too small", Options{Underlay: prefix("172.31.0.0/20"), Clusters: 15, Addressing: Overlapping}, "", "", "underlay: 172.31.0.0/20 has room for 14 clusters, not 15"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			plan, err := planFor(test.options)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error = %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var pods, services []string
			for _, c := range plan.Clusters {
				if !c.Hub {
					pods, services = append(pods, c.PodCIDR.String()), append(services, c.ServiceCIDR.String())
				}
			}
			if got := strings.Join(pods, " "); got != test.pods {
				t.Errorf("pods = %s, want %s", got, test.pods)
			}
			if got := strings.Join(services, " "); got != test.services {
				t.Errorf("services = %s, want %s", got, test.services)
			}
		})
	}
}

// TestPlanIsConsistent checks, for any options that are accepted, that no two
// machines share an address, that everything lies within what it belongs to,
// and that device names fit the kernel's 15 characters.
func TestPlanIsConsistent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan, err := planFor(Options{
			Name:       rapid.StringMatching(`[a-z][a-z0-9]{0,10}`).Draw(t, "name"),
			Clusters:   rapid.IntRange(1, 20).Draw(t, "clusters"),
			Nodes:      rapid.IntRange(1, 100).Draw(t, "nodes"),
			Addressing: rapid.SampledFrom([]string{Overlapping, Consecutive}).Draw(t, "addressing"),
			PodCIDRs:   []netip.Prefix{netip.PrefixFrom(addr(10<<24|7<<16), rapid.IntRange(14, 24).Draw(t, "bits")).Masked()},
			Underlay:   prefix(rapid.SampledFrom([]string{"172.31.0.0/16", "172.16.16.0/20", "192.168.128.0/17"}).Draw(t, "underlay")),
			NoHub:      rapid.Bool().Draw(t, "no hub"),
		})
		if err != nil {
			t.Skip("refused")
		}
		seen := map[netip.Addr]string{plan.Host.Host: "host", plan.Host.Router: "router"}
		machine := func(name string, a netip.Addr, within netip.Prefix) {
			if other, ok := seen[a]; ok {
				t.Fatalf("%s and %s have the address %s", name, other, a)
			}
			seen[a] = name
			if !within.Contains(a) || !plan.Underlay.Contains(a) {
				t.Fatalf("%s has the address %s outside of %s", name, a, within)
			}
		}
		if len(plan.Host.Device) > 15 {
			t.Fatalf("device name %s is too long", plan.Host.Device)
		}
		for _, c := range plan.Clusters {
			machine(c.Name+"'s router", c.Router, c.Subnet)
			machine(c.Name, c.ControlPlane, c.Subnet)
			if !c.ServiceCIDR.Contains(c.DNS) || !c.ServiceCIDR.Contains(c.Kubernetes) {
				t.Fatalf("%s: service addresses %s, %s outside of %s", c.Name, c.DNS, c.Kubernetes, c.ServiceCIDR)
			}
			for i, n := range c.Nodes {
				machine(n.Name, n.Address, c.Subnet)
				if !c.PodCIDR.Contains(n.PodCIDR.Addr()) || n.PodCIDR.Bits() <= c.PodCIDR.Bits() {
					t.Fatalf("%s: pods %s outside of %s", n.Name, n.PodCIDR, c.PodCIDR)
				}
				for _, other := range c.Nodes[:i] {
					if n.PodCIDR.Overlaps(other.PodCIDR) {
						t.Fatalf("%s and %s share pods %s", n.Name, other.Name, n.PodCIDR)
					}
				}
			}
		}
	})
}

func TestFindMembers(t *testing.T) {
	plan, err := planFor(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := plan.Node("g2-n1"); err != nil || n.Cluster != "g2" {
		t.Errorf("Node(g2-n1) = %+v, %v", n, err)
	}
	if _, err := plan.Node("g3-n1"); err == nil || !strings.Contains(err.Error(), `no node "g3-n1"`) {
		t.Errorf("Node(g3-n1): %v, want an error that names it", err)
	}
	if c, err := plan.Cluster("hub"); err != nil || !c.Hub {
		t.Errorf("Cluster(hub) = %+v, %v", c, err)
	}
	if _, err := plan.Cluster("x"); err == nil {
		t.Error("Cluster(x): no error")
	}
}

func TestValidateOptions(t *testing.T) {
	tests := map[string]struct {
		options Options
		want    []string
	}{
		"defaults":      {Options{}, nil},
		"name":          {Options{Name: "My-Lab"}, []string{"name:"}},
		"long name":     {Options{Name: "abcdefghijkl"}, []string{"name:"}},
		"all at once":   {Options{Clusters: -1, Nodes: 1000, KubeProxy: "ipvs"}, []string{"clusters: -1", "nodes: 1000", `kube-proxy: "ipvs"`}},
		"gateways":      {Options{Nodes: 1, Gateways: 2}, []string{"gateways: 2"}},
		"addressing":    {Options{Addressing: "random"}, []string{`addressing: "random"`}},
		"masquerade":    {Options{Masquerade: "none"}, []string{`masquerade: "none"`}},
		"cni":           {Options{CNI: "weave"}, []string{`cni: "weave" is none of`}},
		"service CIDRs": {Options{ServiceCIDRs: []netip.Prefix{prefix("10.1.0.1/16")}}, []string{"service-cidr: 10.1.0.1/16"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.options.withDefaults().validate()
			if len(test.want) == 0 {
				if err != nil {
					t.Errorf("error = %v, want none", err)
				}
				return
			}
			for _, want := range test.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error = %v, want one with %q", err, want)
				}
			}
		})
	}
}

func TestDefaults(t *testing.T) {
	want := Options{Name: "pelago", Clusters: 2, Nodes: 2, Addressing: Consecutive, KubeProxy: IPTables, CNI: "bridge", Masquerade: MasqueradeAny}
	if diff := cmp.Diff(want, Options{}.withDefaults(), compareAddresses, cmpopts.IgnoreFields(Options{}, "Progress")); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}

func TestChooseUnderlay(t *testing.T) {
	used := []netip.Prefix{prefix("192.0.2.0/24"), prefix("172.31.5.0/24"), prefix("172.30.0.0/15")}
	tests := []struct{ wanted, used, want, err string }{
		{"", "", "172.31.0.0/16", ""},
		{"", "some", "172.29.0.0/16", ""},
		{"10.200.0.0/16", "some", "10.200.0.0/16", ""},
		{"172.31.0.0/16", "some", "", "already has a route to 172.31.5.0/24"},
	}
	for _, test := range tests {
		var wanted netip.Prefix
		if test.wanted != "" {
			wanted = prefix(test.wanted)
		}
		var taken []netip.Prefix
		if test.used != "" {
			taken = used
		}
		got, err := chooseUnderlay(wanted, taken)
		if test.err != "" {
			if err == nil || !strings.Contains(err.Error(), test.err) {
				t.Errorf("chooseUnderlay(%q): %v, want an error with %q", test.wanted, err, test.err)
			}
		} else if err != nil || got.String() != test.want {
			t.Errorf("chooseUnderlay(%q) = %s, %v, want %s", test.wanted, got, err, test.want)
		}
	}
	if _, err := chooseUnderlay(netip.Prefix{}, []netip.Prefix{prefix("172.16.0.0/12")}); err == nil {
		t.Error("everything is used: no error")
	}
}

func TestSameOptions(t *testing.T) {
	have := Options{Nodes: 3, Underlay: prefix("172.31.0.0/16")}.withDefaults()
	if err := sameOptions(have, Options{Nodes: 3}.withDefaults()); err != nil {
		t.Errorf("the same options without an underlay: %v", err)
	}
	err := sameOptions(have, Options{Nodes: 2, KubeProxy: NFTables}.withDefaults())
	for _, want := range []string{"Nodes is 3, not 2", "KubeProxy is iptables, not nftables"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("other options: %v, want an error with %q", err, want)
		}
	}
}
