package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pelago-net/pelago/control/config"
	"github.com/pelago-net/pelago/dataplane/cable"
)

func TestXDPDevices(t *testing.T) {
	kind := func(ifindex int) string { return map[int]string{2: "device", 3: "veth", 4: "bond"}[ifindex] }
	uplinks := []int{2, 3, 4, 5}
	for _, tt := range []struct {
		mode    string
		gateway bool
		want    []int
	}{
		{"auto", true, []int{2}}, {"on", true, uplinks}, {"off", true, nil}, {"auto", false, nil}, {"on", false, nil},
	} {
		mode, err := ParseXDP(tt.mode)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, mode.devices(tt.gateway, uplinks, kind)); diff != "" {
			t.Errorf("%s, gateway %t (-want +got):\n%s", tt.mode, tt.gateway, diff)
		}
	}
	if diff := cmp.Diff([]int{2, 3, 4, 5}, uplinks); diff != "" {
		t.Errorf("the uplinks were changed:\n%s", diff)
	}
	if _, err := ParseXDP("generic"); err == nil {
		t.Error("taken: generic")
	}
}

// The cluster's configuration reports where XDP is used, if the node's own command line does not.
func TestXDPSetting(t *testing.T) {
	for _, tt := range []struct{ flag, configured, want string }{
		{"", "", ""}, {"", "auto", "auto"}, {"on", "", "on"}, {"off", "on", "off"},
	} {
		flag, err := ParseXDP(tt.flag)
		if err != nil {
			t.Fatal(err)
		}
		if got := flag.or(config.Config{XDP: tt.configured}); got != XDP(tt.want) {
			t.Errorf("flag %q, configuration %q: %q, want %q", tt.flag, tt.configured, got, tt.want)
		}
	}
}

func TestCallers(t *testing.T) {
	one, two, three := netip.MustParseAddr("241.0.64.1"), netip.MustParseAddr("241.0.64.2"), netip.MustParseAddr("241.0.64.3")
	peers := []cable.Peer{
		{Fabric: two, Address: netip.MustParseAddr("203.0.113.2")}, {Fabric: one, Address: netip.MustParseAddr("203.0.113.1")}, {Fabric: three},
	}
	status := map[netip.Addr]cable.Status{
		// called, and has not answered
		one:   {Endpoint: netip.MustParseAddrPort("198.51.100.1:4500")},
		two:   {Endpoint: netip.MustParseAddrPort("[::ffff:198.51.100.2]:999"), Handshake: time.Now()},
		three: {Endpoint: netip.MustParseAddrPort("198.51.100.3:4500"), Handshake: time.Now()},
		// gone
		netip.MustParseAddr("241.0.64.9"): {Endpoint: netip.MustParseAddrPort("198.51.100.9:4500"), Handshake: time.Now()},
	}
	want := []string{"198.51.100.2", "198.51.100.3", "203.0.113.1", "203.0.113.2"}
	var got []string
	for _, a := range handshakePeers(peers, status) {
		got = append(got, a.String())
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("known (-want +got):\n%s", diff)
	}
}
