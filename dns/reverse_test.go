package dns

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	miekg "github.com/miekg/dns"
)

func TestReverseZones(t *testing.T) {
	for prefix, want := range map[string]string{
		"243.0.0.0/8":       "243.in-addr.arpa",
		"242.1.0.0/16":      "1.242.in-addr.arpa",
		"242.1.2.3/15":      "0.242.in-addr.arpa 1.242.in-addr.arpa",
		"10.0.0.5/32":       "5.0.0.10.in-addr.arpa",
		"10.0.0.8/30":       "8.0.0.10.in-addr.arpa 9.0.0.10.in-addr.arpa 10.0.0.10.in-addr.arpa 11.0.0.10.in-addr.arpa",
		"fd00::/8":          "d.f.ip6.arpa",
		"fd12:3456::/30":    "4.5.4.3.2.1.d.f.ip6.arpa 5.5.4.3.2.1.d.f.ip6.arpa 6.5.4.3.2.1.d.f.ip6.arpa 7.5.4.3.2.1.d.f.ip6.arpa",
		"fd12:3456:7::/48":  "7.0.0.0.6.5.4.3.2.1.d.f.ip6.arpa",
		"2001:db8:abcd::/9": "0.0.2.ip6.arpa 1.0.2.ip6.arpa 2.0.2.ip6.arpa 3.0.2.ip6.arpa 4.0.2.ip6.arpa 5.0.2.ip6.arpa 6.0.2.ip6.arpa 7.0.2.ip6.arpa",
	} {
		if diff := cmp.Diff(want, strings.Join(ReverseZones(netip.MustParsePrefix(prefix)), " ")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", prefix, diff)
		}
	}
}

// TestPTR: an address has the name at which a client finds that address.
func TestPTR(t *testing.T) {
	services := []Service{
		{Ports: http, Clusters: []Cluster{in("g2", ready("242.2.0.1")), in("g3", unready("242.3.0.1"))}},
		{Name: "vip", IPs: []netip.Addr{ip("243.0.0.1"), ip("fd00::1")}, Clusters: []Cluster{in("g2", ready("242.2.0.9"))}},
		{Name: "db", Type: Headless, Clusters: []Cluster{in("g2", pod("db-0", "242.2.0.2"), Endpoint{Hostname: "db-1", IP: ip("242.2.0.3")}, ready("242.2.0.4"))}},
		{Name: "twin", Type: Headless, Clusters: []Cluster{in("g2", pod("db-0", "242.2.0.2"))}},
		{Name: "flat", Clusters: []Cluster{in("g2", ready("10.8.0.1"))}},
	}
	for mode, want := range map[Mode]map[string]string{
		ModeSubmariner: {
			"242.2.0.1": "g2.web.sample.svc.clusterset.local.",
			"242.3.0.1": "g3.web.sample.svc.clusterset.local.",
			"242.2.0.9": "g2.vip.sample.svc.clusterset.local.",
			"243.0.0.1": "vip.sample.svc.clusterset.local.", "fd00::1": "vip.sample.svc.clusterset.local.",
			"242.2.0.2": "db-0.g2.db.sample.svc.clusterset.local., db-0.g2.twin.sample.svc.clusterset.local.",
			"242.2.0.3": "NXDOMAIN", "242.2.0.4": "242-2-0-4.g2.db.sample.svc.clusterset.local.",
			"242.9.9.9": "NXDOMAIN", "10.8.0.1": "REFUSED", "fd01::1": "REFUSED",
		},
		// No name has the address of one cluster.
		ModeMCS: {
			"242.2.0.1": "NXDOMAIN", "243.0.0.1": "vip.sample.svc.clusterset.local.",
			"242.2.0.2": "db-0.g2.db.sample.svc.clusterset.local., db-0.g2.twin.sample.svc.clusterset.local.",
		},
	} {
		table := sample(mode, services...)
		table.Zones = []string{"clusterset.local", "longer.global.example", "242.in-addr.arpa", "243.in-addr.arpa", "0.0.d.f.ip6.arpa"}
		h := serving(t, table)
		for address, want := range want {
			name, err := miekg.ReverseAddr(address)
			if err != nil {
				t.Fatal(err)
			}
			if got := ask(t, h, name+" PTR"); got != want {
				t.Errorf("%s: %s has name %s, want %s", mode, address, got, want)
			}
			if want == "NXDOMAIN" || want == "REFUSED" {
				continue
			}
			for _, name := range strings.Split(want, ", ") {
				query := name + " A"
				if strings.Contains(address, ":") {
					query += "AAA"
				}
				if got := ask(t, h, query); got != address {
					t.Errorf("%s: %s is %s, and %s has that name", mode, query, got, address)
				}
			}
		}
		for question, want := range map[string]string{
			"1.0.2.242.in-addr.arpa A": map[Mode]string{ModeSubmariner: "NODATA", ModeMCS: "NXDOMAIN"}[mode],
			"2.242.in-addr.arpa PTR":   "NODATA", "242.in-addr.arpa PTR": "NODATA",
			"242.in-addr.arpa NS": "ns.dns.242.in-addr.arpa.", "x.242.in-addr.arpa PTR": "NXDOMAIN",
			"01.0.2.242.in-addr.arpa PTR": "NXDOMAIN", "256.0.2.242.in-addr.arpa PTR": "NXDOMAIN", "1.1.0.2.242.in-addr.arpa PTR": "NXDOMAIN",
			"dns-version.242.in-addr.arpa TXT": "NXDOMAIN", "in-addr.arpa PTR": "REFUSED", "arpa NS": "REFUSED",
		} {
			if got := ask(t, h, question); got != want {
				t.Errorf("%s: %s is %s, want %s", mode, question, got, want)
			}
		}
	}
}

// In a range that ends within the last octet each address is a zone.
func TestPTRInZonesOfAddresses(t *testing.T) {
	table := sample(ModeSubmariner, Service{Name: "vip", IPs: []netip.Addr{ip("243.0.0.1")}})
	table.Zones = append([]string{"clusterset.local"}, ReverseZones(netip.MustParsePrefix("243.0.0.0/30"))...)
	h := serving(t, table)
	for question, want := range map[string]string{
		"1.0.0.243.in-addr.arpa PTR": "vip.sample.svc.clusterset.local.", "2.0.0.243.in-addr.arpa PTR": "NODATA", "4.0.0.243.in-addr.arpa PTR": "REFUSED",
	} {
		if got := ask(t, h, question); got != want {
			t.Errorf("%s: got %s, want %s", question, got, want)
		}
	}
}

// TestPTRFollowsTheTable: names leave and come with services, also when ranges
// are added to a table whose services stay.
func TestPTRFollowsTheTable(t *testing.T) {
	table := sample(ModeSubmariner, Service{Clusters: []Cluster{in("g2", ready("242.2.0.1"))}})
	h := serving(t, table)
	const question = "1.0.2.242.in-addr.arpa PTR"
	step := func(want string) {
		t.Helper()
		if err := h.Set(table); err != nil {
			t.Fatal(err)
		}
		if got := ask(t, h, question); got != want {
			t.Errorf("%s is %s, want %s", question, got, want)
		}
	}
	step("REFUSED")
	table.Zones = append(table.Zones, ReverseZones(netip.MustParsePrefix("242.0.0.0/8"))...)
	step("g2.web.sample.svc.clusterset.local.")
	table.Services = nil
	step("NXDOMAIN")
	table.Zones = []string{"242.in-addr.arpa"}
	if err := h.Set(table); err == nil || !strings.Contains(err.Error(), "only reverse zones") {
		t.Errorf("got error %v", err)
	}
}
