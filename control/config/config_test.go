package config_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/control/config"
)

var comparePrefixes = cmpopts.EquateComparable(netip.Prefix{})

func good() map[string]string {
	return map[string]string{
		"cluster-id": "g1", "cluster-index": "1", "global-cidr": "120.1.0.0/24", "pod-cidr": "10.7.0.0/16", "service-cidr": "10.77.0.0/16", "fabric-cidr": "241.0.0.0/8",
		"mode": "submariner", "cable-driver": "vxlan", "cable-port": "4500", "custom-domains": "Example.org., two.example",
		"hub-id": "7d2f", "hub-server": "https://192.0.2.1:6443", "broker-namespace": "submariner-k8s-broker",
	}
}

func prefixes(texts ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

func TestParse(t *testing.T) {
	got, err := config.Parse(good())
	if err != nil {
		t.Fatal(err)
	}
	want := config.Config{
		ClusterID: "g1", ClusterIndex: 1,
		GlobalCIDRs: prefixes("120.1.0.0/24"), PodCIDRs: prefixes("10.7.0.0/16"), ServiceCIDRs: prefixes("10.77.0.0/16"),
		FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"), Mode: config.ModeSubmariner, CableDriver: "vxlan", CablePort: 4500, CustomDomains: []string{"example.org", "two.example"},
		HubID: "7d2f", HubServer: "https://192.0.2.1:6443", BrokerNamespace: "submariner-k8s-broker",
	}
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if diff := cmp.Diff(prefixes("120.1.0.0/24"), got.Subnets(), comparePrefixes); diff != "" {
		t.Errorf("subnets -want +got\n%s", diff)
	}
}

func TestWithoutGlobalnetPodAndServiceRangesAreRouted(t *testing.T) {
	data := good()
	data["global-cidr"] = ""
	data["pod-cidr"] += ",fd00:7::/48"
	data["external-cidr"], data["route-service-cidr"] = "192.0.2.0/25", "true"
	c, err := config.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if c.Globalnet() {
		t.Error("globalnet is on without a GlobalCIDR")
	}
	if diff := cmp.Diff(prefixes("10.7.0.0/16", "192.0.2.0/25", "10.77.0.0/16", "241.0.64.0/18"), c.Subnets(), comparePrefixes); diff != "" {
		t.Errorf("subnets -want +got\n%s", diff)
	}
}

func TestBadInputIsNamed(t *testing.T) {
	tests := map[string]struct {
		key, value string
		want       []string
	}{
		"no cluster id":       {"cluster-id", "", []string{"cluster-id", "missing"}},
		"upper case":          {"cluster-id", "G1", []string{"cluster-id", "RFC 1123"}},
		"dots":                {"cluster-id", "g1.eu", []string{"cluster-id", "RFC 1123"}},
		"long id":             {"cluster-id", strings.Repeat("a", 49), []string{"cluster-id", "at most 48"}},
		"index zero":          {"cluster-index", "0", []string{"cluster-index", "1 to 65535"}},
		"index too large":     {"cluster-index", "65536", []string{"cluster-index", "1 to 65535"}},
		"index beyond fabric": {"cluster-index", "1024", []string{"cluster-index", "1024 is more than 1023"}},
		"no fabric":           {"fabric-cidr", "", []string{"fabric-cidr", "missing"}},
		"fabric too small":    {"fabric-cidr", "241.0.0.0/16", []string{"fabric-cidr", "241.0.0.0/16 is no IPv4 /8"}},
		"fabric in the pods":  {"fabric-cidr", "10.0.0.0/8", []string{"pod-cidr", "10.7.0.0/16 overlaps the clusterset's fabric range 10.0.0.0/8", "--fabric-cidr"}},
		"no range":            {"pod-cidr", "10.7.0.0", []string{"pod-cidr", "CIDR notation"}},
		"host bits":           {"pod-cidr", "10.7.0.1/16", []string{"pod-cidr", "write 10.7.0.0/16"}},
		"overlap":             {"pod-cidr", "10.7.0.0/16,10.7.1.0/24", []string{"10.7.0.0/16 and 10.7.1.0/24 overlap"}},
		"no pods":             {"pod-cidr", " ", []string{"pod-cidr", "empty"}},
		"no services":         {"service-cidr", "", []string{"service-cidr", "empty"}},
		"global IPv6":         {"global-cidr", "fd00::/64", []string{"global-cidr", "IPv4"}},
		"mode":                {"mode", "karmada", []string{"mode", "submariner or mcs"}},
		"unknown driver":      {"cable-driver", "gre", []string{"cable-driver", "use wireguard or libreswan or vxlan"}},
		"port":                {"cable-port", "many", []string{"cable-port"}},
		"discovery port":      {"natt-discovery-port", "0", []string{"natt-discovery-port", "1 to 65535"}},
		"no tunnels":          {"cable-tunnels", "0", []string{"cable-tunnels", `"0" is no number from 1 to 4`}},
		"too many tunnels":    {"cable-tunnels", "5", []string{"cable-tunnels", `"5" is no number from 1 to 4`}},
		"XDP":                 {"xdp", "generic", []string{"xdp", "use off or auto or on"}},
		"datapath":            {"datapath", "slow", []string{"datapath", "use strict or hybrid or fast"}},
		"NAT":                 {"natt", "maybe", []string{"natt", "neither true nor false"}},
		"TTL":                 {"dns-ttl", "0", []string{"dns-ttl", "1 to 3600"}},
		"cache":               {"dns-cache", "1h", []string{"dns-cache", "1 to 3600"}},
		"global range":        {"globalnet-cidr-range", "242/8", []string{"globalnet-cidr-range", "CIDR notation"}},
		"domain":              {"custom-domains", "a_b.example", []string{"custom-domains", "a_b.example"}},
		"hub":                 {"hub-id", "", []string{"hub-id", "missing"}},
		"external IPv6":       {"external-cidr", "2001:db8::/64", []string{"external-cidr", "2001:db8::/64 is no IPv4 range"}},
		"external loopback":   {"external-cidr", "127.0.0.0/16", []string{"external-cidr", "overlaps 127.0.0.0/8 (loopback)"}},
		"external in pods":    {"external-cidr", "10.7.9.0/24", []string{"external-cidr", "10.7.9.0/24 overlaps a range of pods, services or global IPs"}},
		"external in fabric":  {"external-cidr", "241.9.0.0/16", []string{"external-cidr", "overlaps the clusterset's fabric range"}},
		"routed, globalnet":   {"route-service-cidr", "true", []string{"route-service-cidr", "export the services"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			data := good()
			data[tt.key] = tt.value
			_, err := config.Parse(data)
			if err == nil {
				t.Fatal("accepted")
			}
			for _, want := range append(tt.want, "pelago-system/pelago-config", "pelago join") {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestEveryProblemIsReportedAtOnce(t *testing.T) {
	_, err := config.Parse(nil)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, key := range slices.Sorted(maps.Keys(good())) {
		optional := key == config.KeyGlobalCIDR || key == config.KeyCustomDomains
		if strings.Contains(err.Error(), "key "+key+":") == optional {
			t.Errorf("key %s: optional %v, error %q", key, optional, err)
		}
	}
}

func TestWithoutNetworkOnlyTheHubIsNamed(t *testing.T) {
	want := config.Config{WorkloadsOnly: true, ClusterID: "w1", ClusterIndex: 3, HubID: "h", HubServer: "https://hub", BrokerNamespace: "b"}
	got, err := config.Parse(want.Data())
	if diff := cmp.Diff(want, got, comparePrefixes); diff != "" || err != nil {
		t.Errorf("%v, -want +got\n%s", err, diff)
	}
	if _, err := config.Parse(map[string]string{config.KeyWorkloadsOnly: "true"}); err == nil || !strings.Contains(err.Error(), "key hub-server: is missing") {
		t.Errorf("without the hub: %v", err)
	}
}

func TestDataIsTheInverseOfParse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		range16 := func(first byte) []netip.Prefix {
			var out []netip.Prefix
			for _, n := range rapid.SliceOfNDistinct(rapid.Byte(), 1, 4, rapid.ID).Draw(t, "second bytes") {
				out = append(out, netip.PrefixFrom(netip.AddrFrom4([4]byte{first, n}), 16))
			}
			return out
		}
		want := config.Config{
			ClusterID:    rapid.StringMatching(`[a-z0-9]([-a-z0-9]{0,46}[a-z0-9])?`).Draw(t, "id"),
			ClusterIndex: rapid.Uint16Range(1, config.MaxFabricCluster).Draw(t, "index"),
			GlobalCIDRs:  range16(120), PodCIDRs: range16(10), ServiceCIDRs: range16(11), ExternalCIDRs: range16(12), FabricCIDR: netip.MustParsePrefix("241.0.0.0/8"),
			Mode:        rapid.SampledFrom([]config.Mode{config.ModeSubmariner, config.ModeMCS}).Draw(t, "mode"),
			CableDriver: rapid.SampledFrom(config.CableDrivers()).Draw(t, "driver"), CablePort: rapid.Uint16Min(1).Draw(t, "port"),
			CableTunnels: rapid.IntRange(0, config.MaxCableTunnels).Draw(t, "tunnels"), XDP: rapid.SampledFrom(append(config.XDPSettings(), "")).Draw(t, "XDP"),
			DiscoveryPort: rapid.Uint16().Draw(t, "discovery port"), NoNAT: rapid.Bool().Draw(t, "no NAT"), PreferredServer: rapid.Bool().Draw(t, "server"),
			LoadBalancer: rapid.Bool().Draw(t, "load balancer"), SingleGateway: rapid.Bool().Draw(t, "single gateway"), AirGapped: rapid.Bool().Draw(t, "air-gapped"),
			CustomDomains: rapid.SliceOfN(rapid.StringMatching(`[a-z]{1,9}\.example`), 0, 3).Draw(t, "domains"),
			DNSTTL:        time.Second * time.Duration(rapid.IntRange(0, config.MaxDNSSeconds).Draw(t, "TTL")),
			DNSCache:      time.Second * time.Duration(rapid.IntRange(0, config.MaxDNSSeconds).Draw(t, "cache")),
			GlobalRange:   rapid.SampledFrom([]netip.Prefix{{}, netip.MustParsePrefix("120.0.0.0/8")}).Draw(t, "global range"),
			HubID:         "id", HubServer: "https://hub", BrokerNamespace: "broker",
		}
		got, err := config.Parse(want.Data())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, comparePrefixes, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("-want +got\n%s", diff)
		}
	})
}
