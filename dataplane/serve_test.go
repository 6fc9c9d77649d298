package dataplane

import (
	"maps"
	"net/netip"
	"testing"
)

// Flows are compared with the backends of exported UDP ports; those of TCP stay whatever becomes of
// their backends.
func TestServe(t *testing.T) {
	var s State
	at := netip.MustParseAddrPort
	dns := ServiceKey{Address: netip.MustParseAddr("120.1.0.20"), Port: 53, Protocol: ProtocolUDP}
	web := ServiceKey{Address: dns.Address, Port: 80, Protocol: ProtocolTCP}
	s.Serve(dns, Service{Backends: []netip.AddrPort{at("10.7.2.10:53"), at("10.7.2.11:53"), at("10.7.2.11:5353")}})
	s.Serve(web, Service{Backends: []netip.AddrPort{at("10.7.2.10:80")}})
	want := map[VIPPod]uint16{{dns, netip.MustParseAddr("10.7.2.10")}: 53, {dns, netip.MustParseAddr("10.7.2.11")}: 0}
	if !maps.Equal(s.VIPPods, want) {
		t.Errorf("pods %v; want %v", s.VIPPods, want)
	}
	if len(s.Services) != 2 {
		t.Errorf("services %v", s.Services)
	}
}
