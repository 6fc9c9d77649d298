package peering

import (
	"cmp"
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	submarinerv1 "github.com/pelago-net/pelago/api/submariner/v1"
)

// Both addresses of a remote gateway are handed on, with one to begin with.
func TestAddressesOfGateways(t *testing.T) {
	const key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	tests := map[string]struct {
		private, public string
		nat             bool
		settings        map[string]string
		want            string // address private public LB port, or the refusal
	}{
		"one network":                {"192.0.2.2", "", false, nil, "192.0.2.2 192.0.2.2 - false 0"},
		"behind NAT":                 {"10.0.0.2", "198.51.100.7", true, map[string]string{"natt-discovery-port": "4490"}, "198.51.100.7 10.0.0.2 198.51.100.7 false 4490"},
		"public, but not behind NAT": {"10.0.0.2", "198.51.100.7", false, map[string]string{"natt-discovery-port": "4491"}, "10.0.0.2 10.0.0.2 198.51.100.7 false 4491"},
		"load balancer":              {"10.0.0.2", "198.51.100.7", true, map[string]string{"using-loadbalancer": "true"}, "198.51.100.7 10.0.0.2 198.51.100.7 true 0"},
		"does not answer discovery":  {"10.0.0.2", "", false, map[string]string{"natt-discovery-port": "0"}, "10.0.0.2 10.0.0.2 - false 0"},
		"only the public address":    {"", "198.51.100.7", true, nil, "198.51.100.7 - 198.51.100.7 false 0"},
		// 192.0.2.1 is a node of this cluster.
		"our range as well":            {"192.0.2.1", "198.51.100.7", false, map[string]string{"natt-discovery-port": "4490"}, "198.51.100.7 - 198.51.100.7 false 4490"},
		"our range, can only call":     {"192.0.2.1", "", false, map[string]string{"natt-discovery-port": "4490"}, "- - - false 4490"},
		"our range, and cannot call":   {"192.0.2.1", "", false, nil, "has the address 192.0.2.1 of node gw"},
		"behind NAT without address":   {"10.0.0.2", "", true, nil, `public_ip "" is no IPv4 address`},
		"public address is no address": {"10.0.0.2", "gw.example", false, nil, `public_ip "gw.example" is no IPv4 address`},
		"IPv6":                         {"2001:db8::2", "", false, nil, `private_ip "2001:db8::2" is no IPv4 address: gateways reach each other by IPv4`},
		"public address is IPv6":       {"10.0.0.2", "2001:db8::2", true, nil, `public_ip "2001:db8::2" is no IPv4 address: gateways reach each other by IPv4`},
		"discovery port":               {"10.0.0.2", "", false, map[string]string{"natt-discovery-port": "many"}, `natt-discovery-port: "many" is no number`},
	}
	o := g1
	o.CableDriver = "wireguard"
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			e := gateway("g2", "gw", tt.private, "120.2.0.0/24")
			e.Spec.Backend, e.Spec.PublicIP, e.Spec.NATEnabled = "wireguard", tt.public, tt.nat
			e.Spec.BackendConfig["publicKey"] = key
			for k, v := range tt.settings {
				e.Spec.BackendConfig[k] = v
			}
			peers, _ := o.peers(known{
				clusters: []submarinerv1.Cluster{remote("g2", 2, 0, "120.2.0.0/24")}, endpoints: []submarinerv1.Endpoint{e},
				nodes: []corev1.Node{node("gw", "192.0.2.1", nil)},
			})
			if len(peers) != 1 {
				t.Fatalf("%d peers", len(peers))
			}
			if len(peers[0].Spec.Gateways) == 0 {
				if got := peers[0].Status.Conditions[0].Message; !strings.Contains(got, tt.want) {
					t.Errorf("refused with %q, want %q", got, tt.want)
				}
				return
			}
			g := peers[0].Spec.Gateways[0]
			if diff := gocmp.Diff(tt.want, reachText(g.Address, g.PrivateAddress, g.PublicAddress, g.BehindLB, g.NATTPort)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
			if diff := gocmp.Diff(map[string]string{"publicKey": key}, g.Identity); diff != "" {
				t.Errorf("identity -want +got\n%s", diff)
			}
		})
	}
}

func reachText(address, private, public string, lb bool, port int32) string {
	text := func(a string) string { return cmp.Or(a, "-") }
	return fmt.Sprintf("%s %s %s %t %d", text(address), text(private), text(public), lb, port)
}
