package config_test

import (
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/pelago-net/pelago/control/config"
)

var fabric = netip.MustParsePrefix(config.DefaultFabricCIDR)

func TestFabricAddress(t *testing.T) {
	for _, tt := range []struct {
		cluster, node uint16
		want          string
	}{
		{1, 1, "241.0.64.1"}, {1, 16383, "241.0.127.255"}, {2, 1, "241.0.128.1"}, {4, 1, "241.1.0.1"}, {1023, 16383, "241.255.255.255"},
		{0, 1, "cluster index 0 is not from 1 to 1023"}, {1024, 1, "cluster index 1024"}, {1, 0, "node index 0"}, {1, 16384, "node index 16384 is not from 1 to 16383"},
	} {
		got, err := config.FabricAddress(fabric, tt.cluster, tt.node)
		if text := got.String(); err == nil && text != tt.want || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("fabric(%d, %d) = %s, %v; want %s", tt.cluster, tt.node, text, err, tt.want)
		}
	}
	if _, err := config.FabricAddress(netip.Prefix{}, 1, 1); err == nil {
		t.Error("an address of no fabric")
	}
}

// Every node has one address of its own, in its cluster's /18, which no other cluster's contains.
func TestFabricAddressesAreDistinct(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		index := func(max uint16, name string) uint16 { return rapid.Uint16Range(1, max).Draw(t, name) }
		c1, n1 := index(config.MaxFabricCluster, "cluster"), index(config.MaxFabricNode, "node")
		c2, n2 := index(config.MaxFabricCluster, "other cluster"), index(config.MaxFabricNode, "other node")
		a, err1 := config.FabricAddress(fabric, c1, n1)
		b, err2 := config.FabricAddress(fabric, c2, n2)
		p, err3 := config.FabricPrefix(fabric, c1)
		if err1 != nil || err2 != nil || err3 != nil {
			t.Fatal(err1, err2, err3)
		}
		if (a == b) != (c1 == c2 && n1 == n2) || !p.Contains(a) || p.Contains(b) != (c1 == c2) || p.Bits() != 18 || !fabric.Contains(a) {
			t.Fatalf("fabric(%d, %d) = %s, fabric(%d, %d) = %s, prefix %s", c1, n1, a, c2, n2, b, p)
		}
	})
}

func TestCheckFabric(t *testing.T) {
	for text, want := range map[string]string{
		"241.0.0.0/8": "", "10.0.0.0/8": "", "100.0.0.0/8": "",
		"241.0.0.0/9": "no IPv4 /8", "240.0.0.0/4": "no IPv4 /8", "fd00::/8": "no IPv4 /8", "241.1.0.0/8": "write 241.0.0.0/8",
		"127.0.0.0/8": "127.0.0.0/8", "169.0.0.0/8": "169.254.0.0/16", "239.0.0.0/8": "224.0.0.0/4", "255.0.0.0/8": "255.0.0.0/8",
	} {
		err := config.CheckFabric(netip.MustParsePrefix(text))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", text, err, want)
		}
	}
}
