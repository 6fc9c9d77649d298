package peering

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
	"github.com/pelago-net/pelago/control/config"
)

// FuzzGateway: an Endpoint with any spec, which its cluster alone writes, is refused with a reason
// or becomes a gateway with the fabric address of its indexes, valid addresses and nothing in its
// identity that a field holds.
func FuzzGateway(f *testing.F) {
	for _, spec := range []string{
		`{"hostname":"gw","private_ip":"192.0.2.2","subnets":["120.2.0.0/24"],"backend_config":{"udp-port":"4500","node-index":"1","wire-version":"1"}}`,
		`{"hostname":"gw","public_ip":"192.0.2.2","nat_enabled":true,"subnets":["120.2.0.0/25"],"backend_config":{"udp-port":"4500","node-index":"65535",
			"wire-version":"1","tunnels":"2","public-key":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=,AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}}`,
		`{"hostname":"gw","private_ip":"fe80::1%eth0","backend_config":{"udp-port":"-1","node-index":"0x1","wire-version":"9","fabric-ip":"::","natt-discovery-port":"99999"}}`,
	} {
		for _, driver := range []string{config.CableVXLAN, config.CableWireGuard, config.CableLibreswan} {
			f.Add(driver, []byte(spec))
		}
	}
	cluster := remote("g2", 2, 1, "120.2.0.0/24")
	f.Fuzz(func(t *testing.T, driver string, spec []byte) {
		e := submarinerv1.Endpoint{ObjectMeta: metav1.ObjectMeta{Name: "g2-gw"}}
		if json.Unmarshal(spec, &e.Spec) != nil {
			return
		}
		e.Spec.Backend = driver
		o := g1
		o.CableDriver = driver
		before := e.DeepCopy()
		g, verdict := o.gateway(cluster, 2, e)
		if !reflect.DeepEqual(before, &e) {
			t.Fatal("the Endpoint has changed")
		}
		if !verdict.ok {
			if verdict.reason == "" || verdict.message == "" {
				t.Errorf("refused without a reason: %+v", verdict)
			}
			return
		}
		want, err := config.FabricAddress(o.Fabric, 2, uint16(g.NodeIndex))
		if err != nil || g.FabricAddress != want.String() {
			t.Errorf("fabric address %s of node %d, want %s (%v)", g.FabricAddress, g.NodeIndex, want, err)
		}
		if _, err := netip.ParseAddr(g.Address); err != nil {
			t.Errorf("address %q: %v", g.Address, err)
		}
		if g.Port < 0 || g.Port > 65535 || g.NATTPort < 0 || g.NATTPort > 65535 || g.Tunnels < 1 || g.Tunnels > config.MaxCableTunnels {
			t.Errorf("port %d, NAT-T port %d, %d tunnels", g.Port, g.NATTPort, g.Tunnels)
		}
		for key := range g.Identity {
			if slices.Contains(ownFields, key) {
				t.Errorf("identity has %s", key)
			}
		}
	})
}
